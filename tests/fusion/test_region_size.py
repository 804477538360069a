"""Programs with more different parts than one kernel should have (region_size.py)."""

from __future__ import annotations

import time
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from models import f32, random_inputs
from test_regions import raw, run

import jaxmono
from jaxmono.fusion import region_size
from jaxmono.fusion.regions import Region, find_regions
from jaxmono.hlo.interp import evaluate
from jaxmono.hlo.ir import Graph

X = Any
WIDTHS = tuple(range(8, 40, 2))


def tower(x: X, *weights: X) -> X:
    """Layers of other widths; between every two of them one value is alive, in them three."""
    for up, down in zip(weights[::2], weights[1::2], strict=True):
        y = jnp.tanh(x @ up)
        z = jnp.sin(x @ up) + y
        x = jnp.cos(z * y) @ down
    return x


def arguments(widths: tuple[int, ...]) -> list[Any]:
    return [f32(16, 8), *(f32(*s) for w in widths for s in ((8, w), (w, 8)))]


@pytest.fixture(autouse=True)
def _small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(region_size, "MOST_LINES", 1200)
    monkeypatch.setattr(region_size, "LEAST_US", 0.0)


def checked(graph: Graph) -> tuple[Region, ...]:
    regions, refused = find_regions(graph)
    assert not refused
    inputs = random_inputs(graph)
    for got, want in zip(run(graph, regions, inputs), evaluate(graph, inputs), strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-5)
    return regions


def test_a_long_program_is_several_kernels() -> None:
    graph = raw(tower, *arguments(WIDTHS))
    regions = checked(graph)
    assert len(regions) > 3
    assert [r.note for r in regions] == ["", *[region_size.NOTE] * (len(regions) - 1)]
    for r in regions:
        lines = region_size._lines(graph, [graph.ops[i] for i in r.op_indices])[-1]
        assert lines <= 1.3 * region_size.MOST_LINES


def test_explain_tells_why() -> None:
    first, *others = jaxmono.explain(tower)(*arguments(WIDTHS)).planned
    assert len(others) > 2 and region_size.NOTE not in first.notes
    assert all(region_size.NOTE in kernel.notes for kernel in others)


def test_several_kernels_compute_what_one_does() -> None:
    widths = WIDTHS[:9]
    args = [x * 0.3 for x in random_inputs(raw(tower, *arguments(widths)))]
    compiled = jaxmono.jit(tower, interpret=True).lower(*args).compile()
    assert compiled.explain().kernels == 2
    with jax.default_matmul_precision("highest"):
        wanted = jax.jit(tower)(*args)
    np.testing.assert_allclose(compiled(*args), wanted, rtol=1e-2, atol=2e-3)  # tf32


def test_it_is_cut_where_the_least_is_alive() -> None:
    for r in checked(raw(tower, *arguments(WIDTHS)))[:-1]:
        assert [v.type.dims for v in r.outputs] == [(16, 8)]


def test_networks_beside_each_other_are_one_kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    def two(x: X, *weights: X) -> X:
        half = len(weights) // 2
        return tower(x, *weights[:half]) + tower(x * 2, *weights[half:])

    graph = raw(two, *arguments(WIDTHS))
    assert len(checked(graph)) == 1
    monkeypatch.setattr(region_size, "_SIDE_BY_SIDE", 9.0)
    assert len(checked(graph)) > 1


def test_equal_layers_are_not_cut() -> None:
    """Of a loss's gradients those of all layers have the same text: forward, and backward. What is
    in front of these and behind them is cut, and they are in one of the parts."""
    def loss(x: X, w: X, *others: X) -> X:
        x = tower(x, *others[:8])
        for _ in range(12):
            x = tower(x, w, w.T)
        return jnp.sum(tower(x, *others[8:]) ** 2)

    graph = raw(jax.grad(loss, argnums=1), f32(16, 8), f32(8, 50), *arguments(WIDTHS[:8])[1:])
    regions = checked(graph)
    assert len(regions) > 1
    kinds = [{region_size._kind(graph, graph.ops[i]) for i in r.op_indices} for r in regions]
    assert max(len(a & b) for a in kinds for b in kinds if a is not b) \
        < min(map(len, kinds)) / 2


def test_equal_layers_are_one_kernel_however_many() -> None:
    assert len(checked(raw(tower, *arguments((12,) * 40)))) == 1


def test_what_a_launch_would_slow_down_is_one_kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(region_size, "LEAST_US", 150.0)
    assert len(checked(raw(tower, *arguments(WIDTHS)))) == 1


def test_stages_that_follow_on_each_other_take_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """32 small products: a launch more is little beside their barriers."""
    monkeypatch.setattr(region_size, "LEAST_US", 15.0)
    assert len(checked(raw(tower, *arguments(WIDTHS)))) > 2


def test_a_long_loop_is_no_end() -> None:
    """It has more lines than a kernel should, and cannot be cut itself."""
    def fn(x: X, *weights: X) -> X:
        def body(_: X, x: X) -> X:
            return tower(x, *weights[:24])

        x = jax.lax.fori_loop(0, 2, body, tower(x, *weights[:10]))
        return tower(x, *weights)

    assert len(checked(raw(fn, *arguments(WIDTHS)))) > 3


def test_many_equal_ops_are_no_work(monkeypatch: pytest.MonkeyPatch) -> None:
    """Thousands of places to cut, none of which is far enough from the begin."""
    monkeypatch.setattr(region_size, "LEAST_US", 1000.0)

    def fn(x: X, large: X, *weights: X) -> X:
        x = tower(x, *weights[:8])
        for _ in range(3000):
            x = x + 1
        return tower(x, *weights[8:]), large @ large

    x, *weights = arguments(WIDTHS)
    graph = raw(fn, x, f32(16384, 16384), *weights)
    begin = time.perf_counter()
    assert len(find_regions(graph)[0]) == 1
    assert time.perf_counter() - begin < 5


@pytest.mark.parametrize(("trips", "several"), [(2, False), (40, True)])
def test_every_trip_of_a_loop_takes_time(trips: int, several: bool,
                                         monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(region_size, "LEAST_US", 100.0)

    def fn(x: X, *weights: X) -> X:
        half = len(weights) // 2
        for part in weights[:half], weights[half:]:
            x = jax.lax.fori_loop(0, trips, lambda _, x, w=part[:2]: tower(x, *w), x)
            x = tower(x, *part)
        return x

    assert (len(checked(raw(fn, *arguments(WIDTHS)))) > 1) == several


def test_the_parts_of_a_gradient() -> None:
    def loss(*args: X) -> X:
        return jnp.sum(tower(*args) ** 2)

    graph = raw(jax.grad(loss, argnums=tuple(range(1 + 2 * len(WIDTHS)))), *arguments(WIDTHS))
    regions = checked(graph)
    assert len(regions) > 4
    made: set[Any] = set(graph.inputs)
    for r in regions:  # each reads of earlier ones only
        assert made.issuperset(r.inputs)
        made.update(r.outputs)
