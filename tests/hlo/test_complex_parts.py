"""Complex numbers as pairs of floats: each op by the reference interpreter, before and after."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from jaxmono.hlo import ops
from jaxmono.hlo.importer import import_module
from jaxmono.hlo.interp import evaluate
from jaxmono.hlo.ir import Graph
from jaxmono.hlo.passes import simplify
from jaxmono.hlo.passes.complex_parts import complex_parts, has_complex, refusal
from jaxmono.hlo.verify import verify

C64 = np.complex64
_RNG = np.random.default_rng(0)


def graph_of(fn: Any, *args: Any) -> Graph:
    lowered = jax.jit(fn, keep_unused=True).lower(*args)
    return import_module(lowered.compiler_ir("stablehlo")).graph


def numbers(*shape: int) -> Any:
    return (_RNG.standard_normal(shape) + 1j * _RNG.standard_normal(shape)).astype(C64)


def view(x: Any) -> Any:
    """As it lies in memory."""
    x = np.asarray(x)
    return np.stack([x.real, x.imag], -1) if x.dtype.kind == "c" else x


def check(fn: Callable[..., Any], *args: Any, tolerance: float = 2e-6) -> Graph:
    """The graph in parts, which has the values of the one before, by numpy's functions."""
    graph = graph_of(fn, *args)
    after = complex_parts(graph)
    verify(after)
    assert not any(map(has_complex, after.ops))
    flat = [np.asarray(a) for a in jax.tree.leaves(args)]
    wanted = evaluate(graph, flat)
    for graph_ in (after, simplify(after)):
        found = evaluate(graph_, [view(a) for a in flat])
        for a, b in zip(found, wanted, strict=True):
            size = max(float(np.abs(b[np.isfinite(b)]).max(initial=0)), 1e-30)
            np.testing.assert_allclose(a, view(b), rtol=0, atol=tolerance * size)
    return after


Z, W, X = numbers(5, 6), numbers(5, 6), _RNG.standard_normal((5, 6)).astype(np.float32)


@pytest.mark.parametrize("fn", [
    jnp.exp, jnp.log, jnp.sqrt, lax.rsqrt, jnp.tanh, jnp.tan, jnp.sin, jnp.cos, jnp.sinh, jnp.cosh,
    jnp.expm1, jnp.log1p, jnp.abs, jnp.angle, jnp.sign, jnp.square, jax.nn.sigmoid, lax.neg,
    jnp.conj, jnp.real, jnp.imag], ids=lambda f: f.__name__)
def test_functions(fn: Any) -> None:
    check(fn, Z)


@pytest.mark.parametrize("fn", [
    lax.add, lax.sub, lax.mul, lax.div, lax.pow, lambda z, w: (z == w, z != w, z == z),
    lambda z, w: jnp.where(z.real > 0, z, w), lambda z, w: lax.complex(z.real, w.imag)])
def test_two_operands(fn: Any) -> None:
    check(fn, Z, W)


@pytest.mark.parametrize("fn", [
    lambda z, w: z.T.reshape(3, 10), lambda z, w: jnp.concatenate([z[::-1], w]),
    lambda z, w: jnp.pad(z, ((1, 2), (0, 1)), constant_values=2 - 1j), lambda z, w: z[1:4, ::2],
    lambda z, w: z[jnp.array([4, 0, 2])], lambda z, w: z.at[2].set(w[0]),
    lambda z, w: lax.dynamic_update_slice(z, w[:2, :3], (jnp.int32(2), jnp.int32(1))),
    lambda z, w: z.at[jnp.array([1, 1, 3])].add(w[:3]), lambda z, w: jnp.arange(3, dtype=C64) + 1j,
    lambda z, w: lax.optimization_barrier((z, w.real))])
def test_moves(fn: Any) -> None:
    check(fn, Z, W)


@pytest.mark.parametrize("fn", [
    lambda z: (z.sum(0), z.mean(), jnp.linalg.norm(z)), lambda z: jnp.prod(z, 1),
    lambda z: jnp.cumsum(z, 1), lambda z: lax.reduce_window(z, 0j, lax.add, (2, 2), (1, 1), "SAME"),
    lambda z: (z @ z.T, jnp.einsum("ab,ab->b", z, z.conj())),
    lambda z: lax.reduce((z, z.real), (0j, np.float32(0)),
                         lambda a, b: (a[0] + b[0], a[1] + b[1]), (0,)),
    lambda z: lax.reduce((z, z.real), (1 + 0j, np.float32(0)),
                         lambda a, b: (a[0] * b[0], a[1] + b[0].imag), (1,))])
def test_sums(fn: Any) -> None:
    check(fn, Z)


SPECS = [("mk,kn->mn", (5, 6), (6, 7)), ("mk,nk->mn", (5, 6), (7, 6)),
         ("km,kn->mn", (6, 5), (6, 7)), ("km,nk->mn", (6, 5), (7, 6)), ("mk,k->m", (5, 6), (6,)),
         ("k,kn->n", (6,), (6, 7)), ("k,nk->n", (6,), (7, 6)), ("k,k->", (6,), (6,)),
         ("bmk,bkn->bmn", (3, 5, 6), (3, 6, 7)), ("bmk,bnk->bmn", (3, 5, 6), (3, 7, 6)),
         ("ab,ab->b", (5, 6), (5, 6)), ("mbk,kbn->bmn", (5, 3, 6), (6, 3, 7)),
         ("mkj,kjn->mn", (5, 2, 3), (2, 3, 7)), ("mkj,njk->mn", (5, 2, 3), (7, 3, 2)),
         ("kml,kln->mln", (6, 5, 2), (6, 2, 7)), ("mk,kn->mn", (40, 6), (6, 3)),
         ("mk,kn->mn", (3, 60), (60, 50)), ("mk,nk->mn", (3, 60), (50, 60)),
         ("mk,nk->mn", (40, 6), (3, 6)), ("mk,kn->mn", (5, 2), (2, 9)),
         ("bmk,bkn->bmn", (300, 5, 6), (300, 6, 7))]
"""Every form of `complex_products`, in each order of dimensions."""


@pytest.mark.parametrize(("spec", "left", "right"), SPECS)
def test_products(spec: str, left: tuple[int, ...], right: tuple[int, ...]) -> None:
    """Four real products' multiplications, two where one operand was real, one where both were;
    half of them where the real part alone is looked at."""
    for (first, second), real in itertools.product(
            ((False, False), (True, False), (False, True), (True, True)), (False, True)):
        x, y = numbers(*left), numbers(*right)
        x, y = x.real.copy() if first else x, y.real.copy() if second else y

        def fn(x: Any, y: Any, real: bool = real) -> Any:
            out = jnp.einsum(spec, x.astype(C64), y.astype(C64))
            return out.real if real else out

        after = check(fn, x, y)
        sizes = {c: n for letters, shape in zip(spec.split("->")[0].split(","), (left, right),
                                                strict=True)
                 for c, n in zip(letters, shape, strict=True)}
        one = int(np.prod(list(sizes.values())))
        wanted = one if first and second else one * (2 if first or second else 4) // (1 + real)
        found = [o for o in simplify(after).ops if isinstance(o, ops.DotGeneral)]
        assert sum(o.result.type.size * o.lhs.type.size // max(int(np.prod(
            [n for d, n in enumerate(o.lhs.type.dims) if d not in o.lhs_contract])), 1)
            for o in found) == wanted


@pytest.mark.parametrize(("spec", "left", "right"), [
    ("bki,kio->bko", (8, 5, 6), (5, 6, 7)), ("mk,nk->mn", (3, 60), (50, 60)),
    ("mk,nk->nm", (60, 50), (7, 50)), ("abk,ck->cab", (4, 5, 60), (6, 60))])
def test_results_are_stored_where_their_parts_lie(spec: str, left: Any, right: Any) -> None:
    """And not put together by a copy: what is behind a product is a transposition, if anything."""
    after = simplify(check(lambda x, y: jnp.einsum(spec, x, y), numbers(*left), numbers(*right)))
    at = next(i for i, op in enumerate(after.ops) if isinstance(op, ops.DotGeneral))
    assert {type(op) for op in after.ops[at + 1:]} <= {ops.Transpose, ops.Reshape}


def test_a_result_and_a_product_of_it() -> None:
    """Of which one looks at the turned array, the other at parts. (Exponents are small: errors of
    a sum of 32 are as many times larger in its exponential.)"""
    check(lambda x, y: ((z := jnp.einsum("mk,nk->mn", x, y)), jnp.einsum("mn,nk->mk", z, y),
                        jnp.exp(z.T.reshape(-1) / 16)), numbers(3, 60), numbers(50, 60))


def test_loops_and_branches() -> None:
    """Carries, what is stacked, what is captured; of a real index a real and a complex branch."""
    def scan(z: Any, w: Any) -> Any:
        def step(c: Any, x: Any) -> Any:
            c = c * w[0] + x
            return c, (c.real, c)
        return lax.scan(step, z[0], z)

    def until(z: Any, w: Any) -> Any:
        return lax.while_loop(lambda s: (jnp.abs(s[0]) < 4).all() & (s[1] < 9),
                              lambda s: (s[0] * s[0] + w, s[1] + 1), (z * 0, 0))

    def branches(z: Any, i: Any) -> Any:
        return lax.switch(i, [lambda: (z, z.real), lambda: (z.conj() * 2, z.imag)])

    check(scan, Z, W)
    check(until, Z, W * 0.2)
    for i in (0, 1):
        check(branches, Z, jnp.int32(i))


def test_borders_and_real_graphs() -> None:
    after = check(lambda z, x: (z, x, z * x), Z, X)
    assert [str(v.type) for v in after.inputs] == ["f32[5,6,2]", "f32[5,6]"]
    assert [str(v.type) for v in after.outputs] == ["f32[5,6,2]", "f32[5,6]", "f32[5,6,2]"]
    real = graph_of(lambda x: x * 2, X)
    assert complex_parts(real) is real


def test_refusals() -> None:
    """What has no parts is told; in a graph it is an error."""
    def reasons(fn: Any) -> list[str]:
        return [r for o in graph_of(fn, Z).ops if has_complex(o) and (r := refusal(o))]

    assert reasons(jnp.exp) == []
    assert reasons(lambda z: jnp.sort(z, axis=1)) == [
        "sort of complex numbers is not generated yet"]
    assert reasons(lambda z: jnp.cumprod(z, 1)) == [
        "reduce_window of complex numbers is generated for sums only"]
    with pytest.raises(ValueError, match="sort of complex numbers"):
        complex_parts(graph_of(lambda z: jnp.sort(z, axis=1), Z))


EXTREMES = np.array([0.0, -0.0, 1.0, -2.0, 1e-30, 1e30, -3e38, np.inf, -np.inf, np.nan], np.float32)


def extremes() -> Any:
    re, im = np.meshgrid(EXTREMES, EXTREMES)
    z = np.empty(re.size, C64)
    z.real, z.imag = re.ravel(), im.ravel()
    return z


@pytest.mark.parametrize("fn", [jnp.abs, jnp.exp, jnp.log, jnp.sin, jnp.cosh, jnp.sinh, jnp.expm1,
                                jnp.log1p], ids=lambda f: f.__name__)
def test_what_is_not_finite(fn: Any) -> None:
    """NaN, infinities, overflow and subnormal results come where XLA's do."""
    z = extremes()
    after = complex_parts(graph_of(fn, z))
    with np.errstate(all="ignore"):
        (found,) = evaluate(after, [view(z)])
    wanted = view(jax.jit(fn)(z))
    np.testing.assert_array_equal(np.isnan(found), np.isnan(wanted))
    np.testing.assert_allclose(found, wanted, rtol=1e-5, atol=1e-30)


def test_quotients_that_are_not_finite() -> None:
    """By nothing as of a real; by infinities nothing; of large and small numbers what there is."""
    z = np.array([1 + 2j, 1 + 0j, 1 - 2j, 1e30 + 1e30j, 1e-30 - 1e-30j, complex(np.inf, 3)], C64)
    w = np.array([0, complex(-0.0, 0), complex(np.inf, -np.inf), 1e30 + 1e30j, 1e-30 - 1e-30j, 2],
                 C64)
    after = complex_parts(graph_of(lax.div, z, w))
    with np.errstate(all="ignore"):
        (found,) = evaluate(after, [view(z), view(w)])
    wanted = [(np.inf, np.inf), (-np.inf, np.nan), (0, 0), (1, 0), (1, 0), (np.inf, 1.5)]
    np.testing.assert_allclose(found, np.array(wanted, np.float32), atol=1e-30)


def test_roots_on_the_cut() -> None:
    """From above and from below; where |z| is too large for its type."""
    z = np.array([complex(-4, 0.0), complex(-4, -0.0), 3e38 + 3e38j, 0, complex(2, -np.inf)], C64)
    (found,) = evaluate(complex_parts(graph_of(jnp.sqrt, z)), [view(z)])
    with np.errstate(all="ignore"):
        np.testing.assert_allclose(found, view(np.sqrt(z.astype(np.complex128))), rtol=1e-5)
