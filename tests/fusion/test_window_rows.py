"""Contractions that are only read in windows: pooled before anything is stored (window_rows.py)."""

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

from jaxmono._build import OPTIONAL
from jaxmono.fusion import PlanError, make_plan
from jaxmono.fusion.indexing import Var
from jaxmono.fusion.interp import run_plan
from jaxmono.fusion.plan import Device, DotForm, Plan
from jaxmono.fusion.prepare import prepare
from jaxmono.fusion.text import plan_to_text
from jaxmono.fusion.verify import verify
from jaxmono.hlo import ops
from jaxmono.hlo.interp import evaluate

Golden = Callable[[str, str], None]
BF16, F32 = jnp.bfloat16, jnp.float32
X = Any


def spec(*shape: int, dtype: Any = F32) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(shape, dtype)


def conv(x: X, w: X) -> X:
    return lax.conv_general_dilated(x, w, (1, 1), "SAME",
                                    dimension_numbers=("NHWC", "HWIO", "NHWC"))


def pool(x: X, *window: int, reducer: Any = lax.max, start: float = -jnp.inf) -> X:
    return lax.reduce_window(x, jnp.asarray(start, x.dtype), reducer, window, window, "VALID")


def layer(x: X, w: X, b: X) -> X:
    return pool(jax.nn.relu(conv(x, w) + b), 1, 2, 2, 1)


def arguments(dtype: Any = F32, h: int = 8, w: int = 8) -> list[Any]:
    return [spec(2, h, w, 8, dtype=dtype), spec(3, 3, 8, 16, dtype=dtype), spec(16, dtype=dtype)]


def plan(fn: Callable[..., Any], *args: Any, without: tuple[str, ...] = ()) -> Plan:
    """Plans ``fn``, and checks with small integers, whose sums are exact, that the plan's outputs
    have the program's own bits."""
    graph = models.graph_of(fn, *args)
    made = make_plan(graph, Device(), without=without)
    rng = np.random.default_rng(0)
    inputs = [rng.integers(-2, 3, v.type.dims).astype(v.type.dtype.numpy) for v in graph.inputs]
    for got, want in zip(run_plan(made, inputs, seed=1), evaluate(graph, inputs), strict=True):
        np.testing.assert_array_equal(got.astype(np.float32), want.astype(np.float32))
    return made


def taps(p: Plan) -> list[int]:
    return [s.form.taps for s in p.sigs if isinstance(s.form, DotForm)]


def test_a_pooled_layer_is_one_group(golden: Golden) -> None:
    p = plan(layer, *arguments(BF16))
    assert [[g.sig.kind for g in s.groups] for s in p.stages] == [["dot"]] and taps(p) == [4]
    assert p.scratch_bytes == 0, "whole rows are never stored"
    assert p.notes == ("1 contractions are pooled before they are stored",)
    golden("plan_window_rows", plan_to_text(p))


def test_an_element_that_waits_for_a_later_product_is_stored() -> None:
    """The slices stay in the contraction's group: what they are slices of has no place any more."""
    def fn(x: X, w: X, b: X, u: X, v: X) -> X:
        y = jax.nn.relu(conv(x, w) + b)
        later = ((u @ v) @ v).reshape(2, 4, 4, 16)
        return jnp.maximum(jnp.maximum(y[:, ::2, ::2] * later, y[:, ::2, 1::2]),
                           jnp.maximum(y[:, 1::2, ::2], y[:, 1::2, 1::2]))
    p = plan(fn, *arguments(), spec(32, 16), spec(16, 16))
    assert len(p.stages) == 2 and sorted(taps(p)) == [1, 1, 4]


def test_what_is_behind_the_window_joins() -> None:
    p = plan(lambda x, w, b, y: jnp.tanh(layer(x, w, b)) + y, *arguments(), spec(2, 4, 4, 16))
    assert len(p.stages) == 1 and taps(p) == [4]


@pytest.mark.parametrize("fn", [
    lambda x, w, b: pool(conv(x, w) + b, 1, 2, 2, 1, reducer=lax.add, start=0.0) / 4,
    lambda x, w, b: pool(conv(x, w) + b, 1, 2, 2, 1, reducer=lax.min, start=jnp.inf),
    lambda x, w, b: pool(conv(x, w) + b, 1, 1, 2, 1),
    lambda x, w, b: pool(conv(x, w) + b, 1, 2, 1, 1),
    lambda x, w, b: pool(conv(x, w) + b, 1, 2, 4, 1),
    lambda x, w, b: pool(conv(x, w) + b, 2, 2, 1, 1),
    lambda x, w, b: pool(jnp.transpose(conv(x, w) + b, (0, 3, 1, 2)), 1, 1, 2, 2),
    lambda x, w, b: pool(jax.nn.gelu(conv(x, w).astype(F32)).astype(F32) + b, 1, 2, 2, 1),
    lambda x, w, b: pool(jnp.einsum("nhwc,co->nhwo", x, w[0, 0]), 1, 2, 2, 1) + b,
], ids=["mean", "minimum", "columns of the image", "rows of the image", "2 x 4", "of the batch",
        "features first", "conversions and an expression read twice", "a plain product"])
def test_windows(fn: Callable[..., Any]) -> None:
    graph = models.graph_of(fn, *arguments())
    p = make_plan(graph, Device())
    assert len(p.stages) == 1 and taps(p)[0] > 1, plan_to_text(p)
    rng = np.random.default_rng(0)
    inputs = [rng.standard_normal(v.type.dims).astype(v.type.dtype.numpy) for v in graph.inputs]
    for got, want in zip(run_plan(p, inputs), evaluate(graph, inputs), strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("fn", [
    lambda x, w, b: (layer(x, w, b), jax.nn.relu(conv(x, w) + b)),
    lambda x, w, b: (layer(x, w, b), conv(x, w).sum()),
    lambda x, w, b: lax.reduce_window(conv(x, w) + b, -jnp.inf, lax.max, (1, 3, 3, 1), (1, 2, 2, 1),
                                      "SAME"),
    lambda x, w, b: pool(conv(x, w) + b, 1, 1, 1, 2),
    lambda x, w, b: pool(conv(x, w) + b, 1, 4, 4, 1),
    lambda x, w, b: conv(x, w)[:, ::2, ::2] + b,
    lambda x, w, b: (lambda y: jnp.maximum(y[:, ::2, ::2], y[:, 1::2, 1::2]))(conv(x, w) + b),
    lambda x, w, b: (lambda y: jnp.maximum(y[:, ::2, ::2], y[:, :7:2, :7:2]))(conv(x, w) + b),
    lambda x, w, b: (lambda y: jnp.concatenate([y[:, ::2], y[:, 1::2]], -1))(conv(x, w)) + b[0],
    lambda x, w, b: pool(conv(x[:1, :4], w) + b, 1, 2, 2, 1),
    lambda x, w, b: pool(jnp.einsum("nhwc,nco->nhwo", x, w[:2, 0]), 1, 2, 2, 1) + b,
], ids=["rows are an output", "rows are summed", "windows overlap", "along the features", "16 rows",
        "one of four", "two of four", "one place twice", "nothing is reduced", "few rows",
        "a batch of products"])
def test_others_are_stored_whole(fn: Callable[..., Any]) -> None:
    graph = models.graph_of(fn, *arguments())
    p = make_plan(graph, Device())
    assert set(taps(p)) == {1}
    rng = np.random.default_rng(0)
    inputs = [rng.standard_normal(v.type.dims).astype(v.type.dtype.numpy) for v in graph.inputs]
    for got, want in zip(run_plan(p, inputs), evaluate(graph, inputs), strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-4)


@pytest.mark.parametrize("fn", [
    lambda x, w, b: (lambda y: jnp.concatenate([y[:, i::2, j::2] for i in (0, 1) for j in (0, 1)],
                                               -1))(conv(x, w)),
    lambda x, w, b: (layer(x, w, b), conv(x, w)),
    lambda x, w, b: (lambda y: (y[:, ::2] + y[:, 1::2], y[:, ::2] - y[:, 1::2]))(conv(x, w)),
], ids=["patches are merged", "another reader", "as many as before"])
def test_rows_stay_in_their_order_where_nothing_is_pooled(fn: Callable[..., Any]) -> None:
    """A tile of rows in another order would be gathered."""
    graph, _ = prepare(models.graph_of(fn, *arguments()), Device())
    assert {o.result.type.dims for o in graph.ops if isinstance(o, ops.DotGeneral)} == \
        {(2, 8, 8, 16)}


@pytest.mark.parametrize(("fn", "reason"), [
    (lambda x, w, b: (layer(x, w, b), conv(x, w)), "also read, or written, as they are"),
    (lambda x, w, b: pool(conv(x, w) + b, 1, 4, 4, 1), "they have 16 elements; a warp has whole"),
    (lambda x, w, b: pool(conv(x[:1, :4], w) + b, 1, 2, 2, 1), "32 rows are few"),
    (lambda x, w, b: pool(conv(x, w) + b, 1, 1, 1, 2), "they are not of neighbouring rows"),
])
def test_why_rows_are_stored_is_told(fn: Callable[..., Any], reason: str) -> None:
    notes = make_plan(models.graph_of(fn, *arguments(BF16)), Device()).notes
    assert len(notes) == 1 and reason in notes[0], notes
    assert notes[0].startswith("the windows of ") and "test_window_rows.py" in notes[0]


def test_a_norm_of_the_pool() -> None:
    def fn(x: X, w: X, b: X) -> X:
        y = layer(x, w, b)
        y = y - y.mean(-1, keepdims=True)
        return y * lax.rsqrt((y * y).mean(-1, keepdims=True) + 1e-3)

    graph = models.graph_of(fn, *arguments())
    assert taps(make_plan(graph, Device())) == [4]


def test_an_update_in_place_of_whole_rows() -> None:
    def fn(cache: X, x: X, w: X) -> Any:
        y = x @ w
        z = jax.nn.relu(y)
        return lax.dynamic_update_slice(cache, y, (0, 0)), jnp.maximum(z[0::2], z[1::2])

    p = plan(fn, spec(256, 16), spec(128, 8), spec(8, 16))
    assert taps(p) == [1]


def test_few_rows_are_left_to_other_families() -> None:
    def fn(x: X, w: X) -> X:
        y = x @ w
        return jnp.maximum(y[0::2], y[1::2])

    assert taps(plan(fn, spec(64, 8), spec(8, 16))) == [2]
    assert taps(plan(fn, spec(62, 8), spec(8, 16))) == [1]


def test_not_a_number_is_pooled_as_it_is() -> None:
    graph = models.graph_of(layer, *arguments())
    inputs = [np.ones(v.type.dims, np.float32) for v in graph.inputs]
    inputs[0][0, 3, 3] = np.nan
    (got,), (want,) = run_plan(make_plan(graph, Device()), inputs), evaluate(graph, inputs)
    assert np.isnan(want).any() and not np.isnan(want).all()
    np.testing.assert_array_equal(got, want)


def test_a_window_of_other_rows_is_rejected() -> None:
    p = make_plan(models.graph_of(layer, *arguments()), Device())
    (g,) = p.groups
    form = g.sig.form
    assert isinstance(form, DotForm) and form.windows is not None

    def broken(windows: Var | None) -> Plan:
        sig = dataclasses.replace(g.sig, form=dataclasses.replace(form, windows=windows))
        stage = dataclasses.replace(p.stages[0], groups=(dataclasses.replace(g, sig=sig),))
        return dataclasses.replace(p, stages=(stage,))

    verify(broken(form.windows))
    with pytest.raises(PlanError, match="stored over groups of elements, but no reduce makes it"):
        verify(broken(None))
    with pytest.raises(PlanError, match="windows of 4 rows are not 128"):
        verify(broken(Var("g", 31)))


def test_can_be_left_out_to_measure_it() -> None:
    assert "window_rows" in OPTIONAL
    assert taps(plan(layer, *arguments(), without=("window_rows",))) == [1]
    in_order = plan(lambda x, w, b: pool(conv(x, w) + b, 1, 1, 2, 1), *arguments(),
                    without=("window_rows",))
    assert taps(in_order) == [1]


def test_weights_in_another_type_are_stored() -> None:
    """A product that pools its rows would round them element by element."""
    args = spec(2, 64, 64, 64, dtype=BF16), spec(3, 3, 64, 256), spec(256, dtype=BF16)
    made = make_plan(models.graph_of(lambda x, w, b: layer(x, w.astype(BF16), b), *args), Device())
    assert [[g.sig.kind for g in s.groups] for s in made.stages] == [["loop"], ["dot"]]
    (form,) = [s.form for s in made.sigs if isinstance(s.form, DotForm)]
    assert form.taps == 4
