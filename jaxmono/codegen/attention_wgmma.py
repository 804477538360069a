"""Softmax attention on Hopper's wgmma (device/attention_wgmma.cuh): its text and schedules.

    NAME_load   producer warps: Q, then K and V chunk by chunk
    NAME        consumer warps: products, softmax, epilogue

Both decode the task alike and walk the ring alike; `Place` is where they are in it.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from jaxmono.codegen.attention import AttentionCode, AttentionSchedule
from jaxmono.codegen.attention_cost import (
    CLOCKS_PER_US,
    GLOBAL,
    LOAD,
    Keys,
    cheapest,
    keys_of,
    total_us,
)
from jaxmono.codegen.attention_flash import (
    emit_finish,
    emit_loaders,
    emit_task,
    out_bytes,
)
from jaxmono.codegen.attention_logits import emit_logits, emit_range
from jaxmono.codegen.dot_wgmma_shared import CONSUMERS, LOW_BYTES, MAX_SLOTS, ROLES_BYTES
from jaxmono.codegen.emit import c_type
from jaxmono.codegen.writer import Writer
from jaxmono.fusion.key_range import Numbers
from jaxmono.fusion.plan import AttentionForm, Device, Sig
from jaxmono.hlo.ir import Value

_WARPS = CONSUMERS // 32
_TEXT = 80
"""Keys of a chunk that has them all: of CLIP's 77 tokens. For 4096 queries of 16 heads of 40, of
1024 of 80, 0.90 and 0.97 of the time of two or three chunks."""
_REGISTERS = 200
"""Of a consumer, for scores, probabilities and sums: heads of 256 go to the other family."""


# ---- schedule ----------------------------------------------------------------------------------


def schedule(sig: Sig, device: Device, *, shared_bytes: int,
             siblings: int = 1) -> tuple[float, AttentionSchedule] | None:
    """The fastest in the model with its microseconds; None if the family cannot take the Sig."""
    return cheapest(sig, device, siblings, model_us,
                    lambda form: candidates(sig, form, shared_bytes=shared_bytes),
                    lambda s: (s.group, s.split, -s.bq, -s.stages, -s.chunk))


def candidates(sig: Sig, form: AttentionForm, *, shared_bytes: int) -> Iterator[AttentionSchedule]:
    """Legal schedules: operands are copied, registers and shared memory suffice.

    ``form``: that of the Sig, or a grouped one.
    """
    code = AttentionCode.of(sig, AttentionSchedule(64, 128, 2, _WARPS, "wgmma"))
    if any(x.param is None for x in (code.q, code.k, code.v)):
        return
    slices = code.k.k_major and not code.v.k_major  # along the keys, at any multiple of 16
    keys = keys_of(sig.body, form)
    for bq in (64, 128):
        share = 128 // bq
        for cols in (32, 64, _TEXT, 128, 176):
            chunk = cols * share
            if cols == _TEXT and not (share == 1 and 64 < form.n.size <= _TEXT):
                continue
            if chunk >= 2 * math.ceil(form.n.size / 16) * 16 and cols > 32:
                continue
            if share == 2 and cols % 64 and not slices:
                continue
            for split in (1, 2, 4, 8, 16, 32):
                chunks = math.ceil(form.n.size / chunk)
                if split > 1 and chunks <= (split - 1) * math.ceil(chunks / split):
                    continue
                for slots in (8, 6, 4, 3, 2):
                    s = AttentionSchedule(bq, chunk, slots, _WARPS, "wgmma", split)
                    if registers(form, s, keys) <= _REGISTERS \
                            and shared_bytes_of(form, s) <= shared_bytes - ROLES_BYTES:
                        yield s
                        break


def registers(form: AttentionForm, s: AttentionSchedule, keys: Keys) -> int:
    """Of a consumer thread: scores, probabilities, sums, the rest (from what does not spill)."""
    cols = s.chunk * s.bq // 128
    rest = {"": 36, "range": 44, "any": 58}[keys.mask] if keys.simple else 58
    if keys.simple and keys.mask == "any" and form.n.size % s.chunk:
        rest += 16  # places in the mask are then limited one by one
    places = 1
    if keys.simple and _narrow(form) and form.n.size > s.chunk:
        places, rest = 2, min(rest, 40)  # of 128 keys; no mask was seen to spill then
    return cols * (2 + places) // 4 + _round(form.v.size) // 2 + rest


def model_us(form: AttentionForm, s: AttentionSchedule, device: Device, siblings: int,
             keys: Keys) -> float:
    """Microseconds of all tasks. Clocks of a chunk (of a warpgroup: 64 rows and ``cols`` keys):

    tensor   products of both warpgroups
    lanes    exponentials of both: 16 a clock; or their instructions, 4 a clock
    chain    one warpgroup alone: scores -> maximum -> exponentials -> probabilities
    load     K and V out of L2

    In the middle the longest of these; of narrow heads (`NARROW`) as measured: tensor and two
    thirds of lanes one after the other, or a longer chain (chunks of 64, 96, 128 and 176 keys took
    0.70, 0.90, 1.06 and 1.42 us; 128 take 0.98 since weights have two places). The first scores and
    the last values run under nothing. Not faster than global memory gives all operands once; with a
    single chunk, K and V of the next task are on their way before its queries have a place, but
    wide heads wait for all of it (128 keys of 512 heads of 128 take 5 % less time as two chunks).

    Constants of wide heads are from 128: 512 keys b16 took 136 us in chunks of 64, 128 in chunks of
    128 (causal 102, 99), 2048 keys 2116 and 1891 (1180, 1106); 512 keys b1 11.2 and 11.5 us (11.8,
    12.3; by 64 rows 12.5).
    """
    d, dv = _round(form.k.size), _round(form.v.size)
    cols = s.chunk * s.bq // 128
    # 1760 multiplications a clock were measured, and 128 bytes a clock come out of shared memory.
    scores = max(128 * cols * d / 1760, (64 + cols) * d * 4 / 128)
    values = max(128 * cols * dv / 1760, cols * dv * 4 / 128)
    narrow = _narrow(form)
    each = 4.5 if keys.simple else 9.0  # instructions an element
    lanes = max(8.0 * cols, (cols / 2 * each + (90 if narrow else 180)) * 2)
    chain = scores / 2 + 5.5 * cols + (each - 4.5) * cols / 2 + (680 if narrow else 350)
    load = s.chunk * (d + dv) * 2 / LOAD
    moved = (s.bq + form.n.size * min(1.0, s.bq / form.m.size)) * (d + dv) * 2 / GLOBAL
    end = s.bq * dv / 128 * 4 + ((250 if narrow else 1200) if s.bq == 64 else 100)
    if s.split > 1:
        end += 2500 + s.bq * dv * 8 / 20

    def clocks(chunks: Numbers) -> Numbers:
        busy = scores + values + (lanes * 2 / 3 if narrow else 250)
        middle = max(busy, lanes, chain, load)
        once = (scores + lanes + values) * (1.3 if narrow else 1.0) + 300
        return np.maximum(chunks - 1, 0) * middle + max(once, load) + 250 + end

    tiles = form.batch.size * siblings * math.ceil(form.m.size / s.bq)
    late = (500 if narrow else 0) if form.n.size > s.chunk else 0 if narrow else 450
    least = tiles / device.sm_count * (moved + late)
    start = 2000 if narrow else 1100 + s.chunk * d * 2 / GLOBAL
    return max(total_us(form, s, device, siblings, keys, clocks, start), least / CLOCKS_PER_US)


def _narrow(form: AttentionForm) -> bool:
    """As `NARROW` of device/attention_wgmma.cuh."""
    return _round(form.k.size) <= 64 and _round(form.v.size) <= 64


def _round(x: int) -> int:
    return math.ceil(x / 16) * 16


def shared_bytes_of(form: AttentionForm, s: AttentionSchedule) -> int:
    """Upper bound over the possible operand layouts, what lies below the tiles included."""
    d, dv = _round(form.k.size), _round(form.v.size)

    def tile(rows: int, cols: int) -> int:
        return max(a * 128 * math.ceil(b / 64) for a, b in ((rows, cols), (cols, rows)))

    share = 128 // s.bq
    stats = share * s.bq * 8 if share > 1 else 0
    tiles = tile(s.bq, d) + s.stages * max(tile(s.chunk, d), tile(s.chunk, dv))
    return LOW_BYTES + tiles + stats + out_bytes(dv // 8, _WARPS, share > 1 or s.split > 1)


# ---- text --------------------------------------------------------------------------------------


def _emit_begin(w: Writer, code: AttentionCode) -> None:
    s = code.s
    assert s.stages < MAX_SLOTS
    emit_task(w, code, f"FlashWgmma<{c_type(code.element)}, {s.bq // 64}",
              shared_bytes_of(code.form, s) - LOW_BYTES)


def emit_load(w: Writer, code: AttentionCode, *, pointers: Mapping[Value, str],
              read_only: Sequence[Value]) -> None:
    """The producers' statements for one task (see `dot_wgmma.emit_load`)."""
    _emit_begin(w, code)
    w.line("roles->await_open(at);")
    emit_range(w, code, pointers, read_only, visible=False)
    emit_loaders(w, code, pointers, read_only)
    w.line("A::produce(smem, roles, at, m0, first, last, load_q, load_k, load_v);")
    w.line("return at;")


def emit_body(w: Writer, code: AttentionCode, *, pointers: Mapping[Value, str],
              outputs: Sequence[str], read_only: Sequence[Value], workspace: str = "",
              arrivals: str = "") -> None:
    """The consumers' statements for one task; in scope: ``task``, ``smem``, ``roles``, ``at``."""
    _emit_begin(w, code)
    emit_range(w, code, pointers, read_only)
    emit_logits(w, code, pointers, read_only)
    w.line("A::Rows rows;")
    w.line("A::consume(smem, roles, at, rows, first, last, logits);")
    emit_finish(w, code, pointers, outputs, read_only, workspace, arrivals)
    w.line("return at;")
