"""Sums of a few products that lie apart, or of many small matrices: element by element."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from models import graph_of, random_inputs

from jaxmono.fusion import make_plan
from jaxmono.fusion.interp import run_plan
from jaxmono.fusion.plan import Device
from jaxmono.hlo.interp import evaluate

CASES: dict[str, tuple[Any, tuple[tuple[int, ...], ...], str]] = {
    "the best two": (lambda y, s: jnp.einsum("tkd,tk->td", y, s), ((64, 2, 256), (64, 2)), "loop"),
    "the other way round": (lambda s, y: jnp.einsum("tk,tkd->td", s, y), ((64, 4), (64, 4, 128)),
                            "loop"),
    "neighbours": (lambda y, s: jnp.einsum("tdk,tk->td", y, s), ((64, 256, 2), (64, 2)), "row"),
    "six": (lambda y, s: jnp.einsum("tkd,tk->td", y, s), ((64, 6, 256), (64, 6)), "row"),
    "poses": (lambda a, b: jnp.einsum("nij,njk->nik", a, b), ((512, 4, 4), (512, 4, 4)), "loop"),
    "points": (lambda r, p: jnp.einsum("nij,npj->npi", r, p), ((300, 3, 3), (300, 8, 3)), "loop"),
    "few matrices": (lambda a, b: jnp.einsum("nij,njk->nik", a, b), ((64, 4, 4), (64, 4, 4)),
                     "dot"),
    "larger ones": (lambda a, b: jnp.einsum("nij,njk->nik", a, b), ((512, 4, 16), (512, 16, 4)),
                    "dot"),
}


@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16])
@pytest.mark.parametrize("name", CASES)
def test_sums_of_few_products(name: str, dtype: Any) -> None:
    fn, shapes, kind = CASES[name]
    graph = graph_of(fn, *(jax.ShapeDtypeStruct(s, dtype) for s in shapes))
    plan = make_plan(graph, Device())
    assert [g.sig.kind for g in plan.groups] == [kind]
    values = random_inputs(graph)
    for got, want in zip(run_plan(plan, values), evaluate(graph, values), strict=True):
        np.testing.assert_allclose(np.asarray(got, np.float32), np.asarray(want, np.float32),
                                   1e-2 if dtype == jnp.bfloat16 else 1e-5, 1e-2)
