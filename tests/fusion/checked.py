"""A function's plan, checked by running it, for tests of what is planned."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import models
import numpy as np

from jaxmono.fusion import make_plan
from jaxmono.fusion.interp import run_plan
from jaxmono.fusion.plan import Device, Plan
from jaxmono.hlo.interp import evaluate


def checked(fn: Callable[..., Any], *args: Any, without: tuple[str, ...] = (),
            device: Device | None = None) -> Plan:
    """Plans ``fn``, and checks it with small integers, whose products are exact."""
    graph = models.graph_of(fn, *args)
    made = make_plan(graph, device or Device(), without=without)
    rng = np.random.default_rng(0)
    inputs = [rng.integers(-2, 3, v.type.dims).astype(v.type.dtype.numpy) for v in graph.inputs]
    for got, want in zip(run_plan(made, inputs, seed=1), evaluate(graph, inputs), strict=True):
        np.testing.assert_allclose(got.astype(np.float32), want.astype(np.float32), rtol=2 ** -7)
    return made


def kinds(p: Plan) -> list[list[str]]:
    """Of the groups of each stage."""
    return [[g.sig.kind for g in s.groups] for s in p.stages]
