"""Random programs: the plan computes what the graph computes, in any order inside stages."""

from __future__ import annotations

import models
import numpy as np
import pytest
from programs import random_program
from random_graphs import RandomGraph
from thinned import thinned

from jaxmono.fusion import make_plan, recompute
from jaxmono.fusion.interp import run_plan
from jaxmono.fusion.plan import Device
from jaxmono.fusion.regions import find_regions
from jaxmono.fusion.text import plan_to_text
from jaxmono.hlo.interp import evaluate
from jaxmono.hlo.ir import Graph
from jaxmono.hlo.passes import simplify


def check(graph: Graph, seed: int, device: Device | None = None) -> None:
    plan = make_plan(graph, device or Device())
    inputs = models.random_inputs(graph, seed)
    expected = evaluate(graph, inputs)
    for order in (seed, seed + 1):
        for got, want in zip(run_plan(plan, inputs, seed=order), expected, strict=True):
            if want.dtype.kind in "iub":
                np.testing.assert_array_equal(got, want)
            else:
                np.testing.assert_allclose(got.astype(np.float64), want.astype(np.float64),
                                           rtol=1e-2 if want.itemsize < 4 else 1e-4, atol=1e-4)
    assert plan_to_text(make_plan(graph, device or Device())) == plan_to_text(plan)


@pytest.mark.sampled(7)
@pytest.mark.parametrize("block", thinned(range(12)))
def test_random_graphs(block: int) -> None:
    for seed in range(block * 20, block * 20 + 20):
        graph = RandomGraph(seed, 10 + seed % 25).graph()
        check(simplify(graph) if seed % 2 else graph, seed)


@pytest.mark.sampled(7)
@pytest.mark.parametrize("block", range(4))
def test_random_graphs_on_a_tiny_device(block: int) -> None:
    """Other trade-offs: recomputing is expensive, shared memory small, stages free."""
    tiny = Device(sm_count=1, shared_bytes=4096, phase_us=0.0)
    for seed in range(1000 + block * 20, 1020 + block * 20):
        check(RandomGraph(seed, 10 + seed % 25).graph(), seed, tiny)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("block", thinned(range(4)))
def test_random_graphs_whose_values_are_computed_again(block: int,
                                                       monkeypatch: pytest.MonkeyPatch) -> None:
    """However few bytes that saves."""
    monkeypatch.setattr(recompute, "MIN_BYTES", 0)
    for seed in range(2000 + block * 30, 2030 + block * 30):
        check(simplify(RandomGraph(seed, 20 + seed % 35).graph()), seed)


@pytest.mark.sampled(7)
@pytest.mark.parametrize("block", range(4))
def test_random_jax_programs(block: int) -> None:
    for seed in range(block * 12, block * 12 + 12):
        program = random_program(seed)
        graph = models.graph_of(program.fun, *program.args)
        if not find_regions(graph)[1]:
            check(graph, seed)
