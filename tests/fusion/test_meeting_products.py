"""Products that meet element by element, in the epilogue of one (meeting_products.py)."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import pytest
from checked import checked, kinds

from jaxmono.fusion import meeting_products
from jaxmono.fusion.plan import Plan

M, N, K = 256, 128, 16


@pytest.fixture(autouse=True)
def small_ones_are_large(monkeypatch: pytest.MonkeyPatch) -> None:
    """What fills a GPU takes seconds to check on a CPU."""
    monkeypatch.setattr(meeting_products, "LEAST_SIZE", M * N)


def spec(*shape: int) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(shape, jnp.bfloat16)


def operands(m: int = M, n: int = N) -> list[jax.ShapeDtypeStruct]:
    return [spec(m, K), spec(K, n), spec(m, K), spec(K, n)]


def stored(p: Plan) -> list[list[int]]:
    return [[len(g.results) for g in s.groups] for s in p.stages]


def test_the_one_is_first_of_which_the_other_reads_less() -> None:
    def gradients(x: Any, w: Any, g: Any, v: Any) -> Any:
        z = x @ w
        h, d = jnp.tanh(z), g @ v
        return h, d * (1 - h * h) + d * z

    p = checked(gradients, *operands())
    assert kinds(p) == [["dot"], ["dot"]] and stored(p) == [[1], [2]]
    first, = p.stages[0].groups
    assert [p.buffers[b].index for b in first.params] == [2, 3]  # d, which is later in the program


def test_what_two_products_make_together() -> None:
    def cell(x: Any, w: Any, h: Any, u: Any) -> Any:
        return jnp.tanh(x @ w + h @ u)

    assert kinds(checked(cell, *operands())) == [["dot"], ["dot"]]


def test_what_another_product_reads() -> None:
    def layer(x: Any, w: Any, h: Any, u: Any, v: Any) -> Any:
        return jnp.tanh(x @ w + h @ u) @ v

    assert kinds(checked(layer, *operands(), spec(N, K))) == [["dot"], ["dot"], ["dot"]]


@pytest.mark.parametrize(("m", "n"), [(M, N // 2), (128, 4 * N)], ids=["small", "few rows"])
def test_others_run_side_by_side(m: int, n: int) -> None:
    def cell(x: Any, w: Any, h: Any, u: Any) -> Any:
        return jnp.tanh(x @ w + h @ u)

    assert kinds(checked(cell, *operands(m, n))) == [["dot", "dot"], ["loop"]]


@pytest.mark.parametrize(("behind", "m", "n"), [
    (lambda y: (y - y.mean(-1, keepdims=True)).astype(jnp.bfloat16), M, N),
    (lambda y: jnp.abs(y).sum(-1), 16 * M, 16)], ids=["norm", "sum"])
def test_rows_add_them_up_themselves(behind: Any, m: int, n: int) -> None:
    """A norm, and a sum of too few columns to begin in an epilogue: nothing else is stored."""
    def block(x: Any, w: Any, h: Any, u: Any) -> Any:
        return behind((x @ w + h @ u).astype(jnp.float32))

    assert kinds(checked(block, *operands(m, n))) == [["dot", "dot"], ["row"]]


def test_what_waits_for_the_whole_product_does_not_end_in_its_epilogue() -> None:
    def scaled(x: Any, w: Any, h: Any, u: Any) -> Any:
        z = x @ w
        return (h @ u) * z.astype(jnp.float32).sum(-1, keepdims=True).astype(jnp.bfloat16) * z

    p = checked(scaled, *operands())
    assert kinds(p)[0].count("dot") == 2


def test_what_both_make_is_reduced_in_the_same_epilogue() -> None:
    def gradients(x: Any, w: Any, g: Any, v: Any, u: Any) -> Any:
        z = x @ w
        h, d = jnp.tanh(z), g @ v
        e = d * (1 - h * h) + d * z
        return h, e @ u, e.astype(jnp.float32).sum(0)

    p = checked(gradients, *operands(2 * M, 8 * N), spec(8 * N, K))
    assert kinds(p) == [["dot"], ["dot"], ["dot", "row"]] and stored(p)[1] == [3]


def many(count: int) -> list[jax.ShapeDtypeStruct]:
    return operands() * (count // 2)


def test_one_waits_for_two() -> None:
    """As in the gradients of a gated MLP: all that they make is made of the one."""
    def gated(x: Any, w: Any, y: Any, v: Any, g: Any, u: Any) -> Any:
        z, u, d = x @ w, y @ v, g @ u
        return jnp.tanh(z) * u, d * jnp.tanh(z), d * u * (1 - jnp.tanh(z))

    p = checked(gated, *operands(), *operands()[:2])
    assert kinds(p) == [["dot", "dot"], ["dot"]] and stored(p)[1] == [3]


def test_more_than_three_run_side_by_side() -> None:
    def total(*xs: Any) -> Any:
        out = xs[0] @ xs[1]
        for x, w in zip(xs[2::2], xs[3::2], strict=True):
            out = jnp.tanh(out) + x @ w
        return out

    assert kinds(checked(total, *many(4))) == [["dot"] * 4, ["loop"]]


def test_what_two_make_without_the_third_keeps_all_side_by_side() -> None:
    def pairs(x: Any, w: Any, y: Any, v: Any, g: Any, u: Any) -> Any:
        a, b, c = x @ w, y @ v, g @ u
        return a * b, b * c, a * c

    p = checked(pairs, *operands(), *operands()[:2])
    assert kinds(p)[0] == ["dot"] * 3


def test_products_of_f32_run_side_by_side() -> None:
    def cell(x: Any, w: Any, h: Any, u: Any) -> Any:
        return jnp.tanh(x @ w + h @ u)

    wide = [jax.ShapeDtypeStruct(s.shape, jnp.float32) for s in operands()]
    assert kinds(checked(cell, *wide)) == [["dot", "dot"], ["loop"]]
