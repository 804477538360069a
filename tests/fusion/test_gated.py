"""Products that gate each other, and when the second one waits for the first (gated.py)."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import pytest
from checked import checked, kinds

from jaxmono.fusion import gated
from jaxmono.fusion.plan import DotForm

M, K, F = 256, 32, 64
X = Any


@pytest.fixture(autouse=True)
def _small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gated, "LEAST_BYTES", 2 * M * F * 2)


def spec(*shape: int) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(shape, jnp.bfloat16)


ALONE, BESIDE = [["dot"], ["dot"]], [["dot", "dot"], ["loop"]]
ONE = [["dot"], ["loop"]]
X_W = spec(M, K), spec(K, 2 * F), spec(2 * F)


def geglu(x: X, w: X, b: X) -> X:
    u, g = jnp.split(x @ w + b, 2, axis=-1)
    return u * jax.nn.gelu(g)


def test_halves_of_one_product_become_two() -> None:
    made = checked(geglu, *X_W)
    assert kinds(made) == ALONE
    assert [g.sig.form.n.size for g in made.groups if isinstance(g.sig.form, DotForm)] == [F, F]
    assert kinds(checked(geglu, *X_W, without=("gated",))) == ONE


def test_rows_may_have_several_dimensions_and_the_gate_may_come_first() -> None:
    def fn(x: X, w: X, b: X) -> X:
        y = x @ w + b
        return jax.nn.sigmoid(y[..., :F]) * (y[..., F:] * 2)

    assert kinds(checked(fn, spec(4, M // 4, K), *X_W[1:])) == ALONE


def test_two_matrices_of_the_same_rows() -> None:
    def fn(x: X, up: X, gate: X) -> X:
        return jax.nn.silu(x @ gate) * (x @ up)

    args = spec(M, K), spec(K, F), spec(K, F)
    assert kinds(checked(fn, *args)) == ALONE
    assert kinds(checked(fn, *args, without=("gated",))) == BESIDE


def test_the_gate_may_come_first() -> None:
    """As SwiGLU is mostly written: what gates is made when the second product is asked for, or
    behind it."""
    def inline(x: X, gate: X, up: X, down: X) -> X:
        return (jax.nn.silu(x @ gate) * (x @ up)) @ down

    def named(x: X, gate: X, up: X, down: X) -> X:
        g, u = x @ gate, x @ up
        return (jax.nn.silu(g) * u) @ down

    args = spec(M, K), spec(K, F), spec(K, F), spec(F, K)
    for fn in (inline, named):
        assert kinds(checked(fn, *args)) == [["dot"]] * 3


def test_a_norm_behind_both_reads_both() -> None:
    """One stage less than with a gate in an epilogue, and nothing more is stored."""
    def fn(x: X, gate: X, up: X) -> X:
        h = jax.nn.silu(x @ gate) * (x @ up)
        return h / jnp.sum(jnp.abs(h), -1, keepdims=True)

    assert kinds(checked(fn, spec(M, K), spec(K, F), spec(K, F))) == [["dot", "dot"], ["row"]]


def test_what_both_products_make_is_still_stored_for_others() -> None:
    def fn(x: X, up: X, gate: X) -> tuple[X, X]:
        u = x @ up
        return u * jax.nn.silu(x @ gate), jnp.sum(u, axis=0)

    made = checked(fn, spec(M, K), spec(K, F), spec(K, F))
    assert kinds(made)[:2] == [["dot"], ["dot", "row"]]


REFUSED = {
    "few rows": (geglu, (spec(M // 2, K), spec(K, 4 * F), spec(4 * F)), ONE),
    "a small product": (geglu, (spec(M, K), spec(K, F), spec(F)), ONE),
    "parts that do not meet": (lambda x, w, b: jnp.split(jnp.tanh(x @ w + b), 2, axis=-1),
                               X_W, ONE),
    "no halves": (lambda x, w, b: (y := x @ w + b)[:, :32] * y[:, 32:64], X_W, ONE),
    "halves and more": (lambda x, w, b: ((y := x @ w + b)[:, :F] * y[:, F:], y), X_W, ONE),
    "a bias for each element": (lambda x, w, b: (y := x @ w + b)[:, :F] * y[:, F:],
                                (spec(M, K), spec(K, 2 * F), spec(M, 2 * F)), ONE),
    "a norm, which reads both": (
        lambda x, w, b: (z := geglu(x, w, b)) / jnp.sum(z, -1, keepdims=True), X_W,
        [["dot"], ["row"]]),
    "weights that are computed": (lambda x, w, b: geglu(x, jnp.cumsum(w, 0), b), X_W, None),
}


@pytest.mark.parametrize("case", REFUSED)
def test_others_stay(case: str) -> None:
    fn, args, wanted = REFUSED[case]
    made = checked(fn, *args)
    assert kinds(made) == kinds(checked(fn, *args, without=("gated",)))
    assert wanted is None or kinds(made) == wanted


def test_products_of_other_rows_do_not_wait() -> None:
    def fn(x: X, y: X, a: X, b: X) -> X:
        return jnp.tanh(x @ a) * (y @ b)

    assert kinds(checked(fn, spec(M, K), spec(M, K), spec(K, F), spec(K, F))) == BESIDE
