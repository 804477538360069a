"""Cumulative ops and associative scans: what JAX makes of them, and what becomes of that."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from jaxmono.fusion.support import refusal
from jaxmono.hlo import ops
from jaxmono.hlo.fingerprint import fingerprint
from jaxmono.hlo.importer import import_module
from jaxmono.hlo.interp import evaluate
from jaxmono.hlo.ir import Graph
from jaxmono.hlo.passes import dead_code, simplify
from jaxmono.hlo.passes.associative_scan import associative_scan
from jaxmono.hlo.verify import verify

Function = Callable[..., Any]


def graph_of(fn: Function, *args: Any, platform: str = "cpu") -> Graph:
    lowered = jax.jit(fn, keep_unused=True).trace(*args).lower(lowering_platforms=(platform,))
    return import_module(lowered.compiler_ir("stablehlo")).graph


def count(graph: Graph, kind: Any) -> int:
    return sum(isinstance(o, kind) for o in graph.ops)


def uniform(*shape: int, seed: int = 0) -> Any:
    return np.random.default_rng(seed).uniform(0.3, 1.1, shape).astype(np.float32)


def assert_near(got: Any, want: Any, bar: float = 1e-5) -> None:
    want = np.asarray(want, np.float64)
    np.testing.assert_allclose(np.asarray(got, np.float64), want, bar, bar * np.abs(want).max())


# ---- cumulative ops ----------------------------------------------------------------------------

NUMPY = {lax.cumsum: np.add, lax.cumprod: np.multiply, lax.cummax: np.maximum,
         lax.cummin: np.minimum}


@pytest.mark.sampled(5)
@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize(("shape", "axis"), [
    ((7,), 0), ((3, 129), 1), ((1000,), 0), ((2, 300, 3), 1), ((5, 40, 8), 1), ((4, 500, 8), 1),
    ((2, 5000), 1), ((4100, 4), 0), ((40, 3000), 1)])
@pytest.mark.parametrize("fn", NUMPY)
def test_cumulative_ops_are_computed_in_pieces(fn: Any, shape: tuple[int, ...], axis: int,
                                               reverse: bool) -> None:
    x = uniform(*shape) ** 0.1
    graph = graph_of(lambda x: fn(x, axis=axis, reverse=reverse), x)
    assert [refusal(o) for o in graph.ops] == [None] * len(graph.ops)
    made = simplify(graph)
    verify(made)
    assert not count(made, ops.ReduceWindow)
    turned = np.flip(x, axis) if reverse else x
    want = NUMPY[fn].accumulate(turned.astype(np.float64), axis)
    assert_near(evaluate(made, [x])[0], np.flip(want, axis) if reverse else want)


def test_no_element_is_read_often() -> None:
    """A window of 4096 elements is 16 of its own piece, and sums of pieces."""
    made = simplify(graph_of(lambda x: lax.cumsum(x, 1), np.zeros((2, 4096, 2), np.float32)))
    slices = [o for o in made.ops if isinstance(o, ops.Slice)]
    assert 16 <= len(slices) <= 60
    made = simplify(graph_of(lambda x: lax.cumsum(x, 1), np.zeros((2, 4096, 8), np.float32)))
    (*_, last) = [o for o in made.ops if isinstance(o, ops.Stacked)]
    assert len(last.args) == 16
    assert all(made.producer[v].in_turn for v in last.args)
    assert last.result.type.dims == (16, 2, 256, 8)


def test_what_is_not_finite_stays_behind_its_place() -> None:
    x = uniform(300, 8)
    x[50, 1], x[100, 2], x[0, 3], x[299, 4] = np.nan, np.inf, np.nan, -np.inf
    for fn in (lax.cumsum, lax.cummax):
        for reverse in (False, True):
            graph = simplify(graph_of(lambda x: fn(x, axis=0, reverse=reverse), x))  # noqa: B023
            want = NUMPY[fn].accumulate(np.flip(x, 0) if reverse else x, 0)
            np.testing.assert_allclose(evaluate(graph, [x])[0],
                                       np.flip(want, 0) if reverse else want, 1e-5)


@pytest.mark.parametrize("dtype", [np.int32, np.uint8])
@pytest.mark.parametrize("shape", [(1000,), (500, 16)])
def test_integers_wrap(dtype: Any, shape: tuple[int, ...]) -> None:
    x = np.random.default_rng(0).integers(0, 100, shape).astype(dtype)
    graph = simplify(graph_of(lambda x: jnp.cumsum(x, 0, dtype=x.dtype), x))
    np.testing.assert_array_equal(evaluate(graph, [x])[0], np.cumsum(x, 0, dtype=dtype))


@pytest.mark.parametrize("shape", [(300, 8), (600,)])
def test_sums_of_narrow_floats_are_f32(shape: tuple[int, ...]) -> None:
    x = jnp.asarray(uniform(*shape), jnp.bfloat16)
    (got,) = evaluate(simplify(graph_of(lambda x: jnp.cumsum(x, 0), x)), [np.asarray(x)])
    assert got.dtype == jnp.bfloat16
    assert_near(got, np.cumsum(np.asarray(x, np.float64), 0), 2 ** -8)


def test_logarithms_of_sums() -> None:
    x = uniform(200, 4)
    graph = graph_of(lambda x: lax.cumlogsumexp(x, 0), x)
    assert not any(refusal(o) for o in graph.ops)
    made = simplify(graph)
    assert not count(made, ops.ReduceWindow)
    assert_near(evaluate(made, [x])[0], np.logaddexp.accumulate(x.astype(np.float64), 0))


@pytest.mark.parametrize(("fn", "shape"), [
    (lambda x: jnp.cumsum(x, 1), (8, 300)), (lambda x: jnp.cumsum(x, 0), (300, 8)),
    (jnp.cumsum, (40, 10)), (lambda x: jnp.cumsum(x > 0.5, 1), (8, 300))])
def test_a_gpus_scan_is_the_same(fn: Function, shape: tuple[int, ...]) -> None:
    """From 0.11 on JAX lowers jnp.cumsum to `chlo.scan` for a GPU, to a window elsewhere."""
    x = uniform(*shape)
    there, here = (graph_of(fn, x, platform=p) for p in ("cuda", "cpu"))
    later = tuple(map(int, jax.__version__.split(".")[:2])) >= (0, 11)
    assert count(there, ops.Scan if later else ops.ReduceWindow) == 1
    assert count(here, ops.ReduceWindow) == 1
    verify(there)
    assert not any(refusal(o) for o in there.ops)
    assert_near(evaluate(there, [x])[0], evaluate(here, [x])[0])
    assert fingerprint(simplify(there)) == fingerprint(simplify(here))


SCAN = """
func.func public @main(%x: tensor<4x6xf32>, %c: tensor<4xf32>)
    -> (tensor<4x6xf32>, tensor<4xf32>) {
  %1:2 = chlo.scan(%x) inits (%c) dimension=1
      attributes {is_associative = ASSOCIATIVE, is_reverse = REVERSE} {
  ^bb0(%input: tensor<4xf32>, %carry: tensor<4xf32>):
    %2 = stablehlo.BODY %input, %carry : tensor<4xf32>
    stablehlo.return %2, RESULT : tensor<4xf32>, tensor<4xf32>
  } : (tensor<4x6xf32>, tensor<4xf32>) -> (tensor<4x6xf32>, tensor<4xf32>)
  return %1#0, %1#1 : tensor<4x6xf32>, tensor<4xf32>
}
"""


def scan(associative: str = "true", reverse: str = "false", body: str = "add",
         result: str = "%2") -> Graph:
    from jax.extend.mlir import ir
    from jax.interpreters import mlir

    text = SCAN.replace("ASSOCIATIVE", associative).replace("REVERSE", reverse)
    with mlir.make_ir_context():
        module = ir.Module.parse(text.replace("BODY", body).replace("RESULT", result))
        return import_module(module).graph


@pytest.mark.parametrize("reverse", ["false", "true"])
@pytest.mark.parametrize("body", ["add", "multiply", "maximum"])
def test_a_scans_carry_goes_in_and_comes_out(body: str, reverse: str) -> None:
    x, c = uniform(4, 6), uniform(4, seed=1)
    graph = scan(reverse=reverse, body=body)
    verify(graph)
    made = simplify(graph)
    assert not count(made, (ops.Scan, ops.ReduceWindow))
    f = {"add": np.add, "multiply": np.multiply, "maximum": np.maximum}[body]
    turned = np.flip(x, 1) if reverse == "true" else x
    want = f(f.accumulate(turned, 1), c[:, None])
    for g in (graph, made):
        out, last = evaluate(g, [x, c])
        assert_near(out, np.flip(want, 1) if reverse == "true" else want)
        assert_near(last, want[:, -1])


@pytest.mark.parametrize("changes", [{"associative": "false"}, {"body": "subtract"},
                                     {"result": "%carry"}])
def test_other_scans_are_left_to_xla(changes: dict[str, str]) -> None:
    graph = scan(**changes)
    (op,) = [o for o in graph.ops if isinstance(o, ops.Scan)]
    assert refusal(op) == "a scan whose body is more than one associative op is not generated"
    assert count(simplify(graph), ops.Scan) == 1


# ---- jax.lax.associative_scan ------------------------------------------------------------------


def linear(left: Any, right: Any) -> Any:
    return left[0] * right[0], left[1] * right[0] + right[1]


def segments(left: Any, right: Any) -> Any:
    return jnp.where(right[1], right[0], left[0] + right[0]), left[1] | right[1]


def three(left: Any, right: Any) -> Any:
    a, b, c = left
    d, e, f = right
    return a * d, b * d + e, c * d * d + f


def triangles(left: Any, right: Any) -> Any:
    """Products of matrices with ones on the diagonal and three numbers above it."""
    (p, q, r), (s, t, u) = left, right
    return p + s, q + t, r + u + p * t


def scanned(fn: Function, *, component: int | None = None, axis: int = 0,
            reverse: bool = False) -> Function:
    def call(*xs: Any) -> Any:
        made = lax.associative_scan(fn, xs if len(xs) > 1 else xs[0], axis=axis, reverse=reverse)
        return made if component is None else made[component]
    return call


SCALE = uniform(4, seed=5)
CASES: dict[str, tuple[Function, tuple[Any, ...]]] = {
    **{f"linear {n}": (scanned(linear, component=1), (uniform(n, 3), uniform(n, 3, seed=1)))
       for n in (8, 9, 13, 16, 17, 31, 100, 256, 300)},
    "both": (scanned(linear), (uniform(40, 8), uniform(40, 8, seed=1))),
    "reversed": (scanned(linear, component=1, axis=1, reverse=True),
                 (uniform(2, 40, 4), uniform(2, 40, 4, seed=1))),
    "maximum": (scanned(jnp.maximum, axis=1), (uniform(2, 70, 4),)),
    "one dimension": (scanned(jnp.minimum), (uniform(64),)),
    "logaddexp": (scanned(jnp.logaddexp), (uniform(40, 4),)),
    "constants": (scanned(lambda x, y: x + y + 0.5 * x * y), (uniform(40, 4) / 8,)),
    "scaled": (scanned(lambda x, y: x * y * SCALE), (uniform(20, 4),)),
    "segments": (scanned(segments), (uniform(40, 4), uniform(40, 4, seed=1) < 0.5)),
    "zeros": (scanned(lambda x, y: (x[0] + y[0], jnp.where(y[0] > 0.5, y[1], x[1] + y[1])),
                      component=0), (uniform(40, 4), uniform(40, 4, seed=1))),
    "zeros that functions have": (scanned(lambda x, y: jnp.maximum(jnp.maximum(x, y), 0)),
                                  (uniform(40, 4) - 0.7,)),
    "three": (scanned(three, component=2),
              (uniform(40, 4), uniform(40, 4, seed=1), uniform(40, 4, seed=2))),
    "triangles": (scanned(triangles, component=2),
                  (uniform(40, 4), uniform(40, 4, seed=1), uniform(40, 4, seed=2))),
}


@pytest.mark.parametrize("name", [
    pytest.param(n, marks=pytest.mark.slow) if re.fullmatch("linear (9|13|17|31|256)", n) else n
    for n in CASES])
def test_associative_scans_are_found(name: str) -> None:
    fn, args = CASES[name]
    graph = dead_code(graph_of(fn, *args))
    made = dead_code(associative_scan(graph))
    assert not any(isinstance(o, ops.Slice) and max(o.strides) > 1 for o in made.ops)
    assert not any(isinstance(o, ops.Pad) and max(o.interior) for o in made.ops)
    done = simplify(graph)
    verify(done)
    for got, want in zip(evaluate(done, args), jax.tree.leaves(jax.jit(fn)(*args)), strict=True):
        assert_near(got, want)


def test_functions_of_many_terms_are_not_looked_for() -> None:
    """They would be compared as trees: 14 steps of Newton's took 25 s."""
    def hypot(x: Any, y: Any) -> Any:
        square, r = x * x + y * y, x + y
        for _ in range(14):
            r = 0.5 * (r + square / r)
        return r

    x = uniform(16, 4)
    graph = dead_code(graph_of(scanned(hypot), x))
    assert associative_scan(graph) is graph


def test_parts_of_a_scan_are_no_literals() -> None:
    """Half of it is constant: what its pieces multiply to is stored by the loop of the others."""
    def fn(b: Any) -> Any:
        return lax.associative_scan(linear, (jnp.full(b.shape, 0.5), b))[1]

    b = uniform(48, 4)
    made = simplify(graph_of(fn, b))
    parts = [v for o in made.ops if isinstance(o, ops.Stacked) for v in o.args]
    assert parts and all(isinstance(made.producer[v], ops.Stored) for v in parts)
    assert_near(evaluate(made, [b])[0], jax.jit(fn)(b))


def test_an_array_is_part_of_one_other() -> None:
    """Both scans of a pair store what pieces of the first multiply to."""
    fn, args = CASES["both"]
    made = simplify(graph_of(fn, *args))
    parts = [v for o in made.ops if isinstance(o, ops.Stacked) for v in o.args]
    assert len(parts) == len(set(parts))


def test_batched_and_differentiated_scans_keep_their_values() -> None:
    a, b = uniform(3, 16, 4), uniform(3, 16, 4, seed=1)
    batched = jax.vmap(scanned(linear, component=1))
    made = associative_scan(dead_code(graph_of(batched, a, b)))
    assert count(made, ops.Stacked) == 1
    gradient = jax.grad(lambda a, b: batched(a, b).sum(), (0, 1))
    graph = simplify(graph_of(gradient, a, b))
    for got, want in zip(evaluate(graph, [a, b]), jax.jit(gradient)(a, b), strict=True):
        assert_near(got, want)


def almost(wrong: int) -> Function:
    """A scan of 16 sums whose level of ``wrong`` elements takes a maximum; 0: a scan."""
    def level(x: Any) -> Any:
        n = x.shape[0]
        f = jnp.maximum if n == wrong else lax.add
        if n < 2:
            return x
        odd = level(f(x[0:-1:2], x[1::2]))
        even = jnp.concatenate([x[:1], f(odd[:-1], x[2::2])]) if n > 2 else x[:1]
        return lax.add(lax.pad(even, np.float32(0), [(0, 1, 1), (0, 0, 0)]),
                       lax.pad(odd, np.float32(0), [(1, 0, 1), (0, 0, 0)]))
    return level


@pytest.mark.parametrize("wrong", [0, 2, 4, 8, 16])
def test_what_is_almost_a_scan_is_none(wrong: int) -> None:
    x = uniform(16, 4)
    graph = dead_code(graph_of(almost(wrong), x))
    whole = [o for o in associative_scan(graph).ops
             if isinstance(o, ops.Stacked) and len(o.args) == 16]
    assert bool(whole) == (wrong == 0)
    assert_near(evaluate(simplify(graph), [x])[0], almost(wrong)(x))


@pytest.mark.parametrize("fn", [
    scanned(lambda x, y: y @ x), scanned(lambda x, y: jnp.sort(x + y, -1))])
def test_functions_that_are_not_element_wise_stay(fn: Function) -> None:
    x = uniform(16, 3, 3)
    graph = dead_code(graph_of(fn, x))
    assert associative_scan(graph) is graph


# ---- branches that Python knows ----------------------------------------------------------------


def test_a_known_branch_is_inlined() -> None:
    """jnp.diag has a branch for the sign of its offset."""
    x = uniform(8, 8)
    graph = graph_of(lambda x: jnp.diag(x) + lax.cond(True, jnp.sin, jnp.cos, x[0]), x)
    assert not count(graph, ops.Case)
    assert_near(evaluate(graph, [x])[0], np.diag(x) + np.sin(x[0]))
    graph = graph_of(lambda i, x: lax.switch(i, [jnp.sin, jnp.cos], x), 1, x)
    assert count(graph, ops.Case) == 1


@pytest.mark.parametrize(("index", "want"), [(0, 1.0), (1, 2.0), (7, 2.0), (-1, 2.0)])
def test_an_index_out_of_range_means_the_last_branch(index: int, want: float) -> None:
    from jax.extend.mlir import ir
    from jax.interpreters import mlir

    text = f"""
    func.func public @main() -> tensor<f32> {{
      %i = stablehlo.constant dense<{index}> : tensor<i32>
      %0 = "stablehlo.case"(%i) ({{
        %a = stablehlo.constant dense<1.0> : tensor<f32>
        stablehlo.return %a : tensor<f32>
      }}, {{
        %b = stablehlo.constant dense<2.0> : tensor<f32>
        stablehlo.return %b : tensor<f32>
      }}) : (tensor<i32>) -> tensor<f32>
      return %0 : tensor<f32>
    }}"""
    with mlir.make_ir_context():
        graph = import_module(ir.Module.parse(text)).graph
    assert not count(graph, ops.Case) and evaluate(graph, [])[0] == want
