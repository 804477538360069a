"""Contractions of few rows in shares of k, which the norm behind them adds up (share_k.py)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import models
import numpy as np
import pytest

from jaxmono._build import OPTIONAL
from jaxmono.fusion import make_plan
from jaxmono.fusion.interp import run_plan
from jaxmono.fusion.plan import Device, DotForm, Plan
from jaxmono.fusion.text import plan_to_text
from jaxmono.hlo.interp import evaluate

ROWS, K, COLUMNS = 96, 768, 256
Golden = Callable[[str, str], None]


def spec(*shape: int, dtype: Any = jnp.bfloat16) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(shape, dtype)


def norm(z: Any) -> Any:
    x = z.astype(jnp.float32)
    return (x * jax.lax.rsqrt(jnp.mean(x * x, -1, keepdims=True) + 1e-6)).astype(z.dtype)


def layer(a: Any, w: Any, bias: Any, x: Any) -> Any:
    return norm(x + (a @ w + bias))


def arguments(m: int = ROWS, k: int = K, n: int = COLUMNS, dtype: Any = jnp.bfloat16) -> list[Any]:
    return [spec(m, k, dtype=dtype), spec(k, n, dtype=dtype), spec(n, dtype=dtype),
            spec(m, n, dtype=dtype)]


def plan(fn: Callable[..., Any], *args: Any, without: tuple[str, ...] = ()) -> Plan:
    """Plans ``fn``, and checks with small integers, whose sums are exact, that every output has the
    program's own bits but for what a norm's f32 sums may change."""
    graph = models.graph_of(fn, *args)
    made = make_plan(graph, Device(), without=without)
    rng = np.random.default_rng(0)
    inputs = [rng.integers(-2, 3, v.type.dims).astype(v.type.dtype.numpy) for v in graph.inputs]
    for got, want in zip(run_plan(made, inputs, seed=1), evaluate(graph, inputs), strict=True):
        np.testing.assert_allclose(got.astype(np.float32), want.astype(np.float32), rtol=2 ** -7,
                                   atol=1e-6)
    return made


def kinds(p: Plan) -> list[list[str]]:
    return [[g.sig.kind for g in s.groups] for s in p.stages]


def shares(p: Plan) -> list[int]:
    return [s.form.batch.size for s in p.sigs if isinstance(s.form, DotForm)]


def test_a_norm_adds_up_the_shares(golden: Golden) -> None:
    p = plan(layer, *arguments())
    assert kinds(p) == [["dot"], ["row"]] and shares(p) == [4]
    assert any("leave the sum" in note for note in p.notes)
    golden("plan_share_k", plan_to_text(p))


def test_what_others_read_is_stored_by_the_same_group() -> None:
    """A norm in front of a layer: the sum of before is the next residual."""
    def fn(a: Any, w: Any, bias: Any, x: Any, v: Any) -> Any:
        z = x + (a @ w + bias)
        return z + norm(z) @ v

    p = plan(fn, *arguments(), spec(COLUMNS, COLUMNS))
    assert kinds(p) == [["dot"], ["row"], ["dot"]]
    assert len(p.stages[1].groups[0].sig.body.outputs) == 2


def test_bits_of_the_sum_itself() -> None:
    """Rounded to the contraction's type before the bias, as its result was."""
    def fn(a: Any, w: Any, bias: Any, x: Any) -> Any:
        z = x + (a @ w + bias)
        return z, norm(z)

    graph = models.graph_of(fn, *arguments())
    rng = np.random.default_rng(1)
    inputs = [rng.integers(-9, 10, v.type.dims).astype(v.type.dtype.numpy) for v in graph.inputs]
    p = make_plan(graph, Device())
    assert shares(p) == [4]
    got, want = run_plan(p, inputs, seed=0)[0], evaluate(graph, inputs)[0]
    assert np.array_equal(got, want)
    assert np.abs(want.astype(np.float32)).max() > 512  # there is something to round


@pytest.mark.parametrize("dtype", [jnp.bfloat16, jnp.float32])
def test_leading_dimensions_and_a_softmax(dtype: Any) -> None:
    def fn(a: Any, w: Any) -> Any:
        return jax.nn.softmax(jnp.dot(a, w, preferred_element_type=dtype).astype(jnp.float32), -1)

    p = plan(fn, spec(2, ROWS // 2, K), spec(K, COLUMNS))
    assert kinds(p) == [["dot"], ["row"]] and shares(p) == [4]


def test_heads_are_shared_as_they_are() -> None:
    """Of several contracting dimensions the first one is taken apart."""
    def fn(a: Any, w: Any, x: Any) -> Any:
        return norm(x + jnp.einsum("hmd,hdn->mn", a, w))

    p = plan(fn, spec(12, ROWS, 64), spec(12, 64, COLUMNS), spec(ROWS, COLUMNS))
    assert kinds(p) == [["dot"], ["row"]] and shares(p) == [4]


def heads(a: Any, w: Any) -> Any:
    return norm(jnp.einsum("hmd,hdn->mn", a, w))


@pytest.mark.sampled(3)
@pytest.mark.parametrize(("fn", "args", "reason"), [
    (layer, arguments(k=320), "a k of 320 is not 2 shares of whole 64s, each 192 or more"),
    (layer, arguments(dtype=jnp.float32), "its operands are f32 and f32, not both bf16 or both"),
    (heads, [spec(128, ROWS, 3), spec(128, 3, COLUMNS)], "2 does not divide the first dimension"),
    (layer, arguments(m=33, n=4352), "2 shares of a row of 4352 f32 are more than 32 KiB"),
    (layer, arguments(m=32), ""),
    (layer, arguments(m=257), ""),
    (layer, arguments(n=128), ""),
    (layer, arguments(m=256, n=2048, k=768), ""),
    (lambda a, w, b, x: a @ w + b + x, arguments(), ""),
    (lambda a, w, b, x: jnp.max(a @ w + b + x, 0), arguments(), ""),
    (lambda a, w, b, x: (jnp.max(a @ w, -1), (a @ w) @ x.T), arguments(), ""),
    (lambda a, w, b, x: jnp.max((a @ w)[:, ::2], -1), arguments(), ""),
], ids=["uneven k", "f32", "three a head", "long rows", "few rows", "many rows", "narrow",
        "tiles for all", "no reduce", "along the rows", "a contraction reads it",
        "a part is reduced"])
def test_others_stay_whole(fn: Callable[..., Any], args: list[Any], reason: str) -> None:
    """And why, if they are of the kind."""
    p = plan(fn, *args)
    assert set(shares(p)) == {1}
    told = [note for note in p.notes if "shares of its k to the norm behind it" in note]
    assert len(told) == bool(reason)
    assert all(note.startswith("the contraction of ") and "test_share_k.py" in note
               and reason in note for note in told), told


def test_a_programs_own_slices_of_a_batch_are_no_shares() -> None:
    """Only the sum over a whole batch is, in its order, and in front of a norm."""
    def fn(a: Any, b: Any, x: Any) -> Any:
        d = jnp.einsum("bmk,bkn->bmn", a, b, preferred_element_type=jnp.float32)
        return x + d[1], d[1] + d[0], d[2] + d[1]

    p = plan(fn, spec(3, 40, 24), spec(3, 24, 16), spec(40, 16, dtype=jnp.float32))
    assert [s.kind for s in p.sigs] == ["dot", "loop"]

    def summed(a: Any, b: Any) -> Any:
        return sum(jnp.einsum("bmk,bkn->bmn", a, b, preferred_element_type=jnp.float32))

    batch = spec(3, 40, 24), spec(3, 24, 16)
    assert kinds(plan(summed, *batch)) == [["dot"], ["loop"]]
    assert kinds(plan(lambda a, b: norm(summed(a, b)), *batch)) == [["dot"], ["row"]]


def test_a_sum_of_scalars_is_no_norm() -> None:
    def fn(a: Any, b: Any) -> Any:
        d = jnp.einsum("bk,bk->b", a, b, preferred_element_type=jnp.float32)
        return d[0] + d[1]

    assert "row" not in kinds(plan(fn, spec(2, 512), spec(2, 512)))[-1]


def test_can_be_left_out_to_measure_it() -> None:
    assert "share_k" in OPTIONAL
    p = plan(layer, *arguments(), without=("share_k",))
    assert shares(p) == [1] and not any("leave the sum" in note for note in p.notes)
