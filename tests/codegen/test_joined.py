"""What is computed of a concatenation: its parts are read where an element lies, and only there."""

from __future__ import annotations

import re
from typing import Any

import jax
import jax.numpy as jnp
import pytest
from harness import DEVICE, check
from harness_graphs import data
from jax import lax
from models import graph_of

from jaxmono.codegen.generate import emit
from jaxmono.codegen.target import cuda_target
from jaxmono.fusion import make_plan
from jaxmono.fusion.plan import Device, LoopForm, Plan

F32, BF16, S32 = jnp.float32, jnp.bfloat16, jnp.int32
X = Any


def largest(*xs: X, axis: int = -1) -> X:
    """A pool behind joined branches, as in Inception."""
    y = jnp.concatenate(xs, axis)
    return lax.reduce_window(y, jnp.asarray(-jnp.inf, y.dtype), lax.max, (1, 3, 3, 1),
                             (1, 2, 2, 1), "VALID")


def mean(*xs: X, axis: int = -1) -> X:
    return lax.reduce_window(jnp.concatenate(xs, axis), jnp.asarray(0, xs[0].dtype), lax.add,
                             (1, 3, 3, 1), (1, 1, 1, 1), "SAME") * 2


def one_by_one(*xs: X, axis: int = -1) -> X:
    return jnp.concatenate(xs, axis) * 3 + 1


def half_computed(*xs: X, axis: int = -1) -> X:
    return largest(xs[0], jnp.maximum(xs[1], 0) * 2, *xs[2:], axis=axis)


def planned(fn: Any, shapes: list[tuple[int, ...]], dtype: Any, device: Device = DEVICE,
            **kw: Any) -> Plan:
    args = [jax.ShapeDtypeStruct(s, dtype) for s in shapes]
    return make_plan(graph_of(lambda *xs: fn(*xs, **kw), *args), device)


def images(*columns: int) -> list[tuple[int, ...]]:
    return [(2, 7, 9, c) for c in columns]


@pytest.mark.sampled(7)
@pytest.mark.parametrize(("fn", "shapes", "dtype", "axis"), [
    (largest, images(16, 24, 8), BF16, -1),
    (largest, images(8, 8), F32, -1),
    (largest, images(5, 3, 1), BF16, -1),
    (largest, [(2, 3, 9, 8), (2, 1, 9, 8), (2, 5, 9, 8)], F32, 1),
    (half_computed, images(8, 16, 8), BF16, -1),
    (mean, images(16, 8, 8, 24), BF16, -1),
    (mean, images(6, 7), F32, -1),
    (mean, [(2, 7, 4, 8), (2, 7, 6, 8)], F32, 2),
    (one_by_one, images(4, 12, 8), S32, -1),
    (one_by_one, [(3, 8), (1, 8), (2, 8)], F32, 0),
])
def test_the_elements(fn: Any, shapes: list[tuple[int, ...]], dtype: Any, axis: int) -> None:
    plan = planned(fn, shapes, dtype, axis=axis)
    check(plan.graph, [data(v, i) for i, v in enumerate(plan.graph.inputs)], plan=plan)


@pytest.mark.parametrize("fn", [largest, mean])
def test_a_load_for_each_tap_and_no_branch(fn: Any) -> None:
    plan = planned(fn, [(32, 8, 8, c) for c in (320, 384, 384, 192)], BF16, Device())
    (sig,) = plan.sigs
    assert isinstance(sig.form, LoopForm)
    source = emit(plan, cuda_target("sm_90a"), Device(), "k").source
    body = source[source.index("_loop_concat"):source.index('extern "C"')]
    assert "else" not in body and len(re.findall(r"\bpart0 = ", body)) == 1
    places = len(re.findall(r"\bstore<", body))
    assert 9 <= len(re.findall(r"load_ro<float, \d>\([^;]*part0 ", body)) <= 9 * places
    assert not re.search(r"load\w*<[^>]*>\(p\d", body)


def test_flagged_parts_stay_behind_branches() -> None:
    """A value with flags is waited for by its own loads, and is no pointer."""
    def pooled(y: X) -> X:
        return lax.reduce_window(y, jnp.asarray(-jnp.inf, y.dtype), lax.max, (1, 3, 3, 1),
                                 (1, 1, 1, 1), "VALID")

    def fn(x: X, z: X) -> X:
        y = pooled(jnp.concatenate([jax.nn.softmax(x, -1), jax.nn.softmax(z, -1)], -1)) * 2
        return jax.nn.softmax(pooled(y), -1) * jnp.sum(y, (1, 2))[:, None, None, :]

    plan = planned(fn, [(1, 7, 9, 16), (1, 7, 9, 24)], BF16)
    program = check(plan.graph, [data(v, i) for i, v in enumerate(plan.graph.inputs)], plan=plan)
    assert "Flagged<bf16> p0" in program.source
