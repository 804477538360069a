"""Ping-pong: tiles of wgmma that each warpgroup has for itself, one's epilogue beside the other's
products.

    warpgroup 0   products of task 0 | epilogue 0         | products of task 2 | epilogue 2 ...
    warpgroup 1                      | products of task 1 | epilogue 1         | ...

(So CUTLASS names it.) For epilogues that take as long as the products: an optimiser's step
reads and writes f32 weights and moments, 16 to 24 bytes for each sum. SGD with momentum behind a
gradient of 4096 x 4096, k = 2048, takes 132 us of an H200, and 181 where both share a tile; the
product alone takes 95, the bytes 64.

Beside other groups of a stage, whose tasks use shared memory differently, warpgroups would meet in
front of each task, and none would run ahead.

Where an epilogue reads less, or blocks have few tasks, sharing is faster: a tile's epilogue has
eight warps then, and the last one of a block is half as long. 2048x3072x768 takes 4 % longer so
with a gelu, 8 with a residual, 15 with silu(y) * x; alone it takes 2 % less.
"""

from __future__ import annotations

import math

from jaxmono.codegen.dot import DotCode
from jaxmono.codegen.dot_schedule import DotSchedule
from jaxmono.codegen.dot_wgmma_shared import (
    ALONE,
    LOW_BYTES,
    ROLES_BYTES,
    operand_bytes,
    shared_k_major,
    staging_bytes,
    widths,
)
from jaxmono.codegen.early_loads import reads
from jaxmono.codegen.operand import has_rows
from jaxmono.codegen.sig_code import Request
from jaxmono.fusion.plan import DotForm, Sig

_ROWS, _COLUMNS = 128, 128
_HEAVY_BYTES = 12
"""That an epilogue reads and writes for each sum, at least."""
_TASKS = 4
"""Of a multiprocessor, at least."""
_PADDED = 1.1
"""Rows, or columns, of all tiles at most, for each one of the result."""


def apart(sig: Sig, request: Request, s: DotSchedule) -> DotSchedule | None:
    """The tile to take in place of ``s``, the analytic choice; None where that is as good."""
    form = sig.form
    assert isinstance(form, DotForm)
    if s.family != "wgmma" or s.split_k > 1 or not request.alone \
            or _bytes(sig, form) < _HEAVY_BYTES:
        return None
    return tile(sig, request, s, _TASKS)


def tile(sig: Sig, request: Request, s: DotSchedule, least: int = 1) -> DotSchedule | None:
    """The tile, where a product that ``s`` is for can have it, and ``least`` of them for each
    multiprocessor."""
    form, code = sig.form, DotCode.of(sig, s)
    assert isinstance(form, DotForm)
    tasks = form.batch.size * request.siblings * math.ceil(form.m.size / _ROWS) \
        * math.ceil(form.n.size / _COLUMNS)
    padded = max(math.ceil(x / edge) * edge / x
                 for x, edge in ((form.m.size, _ROWS), (form.n.size, _COLUMNS)))
    if tasks < least * request.device.sm_count or padded > _PADDED:
        return None
    if code.element is None or code.element.itemsize != 2 or form.row_prologue or form.reduced \
            or form.pairs or form.taps > 1 or widths(code) != (16, 16) or not has_rows(code.lhs):
        return None
    of_a, of_b = shared_k_major(code)
    slot = operand_bytes(_ROWS, 64, of_a, 16) + operand_bytes(_COLUMNS, 64, of_b, 16)
    room = request.shared_bytes - ROLES_BYTES - LOW_BYTES - staging_bytes(_COLUMNS, 1)
    slots = min(room // slot, 2 * math.ceil(form.k.size / 64))
    return DotSchedule("wgmma", _ROWS, _COLUMNS, 64, slots, ALONE) if slots > 1 else None


def _bytes(sig: Sig, form: DotForm) -> int:
    """That the epilogue reads and writes of memory for each sum."""
    read = {v: v.type.dtype.itemsize for v, at in reads(sig.body, form.elements, form.dot.result)
            if all(any(i.depends_on(x) for i in at) for x in (form.m, form.n))}
    return sum(read.values()) + sum(sig.body.outputs[s.result].type.dtype.itemsize
                                    for s in form.elements)
