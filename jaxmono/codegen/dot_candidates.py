"""Schedules of a contraction that are worth measuring, by the hardware's own rules.

As Bolt does (section 3.2.2): every tile that is legal is ranked by the analytic model of its
family, and a few tens of different ones go to the profiler. Large warp tiles, eight warps, rings
as deep as shared memory allows and tiles small enough to occupy every SM are what the families'
enumerations and models already know.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Sequence

from jaxmono.codegen import (
    dot_function,
    dot_gemv_shape,
    dot_schedule_pingpong,
    dot_schedule_swapped,
    dot_wgmma,
    dot_wgmma_shared,
    dot_wgmma_takes,
)
from jaxmono.codegen.dot import (
    DotCode,
    any_stream,
    any_tile,
    exact_tiles,
    fma_type,
    matrix_flops,
    operand_type,
    picked_time,
    weights_k_major,
)
from jaxmono.codegen.dot_schedule import FEW, DotSchedule, candidates_mma, choose_simt
from jaxmono.codegen.dot_schedule_bf16x6 import candidates_bf16x6
from jaxmono.codegen.dot_schedule_bytes import candidates_bytes
from jaxmono.codegen.dot_schedule_fma import FMA
from jaxmono.codegen.dot_schedule_gemv import (
    LATENCY_US,
    STREAM,
    blocks_of,
    candidates_gemv,
)
from jaxmono.codegen.dot_schedule_image import candidates_image
from jaxmono.codegen.dot_schedule_tf32 import MOST_BLOCKS, candidates_tf32
from jaxmono.codegen.dot_schedule_wgmma import candidates_wgmma, choose_wgmma
from jaxmono.codegen.group_scales import extent_of
from jaxmono.codegen.image import Image, image_of, takes_image
from jaxmono.codegen.operand import PIECE_BYTES, has_rows, is_unaligned
from jaxmono.codegen.sig_code import Request
from jaxmono.fusion.plan import DotForm, Sig
from jaxmono.hlo.types import DType

LIMIT = 24
"""Most candidates of one Sig, the analytic choice included."""
_SPREAD = 2.5
"""A model may be wrong by this factor; what it thinks is slower than that is not measured."""
_ALIKE = 2
"""Most candidates of one family with the same tile: they differ in k tile, warps or split."""

_AHEAD_US = 1.0
"""What producer warps bring before a grid barrier opens, that the models of few rows count: without
it models at batch 1 with 49 to 128 rows took 2 to 9 % longer (BERT, CLIP, T5), where mma took over
from wgmma; a product alone is faster so. Swapped operands get none of it: with them OPT-125M
b16 (64 rows) took 5 % longer."""

_MAP_US = 1.0
"""Of the times of f32 products alone whose rows the tensor memory accelerator brings, what a block
takes to write its tensor map: behind a grid barrier it has one before the barrier opens. BERT-base
b1 takes 5.7 % less time with it than where these times are compared as they are, the T5-base
encoder b1 6.2, ViT-B/16 b1 4.5; models at batch 16 as long."""

_APART_COLUMNS = (128,)
"""Of tiles whose warpgroups have tasks of their own, in kernels of several stages: for more ptxas
has too few registers there."""

_PICKED = 3.0
"""How much longer a stream of weights takes whose rows begin anywhere: threads pick their elements.
1x50257x768 takes 93 us on an H100, 26 by the model."""

Costed = tuple[float, DotSchedule]


def room(request: Request) -> int:
    """Shared memory of a family without producers: where a kernel has some for another Sig, their
    state lies behind that of all tasks."""
    return request.shared_bytes - (dot_wgmma_shared.ROLES_BYTES if request.wgmma else 0)


def dot_candidates(sig: Sig, request: Request, choice: DotSchedule) -> tuple[DotSchedule, ...]:
    """``choice``, which is the analytic one, and what else may be faster; all legal."""
    form = sig.form
    assert isinstance(form, DotForm)
    if form.reduced or form.pairs:
        return finishing(sig, request)
    skinny = gemv_candidates(sig, request)
    if operand_type(form) is None:
        return varied(choice, [skinny, _exact(sig, request), bf16x6_candidates(sig, request)])
    if choice.family == dot_wgmma_shared.IMAGE and not dot_wgmma_shared.comes(any_tile(sig).lhs):
        return varied(choice, [image_candidates(sig, request)])  # others compute each element often
    tiles = _tiles(sig, request)
    return varied(choice, [*tiles, *_apart(sig, request, tiles), image_candidates(sig, request),
                           tf32_candidates(sig, request), swapped_candidates(sig, request),
                           bytes_candidates(sig, request), skinny])


def _apart(sig: Sig, request: Request, tiles: Sequence[Sequence[Costed]]) -> list[list[Costed]]:
    """Those whose warpgroups have tasks of their own."""
    if not request.alone or len(tiles) < 2 or not tiles[1]:
        return []
    cost, s = tiles[1][0]
    found = (dot_schedule_pingpong.tile(sig, request, s, columns=c)
             for c in (dot_schedule_pingpong.HIDDEN_US if request.sole else _APART_COLUMNS))
    return [[(cost, alone)] for alone in found if alone is not None]


def finishing(sig: Sig, request: Request) -> tuple[DotSchedule, ...]:
    """The same for an epilogue that reduces or pairs columns, of the families that can; the
    analytic one first."""
    form = sig.form
    assert isinstance(form, DotForm)
    exact = operand_type(form) is None
    families = [[x for x in found if _cannot_finish(sig, x[1]) is None]
                for found in ([_exact(sig, request)] if exact else _tiles(sig, request))]
    if not any(families):
        s = choose_simt(form.m.size, form.n.size, request.threads)
        assert _cannot_finish(sig, s) is None  # 16 or 64 columns
        return (s,)
    _, choice = min((f[0] for f in families if f), key=lambda x: x[0])
    return varied(choice, families)


def _exact(sig: Sig, request: Request) -> list[Costed]:
    form = sig.form
    assert isinstance(form, DotForm)
    return exact_tiles(form, request.device, warps=request.threads // 32,
                       shared_bytes=room(request), siblings=request.siblings)


def _cannot_finish(sig: Sig, s: DotSchedule) -> str | None:
    family = dot_wgmma if s.family == "wgmma" else dot_function
    return family.cannot_finish(DotCode.of(sig, s))


def _tiles(sig: Sig, request: Request) -> list[list[Costed]]:
    """What the families of tensor-core tiles can do for a Sig, each cheapest first."""
    form = sig.form
    assert isinstance(form, DotForm)
    t = operand_type(form)
    assert t is not None
    batch = form.batch.size * request.siblings
    m, n, k = form.m.size, form.n.size, form.k.size
    picked = picked_time(sig)
    families: list[list[Costed]] = [[(cost * picked, s) for cost, s in candidates_mma(
        batch, m, n, k, t.itemsize, device=request.device, warps=request.threads // 32,
        shared_bytes=room(request), row_prologue=form.row_prologue, flops=matrix_flops(t),
        k_major=weights_k_major(sig))]]
    if families[0]:
        families.append(wgmma_candidates(sig, request))
    return families


def wgmma_candidates(sig: Sig, request: Request) -> list[Costed]:
    """What the wgmma family can do for a Sig, cheapest first."""
    form, code = sig.form, any_tile(sig)
    assert isinstance(form, DotForm)
    t = operand_type(form)
    if t is None or not request.wgmma \
            or dot_wgmma_takes.takes(form, code, code.element) is not None:
        return []
    return candidates_wgmma(
        form.batch.size * request.siblings, form.m.size, form.n.size, form.k.size, t.itemsize,
        device=request.device, shared_bytes=request.shared_bytes, row_prologue=form.row_prologue,
        k_major=dot_wgmma_shared.shared_k_major(code), gathered=not has_rows(code.lhs),
        behind=request.behind, beside=request.mixed, widths=dot_wgmma_shared.widths(code))


def ahead_us(request: Request, rows: int, *, gathered: bool) -> float:
    """By how much wgmma is faster against mma than the models say, which were fitted to products
    alone, of rows that lie one behind the other."""
    return _AHEAD_US if (request.behind or gathered) and rows <= FEW else 0.0


def mapped_ahead_us(request: Request, rows: int) -> float:
    """By how much rows by the accelerator are faster against wgmma than the models say. Gathered
    ones have no map anywhere, and are behind a barrier: a stage has rounded them."""
    return (_MAP_US if request.behind else 0.0) + ahead_us(request, rows, gathered=False)


def late_us(sig: Sig, request: Request, s: DotSchedule) -> float:
    """The same for a schedule that was timed alone: what it takes longer in its model."""
    form = sig.form
    assert isinstance(form, DotForm)
    if s.family == dot_wgmma_shared.TF32:
        mapped = not dot_wgmma_takes.is_gathered(DotCode.of(sig, s))
        return -_MAP_US if request.behind and mapped else 0.0
    late = s.family == "mma" or (s.family == FMA and bool(bf16x6_candidates(sig, request)))
    return ahead_us(request, form.m.size, gathered=False) if late else 0.0


def _weight_bits(sig: Sig) -> int:
    """Of an element of the right operand in memory."""
    form = sig.form
    assert isinstance(form, DotForm)
    return (any_stream(sig).rhs.stored or form.dot.rhs.type.dtype).bits


def gemv_candidates(sig: Sig, request: Request) -> list[Costed]:
    """What the gemv family can do for a Sig, cheapest first."""
    form = sig.form
    assert isinstance(form, DotForm)
    t = fma_type(form)
    if t is None or dot_gemv_shape.takes(form) is not None:
        return []
    batch, m, n, k = form.batch.size, form.m.size, form.n.size, form.k.size
    own = (batch, n, k)
    code = any_stream(sig)
    picked = _PICKED if is_unaligned(code.rhs) else 1.0
    return [(cost * picked, s) for cost, s in candidates_gemv(
        batch, m, n, k, _weight_bits(sig), k_major=code.rhs.k_major, device=request.device,
        threads=request.threads, x_itemsize=t.itemsize,
        shared_bytes=room(request),
        blocks=blocks_of(own, request.stage or (own,), request.device.sm_count),
        row_prologue=form.row_prologue, behind=request.behind, sole=request.sole,
        scales=extent_of(code))]


def swapped_candidates(sig: Sig, request: Request) -> list[Costed]:
    """What wgmma can do for a Sig with the weights on its left, cheapest first."""
    form = sig.form
    assert isinstance(form, DotForm)
    batch, m, n, k = form.batch.size, form.m.size, form.n.size, form.k.size
    if not request.wgmma or m > dot_schedule_swapped.MAX_ROWS:
        return []
    code = DotCode.of(sig, DotSchedule(dot_wgmma_shared.SWAPPED, 64, 64, 64, 2, (1, 1, 2)))
    if dot_wgmma_takes.takes_swapped(form, code, code.element) is not None:
        return []
    own, sms = (batch, n, k), request.device.sm_count
    widths = dot_wgmma_shared.widths(code)
    if m <= dot_schedule_swapped.FEW_ROWS and widths[1] > 2 \
            and stage_bytes(sig, request) < dot_schedule_swapped.FEW_BYTES:
        return []
    return dot_schedule_swapped.candidates_swapped(
        batch, m, n, k, device=request.device, shared_bytes=request.shared_bytes,
        k_major=(code.lhs.k_major, code.rhs.k_major), computed=not dot_wgmma_shared.comes(code.lhs),
        widths=widths,
        blocks=min(blocks_of(own, request.stage or (own,), sms), max(sms // request.siblings, 1)))


def tf32_candidates(sig: Sig, request: Request) -> list[Costed]:
    """What wgmma can do for a Sig of f32 with the weights on its left, cheapest first."""
    form = sig.form
    assert isinstance(form, DotForm)
    if not request.wgmma or form.reduced or operand_type(form) is not DType.F32 \
            or request.device.sm_count > MOST_BLOCKS:
        return []
    code = DotCode.of(sig, DotSchedule(dot_wgmma_shared.TF32, 64, 128, 32, 2, (1, 2, 1)))
    if dot_wgmma_takes.takes_tf32(form, code, code.element) is not None:
        return []
    return candidates_tf32(request.siblings, form.m.size, form.n.size, form.k.size,
                           device=request.device, shared_bytes=request.shared_bytes,
                           width=dot_wgmma_shared.widths(code)[1])


def image_candidates(sig: Sig, request: Request) -> list[Costed]:
    """What wgmma can do for a convolution whose image stays in shared memory, cheapest first.

    Beside other contractions, whose tasks use shared memory differently, a block's roles meet
    between its tasks: there only with few of them (Inception v3 b32 took 6 % longer with others,
    GoogLeNet b32 as long, b1 6 % less).
    """
    form, code = sig.form, any_tile(sig)
    assert isinstance(form, DotForm)
    if not request.wgmma:
        return []
    if takes_image(sig, code.element) is not None or code.rhs.param is None \
            or code.rhs.width < PIECE_BYTES or code.rhs.ragged:
        return []
    image = image_of(sig)
    assert isinstance(image, Image)
    found = candidates_image(image, request.siblings, form.n.size, device=request.device,
                             shared_bytes=request.shared_bytes, k_major=code.rhs.k_major,
                             behind=request.behind, alone=not request.mixed)
    if not request.mixed or not dot_wgmma_shared.comes(code.lhs):
        return found
    few = request.device.sm_count // 2
    return [(cost, s) for cost, s in found
            if DotCode.of(sig, s).tasks * request.siblings <= few]


def image_bound(sig: Sig, request: Request, family: str, cost: float) -> float:
    """What such an image has to beat where another family takes ``cost`` microseconds by its model:
    of gathered rows, what they would take if they lay one behind the other."""
    form, code = sig.form, any_tile(sig)
    assert isinstance(form, DotForm)
    if not dot_wgmma_shared.comes(code.lhs):
        return math.inf  # each element would be computed for every tap
    if family != "wgmma":
        return cost
    dense = choose_wgmma(
        form.batch.size * request.siblings, form.m.size, form.n.size, form.k.size,
        device=request.device, shared_bytes=request.shared_bytes, row_prologue=False,
        k_major=dot_wgmma_shared.shared_k_major(code), behind=request.behind, beside=request.mixed)
    return cost if dense is None else dense[0]


def bytes_candidates(sig: Sig, request: Request) -> list[Costed]:
    """What wgmma can do for a Sig whose weights are stored as bytes, or f32 that are rounded,
    cheapest first."""
    form = sig.form
    assert isinstance(form, DotForm)
    if not request.wgmma or form.reduced or operand_type(form) is None:
        return []
    code = DotCode.of(sig, DotSchedule(dot_wgmma_shared.BYTES, 64, 128, 64, 2, (1, 2, 1)))
    if dot_wgmma_takes.takes_bytes(form, code) is not None:
        return []
    if code.rhs.stored is DType.F32 and not request.rounds:
        return []
    assert code.element is not None and code.rhs_element is not None
    return candidates_bytes(form.batch.size * request.siblings, form.m.size, form.n.size,
                            form.k.size, code.element.itemsize, device=request.device,
                            shared_bytes=request.shared_bytes,
                            computed=not dot_wgmma_shared.comes(code.lhs),
                            row_prologue=form.row_prologue, bits=code.rhs_element.bits)


def bf16x6_candidates(sig: Sig, request: Request) -> list[Costed]:
    """What wgmma can do for a Sig of f32 that has to be exact, cheapest first."""
    form = sig.form
    assert isinstance(form, DotForm)
    if not request.wgmma or form.reduced or operand_type(form) is not None \
            or fma_type(form) is not DType.F32:
        return []
    code = DotCode.of(sig, DotSchedule(dot_wgmma_shared.BF16X6, 64, 128, 32, 3, (1, 2, 1)))
    if dot_wgmma_takes.takes_bf16x6(form, code) is not None:
        return []
    return candidates_bf16x6(form.batch.size * request.siblings, form.m.size, form.n.size,
                             form.k.size, device=request.device,
                             shared_bytes=request.shared_bytes,
                             width=dot_wgmma_shared.widths(code)[1])


def swapped_bound(sig: Sig, request: Request, family: str, cost: float) -> float:
    """What swapped operands have to beat where another family takes ``cost`` microseconds by its
    model: never less than its stream in a whole model."""
    stream = dot_schedule_swapped.stream_us(family, stage_bytes(sig, request), request.device)
    return dot_schedule_swapped.GAIN * max(cost, stream)


def gemv_bound(sig: Sig, request: Request, cost: float) -> float:
    """What the gemv family has to beat, in microseconds, where another family takes ``cost``.

    That is never less than the time in which the weights of the stage can be read.
    """
    return max(cost, 1.1 * (LATENCY_US + stage_bytes(sig, request) / (
        STREAM * request.device.read_bytes_per_us)))


def stage_bytes(sig: Sig, request: Request) -> int:
    """Bytes of weights in the stage of a Sig, if all have the type of its own."""
    form = sig.form
    assert isinstance(form, DotForm)
    own = (form.batch.size, form.n.size, form.k.size)
    size = sum(b * n * k for b, n, k in request.stage or (own,))
    return size * _weight_bits(sig) // 8


def varied(choice: DotSchedule, families: Iterable[list[Costed]]) -> tuple[DotSchedule, ...]:
    """``choice`` and the cheapest different ones of every family, at most `LIMIT` in all.

    Args:
      families: each with times in the model, cheapest first.
    """
    present = [f for f in families if f]
    if not present:
        return (choice,)
    bound = _SPREAD * min(f[0][0] for f in present)
    each = (LIMIT - 1) // len(present)
    out: list[Costed] = []
    for family in present:
        alike: Counter[tuple[int, int]] = Counter()
        taken = 0
        for cost, s in family:
            if taken == each or cost > bound:
                break
            if s == choice or alike[s.bm, s.bn] == _ALIKE:
                continue
            alike[s.bm, s.bn] += 1
            taken += 1
            out.append((cost, s))
    return (choice, *(s for _, s in sorted(out, key=lambda x: x[0])))
