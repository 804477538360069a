"""Pieces of an epilogue leave in one instruction each; the compiler would take some apart. Tables
begin as the vectors do that are read of them."""

from __future__ import annotations

import re

import jax
import jax.numpy as jnp
import numpy as np
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


def test_tables_are_aligned() -> None:
    """A compiler aligns arrays of bytes to bytes, one behind the other."""
    table = np.arange(64, dtype=np.float32) ** 0.5
    x = jax.ShapeDtypeStruct((64, 64), jnp.float32)
    plan = make_plan(graph_of(lambda x: x * table + jnp.exp(x) * table[::-1].copy(), x), H200)
    source = emit(plan, cuda_target("sm_90a"), H200, "kernel").source
    assert "load<float, 4>(table" in source
    assert len(re.findall(r"\.align 16 \.b8 \w*table", ptx(bundle(source)))) == 2
