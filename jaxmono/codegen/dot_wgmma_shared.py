"""What the families on Hopper's warpgroups are called, and what a task of theirs has in shared
memory: panel, ring, staging, as the classes of device/gemm_wgmma.cuh, gemm_swapped.cuh,
weights_left.cuh lay them out."""

from __future__ import annotations

import math

from jaxmono.codegen.dot import DotCode
from jaxmono.codegen.dot_schedule import DotSchedule, ImageSchedule
from jaxmono.codegen.dot_wgmma_leaves import unstaged
from jaxmono.codegen.emit import c_type
from jaxmono.codegen.names import is_f8
from jaxmono.codegen.operand import (
    PIECE_BYTES,
    Operand,
    copied_bytes,
    is_unaligned,
    shifted,
)
from jaxmono.hlo.types import DType

CONSUMERS, PRODUCERS = 256, 128
MAX_SLOTS = 16
ALONE = (1, 1, 1)
"""`DotSchedule.warps` of warpgroups that have tasks of their own."""
ROLES_BYTES = 512
"""Of shared memory, for `Roles`."""
LOW_BYTES = 1024
"""Of shared memory below the tiles of this family, for what rows need across warps: while such a
stage runs, the producers already load the weights of the next one."""
SWAPPED = "swapped"
"""Family of the same products with the weights on the left (device/gemm_swapped.cuh)."""
TF32 = "tf32"
"""Family of f32 products with the weights on the left, in registers, and rows that are rounded to
tf32 when they are in shared memory (device/gemm_tf32.cuh)."""
BYTES = "bytes"
"""Family of products whose weights are stored as bytes, on the left and in registers, beside rows
of bytes or of 16 bits, or as f32 beside rows of 16, or lie as 16 bits in rows that begin anywhere
(device/gemm_bytes.cuh)."""
IMAGE = "image"
"""Family of convolutions whose image stays in shared memory (device/gemm_image.cuh)."""
BF16X6 = "bf16x6"
"""Family of exact products of f32, as six products of bf16 parts, with the weights on the left and
in registers (device/gemm_bf16x6.cuh)."""
REGISTERS = (TF32, BYTES, BF16X6)
"""Families whose weights pass through registers (device/weights_left.cuh)."""


def shared_k_major(code: DotCode) -> tuple[bool, bool]:
    """Whether the left and the right operand lie [m or n][k] in shared memory: as in memory, but
    a right one of 32-bit elements is transposed on the way, because wgmma cannot."""
    return code.lhs.k_major, code.element is DType.F32 or code.rhs.k_major


def pair_type(code: DotCode) -> str:
    """C type of 16 bits of 8-bit floats; "" for other types."""
    if code.element is None or not is_f8(code.element) or code.s.family == BYTES:
        return ""
    assert code.rhs_element is not None
    return f"F8Pair<{c_type(code.element)}, {c_type(code.rhs_element)}>"


def shared_bytes(code: DotCode) -> int:
    """Dynamic shared memory of a task: panel, ring, staging (as the classes lay them out)."""
    s = code.s
    panel, slot = layout(code)
    staging = together_bytes(s.bm, s.warps[2]) if s.family == BYTES else \
        left_staging_bytes(s.bm // s.warps[0]) if s.family in (TF32, BF16X6) else \
        swapped_staging_bytes(s.bm, s.bn, s.warps[2]) if s.family == SWAPPED else \
        0 if leaves_unstaged(code) else \
        staging_bytes(s.bn // s.warps[1], s.warps[2])
    return LOW_BYTES + panel + s.stages * slot + staging


def is_pingpong(s: DotSchedule) -> bool:
    """Whether warpgroups have tasks of their own (dot_schedule_pingpong.py)."""
    return s.family == "wgmma" and s.warps == ALONE


def leaves_unstaged(code: DotCode) -> bool:
    """Whether sums need no shared memory to leave."""
    return is_pingpong(code.s) and unstaged(code)


def finishing(s: DotSchedule) -> int:
    """Threads that multiply and finish a tile."""
    return CONSUMERS // 2 if is_pingpong(s) else CONSUMERS


def layout(code: DotCode) -> tuple[int, int]:
    """Bytes of the panel and of a slot."""
    s, (a_k, b_k) = code.s, shared_k_major(code)
    if s.family == IMAGE:
        b = operand_bytes(s.bn, s.bk, b_k, 16)
        assert isinstance(s, ImageSchedule)
        images = image_bytes(code.arrangement.copied, s.bk, s.images)
        return (images + code.k_tiles * b, 0) if s.resident else (images, b)
    panel = panel_columns(code)
    if s.family == BYTES:
        assert code.rhs_element is not None
        line = 0 if shifts(code) is None else PIECE_BYTES
        rows, weights = s.bm * deep(code), s.bk * (s.bn * code.rhs_element.bits // 8 + line)
        return rows * math.ceil(panel / s.bk), weights + (0 if panel else rows)
    if s.family == BF16X6:
        return 0, parts_slot_bytes(s.bm, s.bn)
    # A tile of 32-bit elements has as many bytes as [k][m] as it has as [m][k].
    depth = deep(code) // 2
    a, b = (operand_bytes(rows, depth, k_major, width) for rows, k_major, width in zip(
        (s.bm, s.bn), (a_k, b_k), widths(code), strict=True))
    if s.resident:
        return code.k_tiles * b, a
    return s.bm * 128 * math.ceil(panel / s.bk), b if panel else a + b


def deep(code: DotCode) -> int:
    """Bytes of k in a slot: of one or two lines of 128, or of less where that is all of k."""
    assert code.element is not None
    return code.s.bk * code.element.itemsize


def panel_columns(code: DotCode) -> int:
    """Elements of k of the left operand that the consumers of a task compute and keep; 0 where they
    are copied."""
    if code.form.row_prologue:
        return code.k_tiles * code.s.bk
    return 0 if code.s.family == IMAGE or comes(code.lhs) else code.split_tiles * code.s.bk


def shifts(code: DotCode) -> tuple[int, int] | None:
    """How rows of weights of the family `BYTES` are `shifted`, if they have 16 bits."""
    return shifted(code.rhs) if code.s.family == BYTES else None


def comes(x: Operand) -> bool:
    """Whether producers can bring an operand as it is in memory."""
    return x.param is not None or is_unaligned(x)


def tile_bytes(rows: int, cols: int) -> int:
    """Shared memory of a `SwizzledTile` of 16-bit elements."""
    return rows * 128 * math.ceil(cols / 64)


def operand_bytes(rows: int, depth: int, k_major: bool, width: int) -> int:
    """Of a slot, for ``rows`` (or columns) of an operand and ``depth`` elements of k, which lie as
    [rows][k] or [k][rows] and come in copies of ``width`` bytes; 2: as an `UnalignedTile`."""
    rows, columns = (rows, depth) if k_major else (depth, rows)
    return tile_bytes(rows, columns) + (_more_bytes(rows, columns) if width == 2 else 0)


def _more_bytes(rows: int, columns: int) -> int:
    """`UnalignedTile::MORE_BYTES`: a line for each row of each strip of 8, 4, 2 or 1 pieces."""
    pieces = columns // 8
    strips = pieces // 8 + (pieces % 8).bit_count()
    return math.ceil(strips * rows * 16 / 1024) * 1024


def widths(code: DotCode) -> tuple[int, int]:
    """`copied_bytes` of the left and of the right operand."""
    return copied_bytes(code.lhs), copied_bytes(code.rhs)


def staging_bytes(n: int, k_warpgroups: int) -> int:
    """Shared memory in which the epilogue turns fragments into rows; ``n``: of a warpgroup."""
    halves = has_halves(n, k_warpgroups)
    exchanged = CONSUMERS * n // 32 * 16 if halves else 0
    n = n // 2 if halves else n
    chunk = n if k_warpgroups == 2 and not halves else staged_columns(n)
    return max(8 * 16 * (chunk + 8) * 4, exchanged)


def staged_columns(n: int) -> int:
    """`StagedRows::CHUNK` of device/staged_rows.cuh."""
    return n if n <= 80 else next((c for c in (64, 80, 48) if n % c == 0), 16)


def has_halves(n: int, k_warpgroups: int) -> bool:
    """Whether each of two warpgroups that share k finishes half of a wide tile's columns."""
    return k_warpgroups == 2 and n > 96


def swapped_staging_bytes(bm: int, bn: int, k_warpgroups: int) -> int:
    """Shared memory for the sums of a tile with swapped operands."""
    return k_warpgroups * bm * (bn + 4) * 4


def together_bytes(rows: int, k_warpgroups: int) -> int:
    """The same of `StagedTogether` (device/staged_together.cuh)."""
    chunk = 32 if k_warpgroups == 2 and rows % 32 == 0 else 16
    return (2 if k_warpgroups == 2 else 4) * chunk * 68 * 4


def image_bytes(positions: int, channels: int, images: int) -> int:
    """Of so many images (`GemmImage::PANEL_BYTES`)."""
    return images * tile_bytes(math.ceil(positions / 8) * 8, channels)


def parts_slot_bytes(bm: int, bn: int) -> int:
    """A slot of the family BF16X6: weights, and rows in place of which p0 and p1 come; p2."""
    return bn * 128 + bm * (128 + 64)


def left_staging_bytes(rows: int) -> int:
    """The same of `StagedColumns` (device/staged_columns.cuh). ``rows``: of a warpgroup."""
    return 8 * (32 if rows % 32 == 0 else 16) * 20 * 4
