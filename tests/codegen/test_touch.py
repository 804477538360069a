"""Requests into the L2 for later stages: how much, of what, and where they stand in the text."""

from __future__ import annotations

import itertools
import re
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from contraction_harness import build, check_exact, plan_of, small_integers
from jax import lax

from jaxmono.codegen import cuda_target, dot_schedule_gemv, touch
from jaxmono.codegen.generate import default_schedule, emit
from jaxmono.fusion.plan import Device, Plan

H200 = Device()
BF16 = jnp.bfloat16


def layers(count: int, d: int, wide: int) -> Plan:
    """Per layer: a projection, its halves exchanged into a cache (a loop of its own), a wide
    contraction of the row that was written, and one back."""
    def fn(x: Any, pos: Any, caches: Any, ws: Any) -> Any:
        out = []
        for cache, (q, up, down) in zip(caches, ws, strict=True):
            y = x @ q
            y = jnp.concatenate([y[:, d // 2:], y[:, :d // 2]], axis=-1)
            out.append(lax.dynamic_update_slice(cache, y, (pos, 0)))
            x = jnp.clip(out[-1][:1] @ up, -1, 1) @ down
        return x, out

    def spec(*shape: int) -> Any:
        return jax.ShapeDtypeStruct(shape, BF16)

    weights = [(spec(d, d), spec(d, wide), spec(wide, d))] * count
    return plan_of(fn, spec(1, d), jax.ShapeDtypeStruct((), jnp.int32), [spec(4, d)] * count,
                   weights, device=H200)


CALL = re.compile(r"touch_l2<(\d+), 256>\(.*, (\d+), (\d+), (\d+), (\d+)\);")


def test_a_stage_that_leaves_memory_idle_asks_for_the_stream_behind_it() -> None:
    plan = layers(6, 2048, 16384)
    text = emit(plan, cuda_target("sm_90a"), H200, "k").source
    lines = text[text.index('extern "C"'):].splitlines()
    found = [(i, [int(x) for x in m.groups()]) for i, text in enumerate(lines)
             if (m := CALL.search(text))]
    # In front of the loop over the cache and of the projection, whose weights are all in its ring.
    assert found
    by_weights: dict[str, list[list[int]]] = {}
    for i, (chunk, size, first, last, total) in found:
        assert chunk == touch.CHUNK and size == 2 * 2048 * 16384
        assert 0 <= first < last <= total and total * chunk <= size // 2
        assert (last - first) * chunk <= touch.BUDGET
        at = next(k for k in range(i, 0, -1) if re.search("grid_(arrive|wait)", lines[k]))
        assert "grid_arrive" in lines[at]  # after the block has arrived: nobody waits for it
        name = re.search(r"stage\d+_\d+", lines[i])
        assert name is not None
        by_weights.setdefault(name[0], []).append([first, last, total])
    for parts in by_weights.values():  # together every chunk once
        assert sorted(x for a, b, _ in parts for x in range(a, b)) == list(range(parts[0][2]))


def test_chunks_lie_evenly_and_inside() -> None:
    """As device/touch.cuh counts."""
    for size, total in ((33554432, 1024), (1 << 20, 100), (70 * 8192 + 5, 35)):
        chunks = size // touch.CHUNK
        at = [i * chunks // total for i in range(total)]
        assert len(set(at)) == total and (max(at) + 1) * touch.CHUNK <= size
        assert max(b - a for a, b in itertools.pairwise(at)) <= -(-chunks // total)


def test_small_weights_are_not_requested_twice() -> None:
    """All of them are in the rings."""
    text = emit(layers(6, 512, 1024), cuda_target("sm_90a"), H200, "k").source
    assert not CALL.search(text)


def test_it_computes_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(touch, "BUDGET", 8 * touch.CHUNK)
    monkeypatch.setattr(dot_schedule_gemv, "_RING_BYTES", 32 * 1024)
    plan = layers(4, 64, 2048)
    given = small_integers(plan.graph, high=1)
    given[1] = np.asarray(0, np.int32)
    for i, v in enumerate(plan.graph.inputs):
        if v.type.dims == (2048, 64):  # sums of all layers stay below 256
            given[i][np.arange(2048) % 32 != 0] = 0
    sigs = default_schedule(plan, cuda_target("sm_90a"), Device(sm_count=2)).sigs
    program = build(plan, dict(sigs), threads=256)
    assert CALL.search(program.source[program.source.index('extern "C"'):])
    check_exact(plan, program, inputs=given, seeds=(0, 1), blocks=(1, 3))
