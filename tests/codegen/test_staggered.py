"""Results of 16 bits in rows that begin anywhere, in pieces of 16 bytes (staggered.py)."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import pytest
from contraction_harness import build, dot_sigs, in_order, plan_of
from contraction_harness import run_wgmma as run
from test_dot_bytes import tile

from jaxmono.codegen.dot import DotCode
from jaxmono.codegen.dot_schedule import DotSchedule
from jaxmono.codegen.staggered import staggered
from jaxmono.fusion.plan import DotForm, Plan

Spec = jax.ShapeDtypeStruct
BF16, F16, F32 = jnp.bfloat16, jnp.float16, jnp.float32
TALL, WIDE = (DotSchedule("wgmma", 128, n, 64, 3, (2, 1, 1), 1) for n in (64, 128))
LEFT = tile(64, 128, 3, (1, 2, 1), bits=16)


def product(m: int, n: int, k: int = 72, dtype: Any = BF16) -> Plan:
    return plan_of(lambda x, w: x @ w.T, Spec((m, k), dtype), Spec((n, k), dtype))


def unaligned(m: int, n: int, k: int = 72, dtype: Any = BF16) -> Plan:
    return plan_of(lambda x, w, b: jax.nn.relu(x @ w + b), Spec((m, k), dtype),
                   Spec((k, n), dtype), Spec((n,), dtype))


def together(plan: Plan, s: DotSchedule) -> bool:
    text = build(plan, in_order(plan, s), threads=256).source
    return "store_staggered<" in text[text.rindex("#include"):]


@pytest.mark.sampled(3)
@pytest.mark.parametrize("n", [257, 259, 261, 263])
@pytest.mark.parametrize("dtype", [BF16, F16])
def test_all_places_of_a_row(n: int, dtype: Any) -> None:
    plan = product(70, n, dtype=dtype)
    assert together(plan, TALL)
    run(plan, TALL)


@pytest.mark.parametrize("s", [TALL, WIDE])
def test_tiles(s: DotSchedule) -> None:
    """Rows outside, columns outside, several tiles to a task."""
    run(product(200, 389), s, seeds=(0, 1))


@pytest.mark.parametrize("n", [259, 393])
def test_weights_that_pass_through_registers(n: int) -> None:
    plan = unaligned(260, n)
    assert together(plan, LEFT)
    run(plan, LEFT, seeds=(0,))


def test_an_epilogue_with_columns_of_its_own() -> None:
    def fn(x: Any, w: Any, b: Any, r: Any) -> Any:
        return jnp.maximum(x @ w.T + b, 0) * r[:, None]

    plan = plan_of(fn, Spec((70, 72), BF16), Spec((267, 72), BF16), Spec((267,), BF16),
                   Spec((70,), BF16))
    assert together(plan, TALL)
    run(plan, TALL)


def test_results_of_a_batch() -> None:
    plan = plan_of(lambda x, w: jnp.einsum("bmk,bnk->bmn", x, w), Spec((2, 70, 72), BF16),
                   Spec((2, 133, 72), BF16))
    assert together(plan, TALL)
    run(plan, TALL)


@pytest.mark.parametrize(("fn", "n", "why"), [
    (lambda x, w: x @ w.T, 264, "rows of whole pieces"),
    (lambda x, w: x @ w.T, 262, "rows of whole words"),
    (lambda x, w: x @ w.T, 65, "a single tile"),
    (lambda x, w: jnp.dot(x, w.T, preferred_element_type=F32), 261, "f32 leave as they are"),
    (lambda x, w: (y := x @ w.T, jnp.tanh(y).T), 261, "columns of a result are rows of the tile"),
    (lambda x, w: x @ w.T + (x[:, :1] * w[:, 0]), 261, "what is read lies unaligned, too")])
def test_others_leave_as_they_did(fn: Any, n: int, why: str) -> None:
    plan = plan_of(fn, Spec((70, 72), BF16), Spec((n, 72), BF16))
    (sig,) = dot_sigs(plan)
    assert isinstance(sig.form, DotForm) and sig.form.n.size == n
    assert staggered(DotCode.of(sig, TALL)) is None, why


@pytest.mark.parametrize("fn", [
    lambda x, w: jax.nn.relu((x @ w.T).reshape(2, 35, 261)),
    lambda x, w: 30 * jnp.tanh((x @ w.T).reshape(-1) / 30),
    lambda x, w: (x @ w.T).reshape(70, 9, 29) + 1])
def test_sums_behind_a_reshape(fn: Any) -> None:
    """Are found at their own places only: element by element."""
    plan = plan_of(fn, Spec((70, 72), BF16), Spec((261, 72), BF16))
    assert not together(plan, TALL)
    run(plan, TALL, seeds=(0,))
