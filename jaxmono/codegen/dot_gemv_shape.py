"""What a tile of the gemv family is: the constants of ``Gemv`` as device/gemv.cuh has them."""

from __future__ import annotations

import math

from jaxmono.codegen.dot import fma_type
from jaxmono.codegen.dot_schedule import DotSchedule
from jaxmono.fusion.plan import DotForm

MAX_ROWS = 8
"""Of ordinary arithmetic: a thread keeps the sums of all of them."""
MMA_ROWS = 16
"""Of the tensor cores, which take 16-bit types."""
FMA_ROWS = 2
"""Up to this many rows multiply-adds are cheaper than fragments, which would be nearly empty."""
SCRATCH = 1024
"""Bytes of shared memory below x: reduces of a normalisation, a flag."""
GRANULE = 64
"""Elements of k that the shares of blocks are multiples of."""


def takes(form: DotForm) -> str | None:
    """Why a contraction cannot run in this family; None if it can."""
    narrow = form.dot.rhs.type.dtype.itemsize == 2
    if form.m.size > (most := MMA_ROWS if narrow else MAX_ROWS):
        return f"{form.m.size} rows; a thread keeps the sums of {most} at most"
    if form.taps > 1:
        return "its rows are read in windows"
    if 0 in (form.batch.size, form.m.size, form.n.size, form.k.size):
        return "a dimension is empty"
    if fma_type(form) is None:
        return "ordinary arithmetic in f32 takes bf16, f16 and f32 operands of one type"
    return None


class Shape:
    """The constants of a ``Gemv`` as device/gemv.cuh has them."""

    def __init__(self, s: DotSchedule, *, m: int, n: int, k: int, bits: int, k_major: bool,
                 threads: int, x_itemsize: int = 0, scales: tuple[int, int] | None = None) -> None:
        """``bits``: of weights as they are stored; of x as well, unless that has an itemsize.
        ``scales``: elements of k that share one, and its bytes (`group_scales.extent_of`)."""
        self.e = 128 // bits
        self.bytes, self.x_itemsize = bits <= 8, x_itemsize or bits // 8
        warps = threads // 32
        self.mma = is_mma(m, s.bn, bits, k_major, warps, x_itemsize)
        self.dealt = self.mma and k_major and bits == 4
        """``Gemv::DEALT``: x lies in shared memory in another order."""
        wk = s.warps[2] if k_major else 1
        self.share = math.ceil(math.ceil(k / s.bk) / s.split_k) * s.bk if s.split_k > 1 else k
        if k_major:
            self.u = U if self.mma else rows_at_once(s.bn, warps // wk, m)
            group = warps // wk * (16 if self.mma else self.u)
            self.span = wk * (8 if self.mma else 32) * self.e
            self.groups, parts = math.ceil(s.bn / group), wk
            self.busy = s.bn / (self.groups * group)
        else:
            c = s.bn // self.e
            lane_rows = 32 // c if c <= 32 else 0
            packed = lane_rows * c >= 28
            rows = warps * lane_rows if packed else threads // c
            parts = warps if packed else rows
            if self.mma:
                rows, parts = threads // c, warps // (s.bn // (8 * self.e))
            self.u = U
            self.span, self.groups = rows * U, 1
            self.busy = rows * c / threads
            group = 0
        self.spans = math.ceil(self.share / self.span)
        self.busy *= self.share / (self.spans * self.span)
        self.steps = self.spans * self.groups
        self.pitch = pitch = math.ceil(self.spans * self.span / 8) * 8 if not self.mma else (
            math.ceil(self.spans * self.span / 64) * 64 + (
                16 if not k_major else 8 if bits == 8 else 32))
        self.slot_bytes = self.u * threads * 16
        sums = math.ceil(parts * m * s.bn * 4 / 128) * 128
        self.fixed = SCRATCH + math.ceil(m * pitch * self.x_itemsize / 128) * 128
        if scales is not None:
            per_scale, scale_bytes = scales
            groups = math.ceil(self.share / per_scale) + (self.share % per_scale != 0)
            row = math.ceil(groups * scale_bytes / 128) * 128 + 16
            size = s.bn * row if k_major else groups * s.bn * scale_bytes
            self.fixed += math.ceil(size / 128) * 128
        ring = s.stages * self.slot_bytes
        self.shared_bytes = self.fixed + (sums + ring if k_major else max(sums, ring))
        if k_major:
            self.fixed += sums
        self.empty = (s.split_k - 1) * self.share >= k
        """Whether the last share has no elements at all (84 tiles of 64 over 16 blocks are 14
        shares of 6): nothing that a chooser takes."""
        self.k_tail = (self.spans * self.span != self.share or k % self.share != 0
                       or self.empty)
        """Whether steps reach past a task's k. n_tail: past its rows of weights [n][k]."""
        self.n_tail = k_major and self.groups * group != s.bn


U = 4
"""Pieces of a step for weights [k][n]: neighbouring rows of one column."""


def is_mma(m: int, bn: int, bits: int, k_major: bool, warps: int, x_itemsize: int = 0) -> bool:
    """Whether the tensor cores multiply: many rows, or weights [n][k] of 4 bits, which take longer
    to become f32 (1x8192x2048 takes 0.97 of the time so, with scales of groups 0.86); and a tile
    that fragments can be made of."""
    columns, wide = 8 * 128 // bits, 8 * x_itemsize or bits
    few = 0 if bits == 4 and k_major else FMA_ROWS
    return m > few and wide == 16 and bits <= wide and (
        k_major or (bn % columns == 0 and warps % (bn // columns) == 0))


def rows_at_once(bn: int, warps: int, m: int) -> int:
    """Rows of weights [n][k] that a warp reads in one step: they share what is read of x."""
    return next((u for u in (4, 2) if bn >= warps * u and m * u <= 32), 1)
