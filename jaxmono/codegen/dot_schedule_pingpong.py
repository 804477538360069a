"""Ping-pong: tiles of wgmma that each warpgroup has for itself, one's epilogue beside the other's
products.

    warpgroup 0   products of task 0 | epilogue 0         | products of task 2 | epilogue 2 ...
    warpgroup 1                      | products of task 1 | epilogue 1         | ...

(So CUTLASS names it.) For short products of large results that read nothing else: where both
warpgroups share a tile, the second one's epilogue is as long as five of its k tiles. 4096x3072x768
takes 30.3 us of an H200 in tiles of 128 x 192 (a thread has 192 sums, for which the producers have
40 registers), 32.7 where both share these or those of 128 x 256; with a bias 31.3 and 33.3, with a
gelu, of which the other's products hide less, 35.1 and 35.6 (`hidden`; 43 products, each tile:
benchmarks/results/2026-12-01-pingpong-h200). And for epilogues that take as long as the products:
an optimiser's step reads and writes f32 weights and moments, 16 to 24 bytes for each sum. SGD with
momentum behind a gradient of 4096 x 4096, k = 2048, takes 132 us of an H200, and 181 where both
share a tile; the product alone takes 95, the bytes 64 (`apart`).

Short products have them in kernels of their own. In one of many stages ptxas has too few registers
for 192 sums beside what attention and gathered rows need: all products waited for each other, BERT
and ViT-B/16 took 1.24 to 1.34 of their time; T5-base b16 1.04, b32 0.97, T5-small and CLIP as long
in tiles of 128 columns.

Beside other groups of a stage, whose tasks use shared memory differently, warpgroups would meet in
front of each task, and none would run ahead.

Where an epilogue reads something, but less than an optimiser's step, or blocks have few tasks,
sharing is faster: a tile's epilogue has eight warps then, and the last one of a block is half as
long. 4096x3072x768 takes 45 us with a residual, not 37.5.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

from jaxmono.codegen.dot import DotCode
from jaxmono.codegen.dot_schedule import FEW, DotSchedule
from jaxmono.codegen.dot_wgmma_leaves import bias_behind
from jaxmono.codegen.dot_wgmma_shared import (
    ALONE,
    LOW_BYTES,
    MAX_SLOTS,
    ROLES_BYTES,
    leaves_unstaged,
    operand_bytes,
    shared_k_major,
    staging_bytes,
    widths,
)
from jaxmono.codegen.early_loads import no_loads, reads
from jaxmono.codegen.instructions import instructions
from jaxmono.codegen.operand import has_rows
from jaxmono.codegen.sig_code import Request
from jaxmono.fusion import cost
from jaxmono.fusion.plan import DotForm, Sig

_ROWS, _COLUMNS = 128, 128
_HEAVY_BYTES = 12
"""That an epilogue reads and writes for each sum, at least."""
_TASKS = 4
"""Of a multiprocessor, at least."""
_AHEAD = 4
"""Tasks whose tiles producers may have requested."""
_PADDED = 1.1
"""Rows, or columns, of all tiles at most, for each one of the result."""
HIDDEN_US = {192: 0.75, 128: 0.35}
"""By how much a tile of so many columns takes less than where its warpgroups share it, but for the
last one of a block. Bare or with a bias, timed: 0.7 to 0.9 for most products and up to 1.9, 0.2 to
0.6 and up to 1.1."""
_HIDDEN_COMPUTED_US = {192: 0.25}
"""The same where more is computed of each sum than one operation: a gelu, whose instructions take
the other's place."""
_MOST_COMPUTED = 64
"""Instructions of an element, a gelu's: for more, or for two results, ptxas has too few registers
beside 192 sums (log(1 + exp(y)) sin(y) spilled 80 bytes)."""


def apart(sig: Sig, request: Request, s: DotSchedule) -> DotSchedule | None:
    """The tile to take in place of ``s``, the analytic choice; None where that is as good."""
    form = sig.form
    assert isinstance(form, DotForm)
    if s.family != "wgmma" or s.split_k > 1 or not request.alone \
            or _bytes(sig, form) < _HEAVY_BYTES:
        return None
    return tile(sig, request, s, _TASKS)


def hidden(sig: Sig, request: Request, us: float, s: DotSchedule,
           tiles: Sequence[tuple[float, DotSchedule]]) -> DotSchedule | None:
    """The tile to take in place of ``s``, the analytic choice, because the epilogues of all tiles
    but a block's last one are hidden; None where that is as good.

    Args:
      us: what ``s`` takes, in microseconds. tiles: its family's, with the same of each.
    """
    form = sig.form
    assert isinstance(form, DotForm)
    # Of few rows the weights' way from memory decides.
    if not (request.sole and request.alone) or form.m.size <= FEW or (us, s) not in tiles:
        return None
    best = None
    for columns in HIDDEN_US:
        own = tile(sig, request, s, columns=columns)
        if own is None or not leaves_unstaged(code := DotCode.of(sig, own)):
            continue
        shared = min((c for c, x in tiles if (x.bm, x.bn, x.split_k) == (_ROWS, columns, 1)
                      and x.warps == (2, 1, 1)), default=math.inf)
        waves = math.ceil(code.tasks * request.siblings / request.device.sm_count)
        faster = shared - _gain(code, columns) * (waves - 1)
        if faster < us:
            best, us = own, faster
    return best


def _gain(code: DotCode, columns: int) -> float:
    """Of a tile whose epilogue is hidden, in microseconds."""
    bias, body = bias_behind(code), code.sig.body
    result = bias.total if bias else code.form.dot.result
    if no_loads(body, code.form.elements, result) == "NoReads":
        return HIDDEN_US[columns]
    computed = instructions(body) - cost.weight(code.form.dot)
    small = computed <= _MOST_COMPUTED and len(code.form.elements) == 1
    return _HIDDEN_COMPUTED_US.get(columns, 0.0) if small else 0.0


def tile(sig: Sig, request: Request, s: DotSchedule, least: int = 1,
         columns: int = _COLUMNS) -> DotSchedule | None:
    """The tile, where a product that ``s`` is for can have it, and ``least`` of them for each
    multiprocessor."""
    form, code = sig.form, DotCode.of(sig, s)
    assert isinstance(form, DotForm)
    tasks = form.batch.size * request.siblings * math.ceil(form.m.size / _ROWS) \
        * math.ceil(form.n.size / columns)
    padded = max(math.ceil(x / edge) * edge / x
                 for x, edge in ((form.m.size, _ROWS), (form.n.size, columns)))
    if tasks < least * request.device.sm_count or padded > _PADDED:
        return None
    if code.element is None or code.element.itemsize != 2 or form.row_prologue or form.reduced \
            or form.pairs or form.taps > 1 or widths(code) != (16, 16) or not has_rows(code.lhs):
        return None
    of_a, of_b = shared_k_major(code)
    slot = operand_bytes(_ROWS, 64, of_a, 16) + operand_bytes(columns, 64, of_b, 16)
    alone = DotSchedule("wgmma", _ROWS, columns, 64, 2, ALONE)
    staging = 0 if leaves_unstaged(DotCode.of(sig, alone)) else staging_bytes(columns, 1)
    room = request.shared_bytes - ROLES_BYTES - LOW_BYTES - staging
    slots = min(room // slot, MAX_SLOTS, _AHEAD * math.ceil(form.k.size / 64))
    return replace(alone, stages=slots) if slots > 1 else None


def _bytes(sig: Sig, form: DotForm) -> int:
    """That the epilogue reads and writes of memory for each sum."""
    read = {v: v.type.dtype.itemsize for v, at in reads(sig.body, form.elements, form.dot.result)
            if all(any(i.depends_on(x) for i in at) for x in (form.m, form.n))}
    return sum(read.values()) + sum(sig.body.outputs[s.result].type.dtype.itemsize
                                    for s in form.elements)
