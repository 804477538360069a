"""Convolutions with channels first: what is turned, what is stored, and the same result."""

from __future__ import annotations

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
from jaxmono.hlo.passes import channels_last, dead_code, simplify
from jaxmono.hlo.verify import verify

Spec = jax.ShapeDtypeStruct
F32 = jnp.float32
FIRST = {3: ("NCW", "OIW", "NCW"), 4: ("NCHW", "OIHW", "NCHW"), 5: ("NCDHW", "OIDHW", "NCDHW")}
LAST = ("NHWC", "HWIO", "NHWC")
X = Any


def conv(x: X, w: X, strides: Any = 1, padding: Any = "SAME", **kw: Any) -> X:
    n = x.ndim - 2
    strides = (strides,) * n if isinstance(strides, int) else strides
    return lax.conv_general_dilated(x, w, strides, padding,
                                    dimension_numbers=kw.pop("layout", FIRST[x.ndim]), **kw)


def graph_of(fn: Callable[..., X], *shapes: tuple[int, ...], dtype: Any = F32) -> Graph:
    lowered = jax.jit(fn).lower(*(Spec(s, dtype) for s in shapes))
    return import_module(lowered.compiler_ir("stablehlo")).graph


def checked(fn: Callable[..., X], *shapes: tuple[int, ...]) -> Graph:
    """The turned graph, which computes the same as before, alone and behind all passes."""
    graph = graph_of(fn, *shapes)
    made = dead_code(channels_last(graph))
    rng = np.random.default_rng(0)
    inputs = [rng.standard_normal(s).astype(np.float32) for s in shapes]
    want = evaluate(graph, inputs)
    for other in (made, simplify(graph)):
        verify(other)
        for got, expected in zip(evaluate(other, inputs), want, strict=True):
            assert got.shape == expected.shape and got.dtype == expected.dtype
            np.testing.assert_allclose(got, expected, rtol=0, atol=2e-6 * np.abs(expected).max())
    assert channels_last(made) is made  # all lie last now
    return made


def count(graph: Graph, kind: type[Any]) -> int:
    return sum(isinstance(o, kind) for o in graph.ops)


def turns(graph: Graph) -> int:
    """Transposes that move more than dimensions of one element, but for views of kernels."""
    return sum(isinstance(o, ops.Transpose) and o.operand.type.rank > 2
               and [d for d in o.permutation if o.operand.type.dims[d] > 1]
               != [d for d in range(o.operand.type.rank) if o.operand.type.dims[d] > 1]
               for o in graph.ops)


IMAGE, WIDE, DEEP = (2, 6, 10, 9), (8, 6, 3, 3), (8, 8, 3, 3)


def block(x: X, w: X, v: X, scale: X, bias: X) -> X:
    """What a ResNet has: a norm on running statistics, relu, a pool, a residual."""
    y = jax.nn.relu(conv(x, w) * scale[:, None, None] + bias[:, None, None])
    y = lax.reduce_window(y, -jnp.inf, lax.max, (1, 1, 3, 3), (1, 1, 2, 2),
                          ((0, 0), (0, 0), (1, 1), (1, 1)))
    return jnp.clip(conv(y, v), 0, 6) + y


def test_what_lies_between_follows() -> None:
    made = checked(block, IMAGE, WIDE, DEEP, (8,), (8,))
    assert turns(made) == 4  # the image, two kernels, the result
    assert count(made, ops.Stored) == 0  # so small


def test_a_mean_of_pixels_needs_no_turn_back() -> None:
    made = checked(lambda x, w, m: conv(x, w).mean((2, 3)) @ m, IMAGE, WIDE, (8, 5))
    assert turns(made) == 2


@pytest.mark.parametrize(("fn", "shapes"), [
    (lambda x, w: conv(x, w, 2, ((1, 0), (0, 2))), [IMAGE, WIDE]),
    (lambda x, w: conv(x, w, rhs_dilation=(2, 1)), [IMAGE, WIDE]),
    (lambda x, w: conv(x, w, lhs_dilation=(2, 2), padding=((2, 2), (1, 2))), [IMAGE, WIDE]),
    (lambda x, w: conv(x, w, feature_group_count=3), [IMAGE, (9, 2, 3, 3)]),
    (lambda x, w: jnp.tanh(conv(x, w, feature_group_count=6)), [IMAGE, (12, 1, 3, 3)]),
    (lambda x, w: conv(x, w, batch_group_count=2), [IMAGE, WIDE]),
    (lambda x, w: conv(x, w, layout=("NCHW", "HWIO", "NHWC")), [IMAGE, (3, 3, 6, 8)]),
    (lambda x, w: conv(x, w, layout=("NCHW", "OIHW", "CNHW")), [IMAGE, WIDE]),
    (lambda x, w: conv(conv(x, w).astype(jnp.bfloat16).astype(F32), w[:6].transpose(1, 0, 2, 3)[
        :, :6, :, :].repeat(2, 1)[:, :8]), [IMAGE, WIDE]),
    (lambda x, w: conv(x, w), [(2, 6, 11), (8, 6, 5)]),
    (lambda x, w: jnp.exp(conv(x, w)).max((0, 3)), [(1, 4, 5, 6, 3), (8, 4, 2, 3, 3)]),
    (lambda x, w: conv(x, w)[:, 1:7:2, 2:5, ::-1], [IMAGE, WIDE]),
    (lambda x, w: jnp.concatenate([conv(x, w), x, conv(x, w) ** 2], 1), [IMAGE, WIDE]),
    (lambda x, w: jnp.pad(conv(x, w), ((0, 0), (1, 2), (0, 0), (3, 0)), constant_values=2.0),
     [IMAGE, WIDE]),
    (lambda x, w: jax.nn.softmax(conv(x, w), 1), [IMAGE, WIDE]),
    (lambda x, w: jnp.where(conv(x, w) > 0, x[:, :1], 2.0), [IMAGE, WIDE]),
    (lambda x, w: conv(x, w).reshape(2, 4, 2, 10, 9).sum(2), [IMAGE, WIDE]),  # shuffled channels
    (lambda x, w: (lambda y: (y - y.mean((0, 2, 3), keepdims=True))
                   / y.std((0, 2, 3), keepdims=True))(conv(x, w)), [IMAGE, WIDE]),
    (lambda x, w: jax.vmap(lambda x: conv(x[None], w)[0] + 1)(x), [IMAGE, WIDE]),  # Equinox's way
    (lambda x, w: jax.grad(lambda w: (conv(jax.nn.relu(conv(x, w)), w[:6].transpose(1, 0, 2, 3)
                                           .repeat(2, 1)[:, :8]) ** 2).sum())(w), [IMAGE, WIDE]),
    (lambda x, w: jax.grad(lambda x: (conv(conv(x, w, 2), w[:, :4].repeat(2, 1)) ** 2).sum())(x),
     [IMAGE, WIDE]),
    (lambda x, w: lax.conv_transpose(x, w, (2, 2), "SAME", dimension_numbers=FIRST[4]),
     [IMAGE, (8, 6, 3, 3)]),
    (lambda x, w: lax.fori_loop(0, 2, lambda i, y: conv(y, w) * 0.1, x), [IMAGE, (6, 6, 3, 3)]),
])
def test_the_same_result(fn: Callable[..., X], shapes: list[tuple[int, ...]]) -> None:
    checked(fn, *shapes)


def test_one_turn_for_each_unbatched_layer() -> None:
    """Dimensions of one element come and go between layers under `vmap`."""
    def net(x: X, w: X, v: X) -> X:
        return jax.vmap(lambda x: jnp.tanh(conv(jnp.tanh(conv(x[None], w)[0])[None], v)[0]))(x)

    assert turns(simplify(graph_of(net, IMAGE, WIDE, DEEP))) == turns(
        simplify(graph_of(lambda x, w, v: jnp.tanh(conv(jnp.tanh(conv(x, w)), v)),
                          IMAGE, WIDE, DEEP)))


@pytest.mark.parametrize(("fn", "shapes", "stored"), [
    (lambda x, w: conv(x, w), [(1, 64, 32, 32), (64, 64, 3, 3)], 1),  # the image
    (lambda x, w: conv(x, w), [(1, 128, 16, 16), (128, 128, 3, 3)], 1),  # the kernel
    (lambda x, w: conv(x, w), [(8, 64, 32, 32), (64, 64, 3, 3)], 2),  # read for many places
    (lambda x, w: conv(x, w), [(4, 64, 32, 32), (64, 64, 1, 1)], 1),  # lies so already
    (lambda x, w: conv(x, w), [(4, 62, 32, 32), (64, 62, 3, 3)], 0),  # align copies both
    (lambda x, w: conv(jnp.tanh(conv(x, w)), w), [(8, 64, 32, 32), (64, 64, 3, 3)], 2),
    (lambda x, w: conv(jnp.tanh(x).transpose(0, 3, 1, 2), w), [(4, 32, 32, 64), (64, 64, 1, 1)],
     0),
    (lambda x, w: conv(jnp.tanh(x).transpose(0, 2, 3, 1), w, layout=LAST),
     [(4, 64, 32, 32), (3, 3, 64, 8)], 1),
    (lambda x, w: conv(jax.image.resize(x, (2, 40, 40, 64), "bilinear"), w, layout=LAST),
     [(2, 20, 20, 64), (3, 3, 64, 8)], 1),
    (lambda x, w: conv(jnp.tanh(x).transpose(0, 2, 1, 3), w, layout=LAST),  # channels stay last
     [(4, 32, 32, 64), (3, 3, 64, 8)], 1),
    (lambda x, w: conv(x, w), [(4, 3, 72, 64), (64, 3, 3, 3)], 1),  # a large result
    (lambda x, w: conv(x, w).mean((2, 3)), [(4, 3, 72, 64), (64, 3, 3, 3)], 0),
])
def test_what_is_turned_in_memory(fn: Callable[..., X], shapes: list[tuple[int, ...]],
                                  stored: int) -> None:
    graph = simplify(graph_of(fn, *shapes), without=("padding",))
    assert count(graph, ops.Stored) == stored


def test_others_stay_as_they_are() -> None:
    graph = graph_of(lambda x, w: conv(x, w, layout=LAST), (2, 10, 9, 6), (3, 3, 6, 8))
    assert channels_last(graph) is graph
    empty = graph_of(lambda x, w: conv(x, w), (0, 6, 10, 9), WIDE)
    assert channels_last(empty) is empty
