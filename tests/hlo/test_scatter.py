"""Scatters as ops without memory that several threads add to, or with it: JAX's results, in each
form."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import jaxmono
from jaxmono.hlo import ops
from jaxmono.hlo.importer import import_module
from jaxmono.hlo.interp import evaluate
from jaxmono.hlo.ir import Graph
from jaxmono.hlo.passes import simplify
from jaxmono.hlo.passes.rules import scatter, sorted_sums
from jaxmono.hlo.types import DType
from jaxmono.hlo.verify import verify

RNG = np.random.default_rng(0)
I5 = np.asarray([3, 0, 3, -1, 40], np.int32)
"""Repeated, the last line by Python's rule, out of range."""


FLOATS = (DType.F16, DType.BF16, DType.F32)
"""Whose sums are products in tests: here they are exact."""


def graph_of(fn: Callable[..., Any], *args: Any) -> Graph:
    lowered = jax.jit(fn).lower(*args)
    return import_module(lowered.compiler_ir("stablehlo")).graph


def x(*shape: int, dtype: Any = np.float32) -> Any:
    return jnp.asarray(RNG.integers(-8, 8, shape), dtype)


def kinds(graph: Graph) -> set[type]:
    return {type(o) for o in graph.ops}


def same(got: Any, want: Any) -> None:
    got, want = np.asarray(got), np.asarray(want)
    assert (got.dtype, got.shape) == (want.dtype, want.shape)
    np.testing.assert_allclose(got.astype(np.float64), want.astype(np.float64), rtol=1e-6)


PROGRAMS: dict[str, tuple[Callable[..., Any], tuple[Any, ...]]] = {
    "rows": (lambda x, i, u: x.at[i].add(u), (x(9, 4), I5, x(5, 4))),
    "columns": (lambda x, i, u: x.at[:, i].add(u), (x(4, 9), I5, x(4, 5))),
    "elements": (lambda x, i, j, u: x.at[i, j].add(u), (x(9, 7), I5, I5[::-1], x(5))),
    "rows of rows": (lambda x, i, j, u: x.at[i, :, j].add(u), (x(9, 2, 7), I5, I5[::-1], x(5, 2))),
    "in two dimensions": (lambda x, i, u: x.at[i].add(u), (x(9, 3), I5.reshape(5, 1), x(5, 1, 3))),
    "largest": (lambda x, i, u: x.at[i].max(u), (x(9, 4), I5, x(5, 4))),
    "smallest": (lambda x, i, u: x.at[i].min(u), (x(9, 4, dtype=np.int32), I5,
                                                 x(5, 4, dtype=np.int32))),
    "products": (lambda x, i, u: x.at[i].mul(u), (x(9, 4, dtype=np.int32), I5,
                                                  x(5, 4, dtype=np.int32))),
    "products of segments": (lambda u, i: jax.ops.segment_prod(u, i, 9),
                             (x(5, 4, dtype=np.int32), I5)),
    "products of floats": (lambda x, i, u: x.at[i].mul(u, unique_indices=True),
                           (x(9, 4), np.asarray([3, 0, 8], np.int32), x(3, 4))),
    "one row": (lambda x, i, u: x.at[i].set(u), (x(9, 4), np.int32(3), x(4))),
    "one row outside": (lambda x, i, u: x.at[i].set(u), (x(9, 4), np.int32(9), x(4))),
    "one row, added": (lambda x, i, u: x.at[i].add(u), (x(9, 4), np.int32(-2), x(4))),
    "a known place": (lambda x, u: x.at[:, :3].set(u), (x(4, 9), x(4, 3))),
    "a window": (lambda x, i, u: lax.scatter_add(x, i, u, lax.ScatterDimensionNumbers(
        (0, 1), (), (0, 1)), mode="clip"), (x(9, 6), np.asarray([3, 5], np.int32), x(4, 3))),
    "a window outside": (lambda x, i, u: lax.scatter_add(x, i, u, lax.ScatterDimensionNumbers(
        (0, 1), (), (0, 1)), mode="drop"), (x(9, 6), np.asarray([3, 5], np.int32), x(4, 3))),
    "other rows": (lambda x, i, u: x.at[i].set(u, unique_indices=True),
                   (x(9, 4), np.asarray([3, 0, 8], np.int32), x(3, 4))),
    "along an axis": (lambda x, i, u: jax.vmap(lambda x, i, u: x.at[i].add(u))(x, i, u),
                      (x(3, 9), np.stack([I5, I5 + 1, I5 - 1]), x(3, 5))),
    "one of each": (jax.grad(lambda x, i: jnp.take_along_axis(
        jax.nn.log_softmax(x), i[:, None], 1).sum()), (x(5, 9), abs(I5) % 9)),
    "counts": (lambda i: jnp.zeros(41, jnp.int32).at[i].add(1), (I5,)),
    "counts of bytes": (lambda i: jnp.zeros(9, jnp.float32).at[i].add(1), (I5.astype(np.int8),)),
    "unsigned": (lambda x, i, u: x.at[i].add(u), (x(9, 4), I5.astype(np.uint32), x(5, 4))),
    "segments": (lambda u, i: jax.ops.segment_sum(u, i, 9), (x(5, 4), I5)),
    "words": (jax.grad(lambda t, i: (jnp.take(t, i, axis=0) ** 2).sum()), (x(9, 4), I5[:4])),
    "words of each": (jax.grad(lambda t, i: (jax.vmap(jax.vmap(lambda j: t[j]))(i) ** 2).sum()),
                      (x(9, 4), I5[:4].reshape(2, 2))),
    "an element of each": (jax.grad(lambda q, i: (jax.vmap(lambda q, j: q[j])(q, i) ** 2).sum()),
                           (x(5, 9), I5)),
    **{f"windows of one line, {kind}": (lambda x, i, u, to=to: to(
        x, i, u, lax.ScatterDimensionNumbers((1, 2), (), (0, 1)), mode="drop"),
        (x(9, 4), np.asarray([[3, 0], [0, 0], [5, 1], [9, 0], [3, 0]], np.int32), x(5, 1, 4)))
        for kind, to in {"added": lax.scatter_add, "largest": lax.scatter_max}.items()},
    "16 bits": (lambda x, i, u: x.at[i].add(u),
                (x(9, 4, dtype=jnp.bfloat16), I5, x(5, 4, dtype=jnp.bfloat16))),
}


LOOKED_UP = ("one row", "one row outside", "one row, added", "a known place", "a window",
             "a window outside", "one of each", "an element of each")
"""Of one update, or of one for each line."""

FORMS = ("one by one", "sorted", "in memory")


def take(form: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Small scatters as those of many lines."""
    values = {"sorted": {"DENSE": 0, "WIDE": 1, "_NARROW": FLOATS},
              "in memory": {"DENSE": 0, "COMPARED": 0, "WIDE": 1 << 30}}
    for name, value in values.get(form, {}).items():
        monkeypatch.setattr(scatter, name, value)


@pytest.mark.sampled(2)
@pytest.mark.parametrize(("name", "form"), [
    (name, form) for name in PROGRAMS for form in FORMS
    if form == FORMS[0] or not name.startswith("products")])  # which no memory makes
def test_as_jax(name: str, form: str, monkeypatch: pytest.MonkeyPatch) -> None:
    take(form, monkeypatch)
    fn, args = PROGRAMS[name]
    graph = graph_of(fn, *args)
    found = [o for o in graph.ops if isinstance(o, ops.Scatter)]
    assert len(found) == 1
    assert not scatter.refusal(found[0])
    simple = simplify(graph)
    verify(simple)
    assert ops.Scatter not in kinds(simple)
    assert form != "one by one" or ops.Accumulate not in kinds(simple)
    if form == "in memory":
        assert (ops.Accumulate in kinds(simple)) is (name not in LOOKED_UP)
    want = jax.tree.leaves(jax.jit(fn)(*args))
    for got, other in zip(evaluate(simple, args), want, strict=True):
        same(got, other)


def test_products_of_many_lines_are_xlas(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scatter, "DENSE", 0)
    (op,) = (o for o in graph_of(*[PROGRAMS["products"][0], *PROGRAMS["products"][1]]).ops
             if isinstance(o, ops.Scatter))
    assert scatter.refusal(op) == "5 updates of 9 lines of 4 are multiplied by no memory"


@pytest.mark.sampled(2)
@pytest.mark.parametrize("dtype", [np.float32, jnp.bfloat16, np.float16])
@pytest.mark.parametrize("form", FORMS)
def test_what_is_not_finite_stays_in_its_line(dtype: Any, form: str,
                                              monkeypatch: pytest.MonkeyPatch) -> None:
    take(form, monkeypatch)
    u = np.ones((8, 5))
    u[0, 0], u[1, 1], u[2, 2], u[3, 3] = np.inf, -np.inf, np.nan, np.inf
    u[4, 3] = -np.inf
    u[5, 4] = u[6, 4] = np.inf
    i = np.asarray([0, 1, 2, 3, 3, 4, 4, 4], np.int32)
    args = (jnp.zeros((6, 5), dtype), i, jnp.asarray(u, dtype))
    fn = lambda x, i, u: x.at[i].add(u)  # noqa: E731
    (got,) = evaluate(simplify(graph_of(fn, *args)), args)
    same(got, jax.jit(fn)(*args))
    assert np.isfinite(np.asarray(got, np.float64)[5]).all()


@pytest.mark.parametrize("form", FORMS)
def test_lines_without_updates_keep_a_zeros_sign(form: str,
                                                 monkeypatch: pytest.MonkeyPatch) -> None:
    take(form, monkeypatch)
    args = (np.full((9, 4), -0.0, np.float32), I5, x(5, 4))
    (got,) = evaluate(simplify(graph_of(lambda x, i, u: x.at[i].add(u), *args)), args)
    assert np.signbit(got[[1, 2, 4, 5, 6, 7]]).all()


@pytest.mark.sampled(2)
@pytest.mark.parametrize(("lines", "updates", "alike"), [
    (1000, 500, 300), (1000, 500, 0), (3, 300, 300), (40, 257, 15), (40, 256, 256), (7, 17, 1)])
def test_an_embeddings_gradient_is_sorted(lines: int, updates: int, alike: int,
                                          monkeypatch: pytest.MonkeyPatch) -> None:
    """A line's updates take several pieces, and pieces of pieces."""
    take("sorted", monkeypatch)

    def fn(u: Any, i: Any) -> Any:
        return jnp.ones((lines, 8), u.dtype).at[i].add(u)

    u = jnp.sign(x(updates, 8, dtype=jnp.bfloat16))
    i = RNG.integers(-2, lines + 2, updates, np.int32)
    i[:alike] = lines - 1
    i = RNG.permutation(i)
    graph = simplify(graph_of(fn, u, i))
    assert ops.Gather in kinds(graph)
    (got,) = evaluate(graph, [u, i])
    same(got, jax.jit(fn)(u, i))


@pytest.mark.parametrize(("fn", "args", "reason"), [
    (lambda x, i: x.at[i].apply(jnp.sin), (x(9, 4), I5), "that is no sum, product, maximum"),
    (lambda x, i, u: x.at[i].mul(u), (x(9, 4), I5, x(5, 4)), "they could overflow"),
    (lambda x, i, u: lax.scatter_add(x, i, u, lax.ScatterDimensionNumbers((1,), (), (0,))),
     (x(9), np.asarray([[1], [4]], np.int32), x(2, 3)), "windows that are not whole lines"),
    (lambda x, i, u: x.at[i].add(u), (x(1 << 17, 64, dtype=jnp.bfloat16),
                                      np.zeros(1 << 15, np.int32),
                                      x(1 << 15, 64, dtype=jnp.bfloat16)),
     "neither sorted nor made in 32 bits"),
    (lambda x, i, u: x.at[i].add(u), (x(1 << 12, 1024, dtype=jnp.int8), np.zeros(1 << 12, np.int32),
                                      x(1 << 12, 1024, dtype=jnp.int8)),
     "lines of s8 are not made in memory"),
    (lambda x, i, u: x.at[i].max(u), (x(9, 4, dtype=jnp.float8_e4m3fn), I5,
                                      x(5, 4, dtype=jnp.float8_e4m3fn)), "is not generated"),
])
def test_others_stay_with_xla(fn: Any, args: Any, reason: str) -> None:
    function = jaxmono.jit(lambda *a: jnp.tanh(fn(*a)), interpret=True)
    assert reason in str(function.lower(*args).explain())


@pytest.mark.parametrize(("batch", "lines", "updates", "width"), [
    (1, 10, 100, 200_000), (64, 1000, 300, 1024), (1, 2_200_000, 16, 256)])
def test_wide_or_many_lines_are_sorted(batch: int, lines: int, updates: int, width: int) -> None:
    assert not sorted_sums.too_many(batch, lines, updates, width)


@pytest.mark.parametrize("kind", ["set", "add"])
def test_no_updates(kind: str) -> None:
    def fn(x: Any, i: Any, u: Any) -> Any:
        how = lax.scatter if kind == "set" else lax.scatter_add
        return how(x, i, u, lax.ScatterDimensionNumbers((1,), (0,), (0,)), mode="drop")

    args = x(3, 4), np.zeros((0, 1), np.int32), x(0, 4)
    (got,) = evaluate(simplify(graph_of(fn, *args)), args)
    same(got, args[0])
