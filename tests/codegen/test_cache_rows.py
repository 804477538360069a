"""Decode attention over a cache as it was, new rows in their places (fusion/cache_rows.py)."""

from __future__ import annotations

import importlib
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from contraction_harness import build, plan_of
from harness import run_program

from jaxmono.codegen import cuda_target, generate
from jaxmono.codegen.kernel import Kernel
from jaxmono.codegen.program import Program
from jaxmono.fusion.interp import run_plan
from jaxmono.fusion.plan import Device, Plan
from jaxmono.hlo import ops
from jaxmono.hlo.interp import evaluate

generating = importlib.import_module("jaxmono.codegen.generate")
Spec = jax.ShapeDtypeStruct
BF16, F32, S32 = jnp.bfloat16, jnp.float32, jnp.int32
HEADS, WIDTH, KEYS = 2, 16, 24


def attend(x: Any, k: Any, v: Any, pos: Any, new: int) -> Any:
    q = x.reshape(-1, *k.shape[1:])
    scores = jnp.einsum("mhd,nhd->hmn", q, k, preferred_element_type=F32)
    scores = jnp.where(jnp.arange(KEYS)[None, None] <= pos + new - 1, scores, -1e30)
    p = jax.nn.softmax(scores, -1).astype(x.dtype)
    return jnp.einsum("hmn,nhd->mhd", p, v).reshape(x.shape)


def decoder(layers: int = 3, new: int = 1, *, width: int = WIDTH, queries: int = 1,
            also: str = "") -> Plan:
    """Attention and a product a layer, keys and values of ``new`` rows into caches; ``queries``:
    that each row has in turn."""
    def step(caches: Any, x: Any, pos: Any, first: Any, *weights: Any) -> Any:
        out = []
        x = jnp.tanh(x @ first)  # no layer reads an input
        for (k, v), w in zip(caches, weights, strict=True):
            row = jnp.tanh(x @ w)
            # rolled, so that keys and values are no result of the product as they are
            rows = [jnp.roll(row, n, -1).reshape(new, HEADS, width) for n in (1, 2)]
            k, v = (jax.lax.dynamic_update_slice(c, r, (pos, 0, 0))
                    for c, r in zip((k, v), rows, strict=True))
            out.append((k, v))
            x = x + attend(jnp.tile(row, (queries, 1)), k, v, pos, new)[:new]
            if also == "sum":
                x = x + (jnp.sum(k.astype(F32)) / 1000).astype(x.dtype)
        return jnp.tanh(x @ first.T / 8), out  # nor writes an output

    cache = Spec((KEYS, HEADS, width), BF16)
    wide = HEADS * width
    return plan_of(step, [(cache, cache)] * layers, Spec((new, 48), BF16), Spec((), S32),
                   Spec((48, wide), BF16), *[Spec((wide, wide), BF16)] * layers)


def given(plan: Plan, pos: int, new: int = 1) -> list[np.ndarray[Any, Any]]:
    """Random; NaN in the rows of the caches that are replaced."""
    rng = np.random.default_rng(pos)
    out = []
    for v in plan.graph.inputs:
        if v.type.rank == 0:
            out.append(np.asarray(pos, np.int32))
            continue
        x = rng.standard_normal(v.type.dims, np.float32) * 0.5
        if v.type.rank == 3:
            first = min(max(pos, 0), KEYS - new)
            x[first:first + new] = np.nan
        out.append(x.astype(v.type.dtype.numpy))
    return out


def check(plan: Plan, program: Program, pos: int, new: int = 1, seed: int = 0,
          blocks: int = 3) -> None:
    inputs = given(plan, pos, new)
    wanted = evaluate(plan.graph, inputs)
    for a, b in zip(run_program(program, inputs, blocks=blocks, seed=seed), wanted, strict=True):
        np.testing.assert_allclose(a.astype(np.float32), b.astype(np.float32), rtol=0.03,
                                   atol=0.03)


def test_a_layer_has_no_stage_for_its_row_and_no_barrier() -> None:
    plan = decoder()
    updates = [i for i, s in enumerate(plan.stages) for g in s.groups if g.sig.kind == "loop"
               and any(isinstance(o, ops.DynamicUpdateSlice) for o in g.sig.body.ops)]
    assert updates == [len(plan.stages) - 1] * 6
    assert len(plan.stages) == 8  # two a layer
    program = build(plan)
    assert program.barriers == 1
    assert program.source.count("request<false>(smem, key0, load_k, load_v);") == 2  # ahead, or not


@pytest.mark.sampled(5)
@pytest.mark.parametrize("pos", [0, 7, 15, KEYS - 1, KEYS + 5])
def test_every_position(pos: int) -> None:
    """The last one is beyond the cache: the update is clamped, and so is the row."""
    plan = decoder()
    for a, b in zip(run_plan(plan, given(plan, pos)), evaluate(plan.graph, given(plan, pos)),
                    strict=True):
        np.testing.assert_allclose(a.astype(np.float32), b.astype(np.float32), rtol=0.03,
                                   atol=0.03)
    check(plan, build(plan), pos, seed=pos)


@pytest.mark.sampled(5)
@pytest.mark.parametrize("pos", [0, 14, KEYS - 3])
def test_several_new_rows(pos: int) -> None:
    plan = decoder(2, 3)
    assert "key_new" in build(plan).source
    check(plan, build(plan), pos, 3, seed=1)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("width", [64, 128])
def test_more_elements_than_a_block_has_threads(width: int) -> None:
    """Four rows of a head, an element at a time: two and four for each of 128 threads."""
    plan = decoder(1, 4, width=width)
    check(plan, build(plan), 9, 4)


@pytest.mark.sampled(5)
@pytest.mark.parametrize("blocks", [1, 2, 5])
def test_in_every_order_of_threads(blocks: int) -> None:
    plan = decoder()
    program = build(plan)
    for seed in range(4):
        check(plan, program, 11, seed=seed, blocks=blocks)


def test_a_cache_that_others_read_is_updated_first() -> None:
    plan = decoder(also="sum")
    program = build(plan)
    assert "key_new" not in program.source and "value_new" in program.source
    check(plan, program, 5)


def test_a_cache_of_other_readers_says_why() -> None:
    notes = "\n".join(decoder(also="sum").notes)
    assert "is read behind its update: a convert reads it, too" in notes
    assert "3 caches are read as they were, and updated in the last stage" in notes


@pytest.mark.sampled(2)
@pytest.mark.parametrize(("new", "queries", "reason"), [
    (1, 17, "17 queries are more than 16"), (5, 1, "5 new rows are more than 4")])
def test_what_other_kernels_do_better(new: int, queries: int, reason: str) -> None:
    plan = decoder(1, new, queries=queries)
    assert reason in "\n".join(plan.notes)
    program = build(plan)
    assert "key_new" not in program.source
    check(plan, program, 7, new)


LOST = [
    ("*A::key(smem, n - key0, c + e) = ", "(void)"),
    ("*A::value(smem, n - key0, c + e) = ", "(void)"),
    ("cp_async_wait<0>();\n  syncthreads();  // all that was copied is there", ""),
]


@pytest.mark.sampled(5)
@pytest.mark.parametrize(("old", "new"), LOST, ids=["a key", "a value", "the copies"])
def test_every_part_matters(old: str, new: str, monkeypatch: pytest.MonkeyPatch) -> None:
    plan, emit = decoder(), generating.emit

    def changed(*args: Any) -> Kernel:
        kernel = emit(*args)
        assert old in kernel.source
        return replace(kernel, source=kernel.source.replace(old, new))

    monkeypatch.setattr(generating, "emit", changed)
    lost = build(plan)
    with pytest.raises(AssertionError):
        for seed in range(6):
            check(plan, lost, 9, seed=seed)


@pytest.mark.slow
def test_compiles_for_hopper_without_spills() -> None:
    program = generate(decoder(), cuda_target("sm_90a"), Device(), "step")
    assert program.resources["spill_stores"] == 0
