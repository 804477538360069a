"""What convolutions of f32 read is rounded where it is written (round_rows.py)."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import models
import numpy as np
import pytest
from jax import lax

from jaxmono.fusion import PlanError, make_plan
from jaxmono.fusion.interp import run_plan
from jaxmono.fusion.plan import Device, DotForm, Plan
from jaxmono.fusion.text import plan_to_text
from jaxmono.fusion.verify import verify
from jaxmono.hlo import ops
from jaxmono.hlo.interp import evaluate
from jaxmono.hlo.passes.rules import alignment

BF16, F32 = jnp.bfloat16, jnp.float32
NHWC = ("NHWC", "HWIO", "NHWC")
X = Any


def conv(x: X, w: X, stride: int = 1, **kw: Any) -> X:
    return lax.conv_general_dilated(x, w, (stride, stride), "SAME", dimension_numbers=NHWC, **kw)


def plan(fn: Callable[..., Any], *shapes: tuple[int, ...], dtype: Any = F32,
         device: Device | None = None, without: tuple[str, ...] = ()) -> Plan:
    """Checked to be the program's own outputs, but for tf32's digits."""
    graph = models.graph_of(fn, *(jax.ShapeDtypeStruct(s, dtype) for s in shapes))
    made = make_plan(graph, device or Device(), without=without)
    rng = np.random.default_rng(0)
    inputs = [rng.standard_normal(v.type.dims).astype(v.type.dtype.numpy) for v in graph.inputs]
    for got, want in zip(run_plan(made, inputs, seed=1), evaluate(graph, inputs), strict=True):
        np.testing.assert_allclose(got.astype(np.float32), want.astype(np.float32), rtol=0,
                                   atol=2e-2 * float(np.abs(want.astype(np.float32)).max()))
    return made


def rounded(p: Plan) -> list[bool]:
    return [g.sig.form.rounded for g in p.groups if isinstance(g.sig.form, DotForm)]


def roundings(p: Plan) -> int:
    return sum(isinstance(o, ops.ReducePrecision) for o in p.graph.ops)


def two(x: X, u: X, w: X) -> X:
    return conv(jax.nn.relu(conv(x, u)), w)


SHAPES = [(1, 8, 8, 16), (3, 3, 16, 64), (3, 3, 64, 64)]


def test_between_two_layers() -> None:
    """Stored once, rounded, by the group that computes it; the program's input stays as it is."""
    p = plan(two, *SHAPES)
    assert rounded(p) == [False, True] and roundings(p) == 1
    assert len(p.stages) == 2 and "; lhs rounded" in plan_to_text(p)
    assert "1 convolutions read what is rounded to tf32 where it is written" in p.notes
    assert isinstance(p.groups[0].sig.body.producer[p.groups[0].sig.body.outputs[0]],
                      ops.ReducePrecision)


def test_what_others_read_stays_as_it_was() -> None:
    """A residual: both are stored, by one group."""
    def fn(x: X, u: X, w: X) -> X:
        y = jax.nn.relu(conv(x, u))
        return conv(y, w) + y

    p = plan(fn, (19, 16, 16, 16), *SHAPES[1:])  # more than is worth to be computed again
    assert rounded(p) == [False, True] and len(p.groups) == 2
    kinds = [type(p.groups[0].sig.body.producer[v]) for v in p.groups[0].sig.body.outputs]
    assert sorted(k.__name__ for k in kinds) == ["Elementwise", "ReducePrecision"]


def test_a_pool_between() -> None:
    def fn(x: X, u: X, w: X) -> X:
        y = jax.nn.relu(conv(x, u))
        return conv(lax.reduce_window(y, -jnp.inf, lax.max, (1, 2, 2, 1), (1, 2, 2, 1), "VALID"), w)

    p = plan(fn, (1, 16, 16, 16), *SHAPES[1:])
    assert rounded(p) == [False, True] and len(p.groups) == 2


def test_a_padded_copy_is_rounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of three channels a place, which no 16 bytes fit (hlo/passes/rules/alignment.py)."""
    monkeypatch.setattr(alignment, "MIN_ELEMENTS", 0)
    p = plan(lambda x, w: conv(x, w), (1, 16, 16, 3), (3, 3, 3, 64))
    assert rounded(p) == [True] and roundings(p) == 1 and len(p.stages) == 2
    assert not any(isinstance(o, ops.ReducePrecision) for o in p.stages[1].groups[0].sig.body.ops)


@pytest.mark.parametrize(("fn", "shapes"), [
    (lambda x, w: conv(jnp.tanh(x).transpose(0, 2, 3, 1), w), [(1, 64, 32, 32), (3, 3, 64, 64)]),
    (lambda x, w: conv((x @ jnp.full((32, 48), 0.1, F32)).transpose(0, 2, 3, 1), w),
     [(1, 64, 32, 32), (3, 3, 64, 64)]),  # by the product, while it computes them
    (lambda x, w: lax.conv_general_dilated(x, w, (1, 1), "SAME"),  # an input, while it is copied
     [(1, 64, 32, 32), (64, 64, 3, 3)])])
def test_turned_copies_are_rounded(fn: Callable[..., Any], shapes: list[tuple[int, ...]]) -> None:
    p = plan(fn, *shapes)
    assert rounded(p)[-1] and roundings(p) == 1
    assert not any(isinstance(o, ops.ReducePrecision) for o in p.stages[-1].groups[0].sig.body.ops)


def test_one_rounding_for_all_readers() -> None:
    def fn(x: X, u: X, w: X) -> X:
        y = jax.nn.relu(conv(x, u))
        return conv(y, w) + conv(y, jnp.tanh(w))

    p = plan(fn, *SHAPES)
    assert sum(rounded(p)) == 2 and roundings(p) == 1


def projection(x: X, u: X, w: X, p: X) -> X:
    """A block of ResNet that halves the image."""
    y = jax.nn.relu(conv(x, u))
    return conv(conv(y, w), jnp.ones((3, 3, 64, 64), F32), stride=2) + conv(y, p, stride=2)


def test_part_of_an_image_is_gathered_too() -> None:
    """What its other readers multiply is the same values, so one is stored."""
    p = plan(projection, (1, 16, 16, 16), (3, 3, 16, 64), (1, 1, 64, 64), (1, 1, 64, 64))
    assert rounded(p) == [False, True, True, True] and roundings(p) == 2
    assert "2 convolutions read what is rounded to tf32 where it is written" in p.notes
    assert all(len(g.sig.body.outputs) == 1 for g in p.groups)


def test_products_alone_do_not_ask_for_it() -> None:
    """The accelerator rounds their rows; those of a class token lie at constant distances."""
    def fn(x: X, w: X, v: X) -> X:
        y = jnp.tanh(x @ w)
        return y[:, 0] @ v, y @ v

    assert not any(rounded(plan(fn, (64, 16, 64), (64, 64), (64, 64))))


def grouped(x: X) -> X:
    w = jnp.full((3, 3, 8, 128), 0.1, F32)
    return conv(jnp.tanh(x), w, feature_group_count=2)


def residual(x: X) -> X:
    y = jnp.tanh(x)
    return conv(y, jnp.full((1, 2, 64, 40), 0.1, F32)) + y[..., :40]


def precise(x: X, u: X, w: X) -> X:
    return conv(jax.nn.relu(conv(x, u)), w, precision="highest")


@pytest.mark.parametrize(("fn", "shapes", "kw", "why"), [
    (two, SHAPES, {"dtype": BF16}, ""),
    (two, SHAPES, {"device": Device(wgmma=False)}, ""),
    (two, SHAPES, {"without": ("round_rows",)}, ""),
    (precise, SHAPES, {}, "it is an input"),
    (two, [*SHAPES[:2], (3, 3, 64, 39)], {}, "a batch of 1 of 64 x 39 is no tile"),
    (two, [SHAPES[0], (3, 3, 16, 62), (3, 3, 62, 64)], {}, "62 elements along k are no multiple"),
    (two, [(1, 2, 2, 16), *SHAPES[1:]], {}, "a batch of 1 of 4 x 64 is no tile"),
    (two, [*SHAPES[:2], (1, 1, 64, 64)], {}, "it is an input"),  # the accelerator knows such rows
    (grouped, SHAPES[:1], {}, "a batch of 2 of"),
    pytest.param(residual, [(64, 32, 32, 64)], {}, "to store it twice takes as long",
                 marks=pytest.mark.slow),
    (lambda s, w: conv(jnp.pad(jnp.tanh(s).reshape(1, 1, 1, 1), ((0, 0), (4, 4), (4, 4), (0, 3))),
                       w), [(), (3, 3, 4, 48)], {}, "no dimension"),
    (lambda x, w: lax.conv_transpose(jnp.tanh(x), w, (2, 2), "SAME", dimension_numbers=NHWC),
     [(1, 8, 8, 64), SHAPES[2]], {}, "there are holes in it"),
    (lambda x, w: conv(jnp.pad(jnp.tanh(x), ((0, 0), (1, 1), (1, 1), (0, 0)), constant_values=1),
                       w), [(1, 8, 8, 64), SHAPES[2]], {}, "other numbers than zeros"),
    (lambda x, w: lax.conv_general_dilated(jnp.tanh(x), w, (1, 1), "SAME"),
     [(1, 64, 8, 8), (64, 64, 3, 3)], {}, "lie apart in memory"),  # so few are not turned
    (lambda x, w: lax.conv_general_dilated(jnp.tanh(x), w, (1, 1), "SAME",
                                           dimension_numbers=("NCHW", "HWIO", "NHWC")),
     [(1, 64, 8, 8), SHAPES[2]], {}, "lie apart in memory"),
    (lambda x, w: conv(jnp.tanh(x), w), [(1, 20, 20, 16), (17, 17, 16, 64)], {},
     "34 elements apart"),
    (lambda x, w, d: jax.vjp(lambda w: conv(jnp.tanh(x), w, 2), w)[1](d)[0],
     [(2, 16, 16, 64), (1, 1, 64, 64), (2, 8, 8, 64)], {}, "are taps"),  # a gradient of weights
    (lambda x, w: conv(x, w), [(1, 8, 8, 64), SHAPES[2]], {}, "it is an input"),
    (lambda x, w: conv(jnp.flip(jnp.tanh(x), 1), w), [(1, 8, 8, 64), SHAPES[2]], {},
     "the result of reverse"),
])
def test_what_is_not_rounded(fn: Any, shapes: Any, kw: dict[str, Any], why: str) -> None:
    p = plan(fn, *shapes, **kw)
    assert not any(rounded(p)) and not roundings(p)
    told = [n for n in p.notes if "is not rounded where it is written" in n]
    assert bool(told) == bool(why) and any(why in n for n in told) == bool(why), p.notes


def test_the_verifier_asks_who_rounds() -> None:
    p = plan(two, *SHAPES)
    first, second = p.groups
    body = first.sig.body
    (o,) = (o for o in body.ops if isinstance(o, ops.ReducePrecision))
    other = dataclasses.replace(o, mantissa_bits=11)
    broken = dataclasses.replace(body, ops=tuple(other if x is o else x for x in body.ops))
    sig = dataclasses.replace(first.sig, body=broken)
    stages = [dataclasses.replace(s, groups=tuple(
        dataclasses.replace(g, sig=sig) if g is first else g for g in s.groups)) for s in p.stages]
    assert isinstance(second.sig.form, DotForm) and second.sig.form.rounded
    with pytest.raises(PlanError, match="takes b4 for rounded to tf32, and it is not"):
        verify(dataclasses.replace(p, stages=tuple(stages)))
