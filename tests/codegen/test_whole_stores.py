"""Pieces of an epilogue leave in one instruction each; the compiler would take some apart."""

from __future__ import annotations

import re

import jax
import jax.numpy as jnp
import pytest
from models import graph_of
from test_guarded_loads import ptx

from jaxmono.codegen.generate import emit
from jaxmono.codegen.headers import bundle
from jaxmono.codegen.target import cuda_target
from jaxmono.fusion import make_plan
from jaxmono.fusion.plan import Device

H200 = Device(shared_bytes=cuda_target("sm_90a").shared_bytes, wgmma=True)


def stores(m: int, n: int, k: int, dtype: type) -> list[str]:
    """The kinds of global stores of a product's kernel."""
    a, b = (jax.ShapeDtypeStruct(s, dtype) for s in ((m, k), (k, n)))
    plan = make_plan(graph_of(lambda x, y: x @ y, a, b), H200)
    source = emit(plan, cuda_target("sm_90a"), H200, "kernel").source
    return re.findall(r"\bst\.global\.(\w+(?:\.\w+)?)", ptx(bundle(source)))


@pytest.mark.parametrize(("m", "n", "k"), [(65536, 256, 64), (65536, 256, 256), (2048, 768, 768)])
def test_products_leave_in_vectors(m: int, n: int, k: int) -> None:
    found = stores(m, n, k, jnp.bfloat16)
    assert found
    assert all(kind.startswith("v4.") for kind in found), found
