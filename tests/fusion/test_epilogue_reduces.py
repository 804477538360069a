"""Reduces that begin in the epilogue of the contraction whose results they reduce."""

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
from jaxmono.fusion.interp import run_plan
from jaxmono.fusion.plan import Device, DotForm, Place, Plan
from jaxmono.fusion.text import plan_to_text
from jaxmono.fusion.verify import verify
from jaxmono.hlo.interp import evaluate

Golden = Callable[[str, str], None]
BF16, F32 = jnp.bfloat16, jnp.float32
X = Any


def spec(*shape: int, dtype: Any = BF16) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(shape, dtype)


def product(x: X, w: X) -> X:
    return jnp.matmul(x, w, preferred_element_type=F32)


def gradient(x: X, w: X, z: X) -> X:
    dz = jnp.where(z > 0, product(x, w), 0).astype(BF16)
    return dz, jnp.sum(dz.astype(F32), axis=(0, 1))


def batch_norm(x: X, w: X) -> X:
    y = product(x, w).astype(BF16)
    wide = y.astype(F32)
    mean = wide.mean(0)
    return ((wide - mean) * lax.rsqrt((wide * wide).mean(0) - mean * mean + 1)).astype(BF16)


def nearest(x: X, words: X) -> X:
    return jnp.argmin(jnp.sum(words.astype(F32) ** 2, 1) - 2 * product(x, words.T), 1)


def plan(fn: Callable[..., Any], *args: Any, rtol: float = 0.0, without: tuple[str, ...] = (),
         ) -> Plan:
    """Plans ``fn``, and checks with small integers, whose sums are exact, that the plan's outputs
    have the program's own bits (or are as near as ``rtol``)."""
    graph = models.graph_of(fn, *args)
    made = make_plan(graph, Device(), without=without)
    rng = np.random.default_rng(0)
    inputs = [rng.integers(-2, 3, v.type.dims).astype(v.type.dtype.numpy) for v in graph.inputs]
    for got, want in zip(run_plan(made, inputs, seed=1), evaluate(graph, inputs), strict=True):
        np.testing.assert_allclose(got.astype(np.float32), want.astype(np.float32), rtol=rtol)
    return made


def kinds(p: Plan) -> list[list[str]]:
    return [[g.sig.kind for g in s.groups] for s in p.stages]


def groups(p: Plan) -> list[tuple[int, ...]]:
    """Sizes of what the contractions store of their reduces."""
    return [tuple(v.size for v in s.over) for sig in p.sigs if isinstance(sig.form, DotForm)
            for s in sig.form.reduced]


def test_a_bias_gradient_comes_with_what_it_sums(golden: Golden) -> None:
    p = plan(gradient, spec(4, 512, 64), spec(64, 512), spec(4, 512, 512))
    assert kinds(p) == [["dot"], ["row"]] and groups(p) == [(1, 128, 512)]
    assert p.notes == ("1 contractions begin in their epilogues what reduces their results",)
    golden("plan_epilogue_reduces", plan_to_text(p))


@pytest.mark.parametrize("dtype", [BF16, jnp.float16])
def test_sums_of_16_bits_are_f32_until_they_are_whole(dtype: Any) -> None:
    """So is a bias's gradient in Flax, of which no one asks for f32."""
    def fn(x: X, w: X, b: X, back: X) -> X:
        return jax.vjp(lambda b: jax.nn.relu(x @ w + b), b)[1](back)

    p = plan(fn, *(spec(*s, dtype=dtype) for s in ((1024, 64), (64, 512), (512,), (1024, 512))))
    assert kinds(p) == [["dot"], ["row"]] and groups(p) == [(1, 64, 512)]
    assert [str(b.type) for b in p.buffers if b.place is Place.SCRATCH] == ["f32[64,512]"]
    assert all(b.type.dtype.numpy == dtype for b in p.outputs)


def test_what_is_only_reduced_is_never_stored() -> None:
    for fn in (lambda x, w: jnp.max(product(x, w), axis=-1), lambda x, w: product(x, w).sum(0),
               lambda x, w: jnp.argmax(product(x, w), axis=-1),
               lambda x, w: ((product(x, w) ** 2).sum(-1), product(x, w).sum(-1))):
        p = plan(fn, spec(1024, 64), spec(64, 1024))
        assert groups(p) and max(b.type.nbytes for b in p.buffers) < 1 << 20


def test_the_batchs_mean_and_variance_are_finished_by_one_group() -> None:
    p = plan(batch_norm, spec(4096, 64), spec(64, 256), rtol=1e-2)
    assert kinds(p) == [["dot"], ["row"], ["loop"]] and groups(p) == [(1, 256, 256)] * 2


def test_many_groups_of_rows_are_reduced_in_two_more_steps() -> None:
    p = plan(batch_norm, spec(16384, 16), spec(16, 64), rtol=1e-2)
    assert kinds(p) == [["dot"], ["row"], ["row"], ["loop"]]


def test_a_contraction_waits_for_what_its_epilogue_needs() -> None:
    p = plan(nearest, spec(512, 64), spec(1024, 64))
    assert kinds(p) == [["row"], ["dot"], ["row"]] and groups(p) == [(1, 512, 32)] * 2
    assert kinds(plan(nearest, spec(512, 64), spec(1024, 64), without=("epilogue_reduces",))) == \
        [["row", "dot"], ["row"]]


@pytest.mark.sampled(2)
@pytest.mark.parametrize(("m", "n"), [(1000, 640), (1001, 651)])
def test_rows_that_are_no_whole_groups(m: int, n: int) -> None:
    def fn(x: X, w: X) -> X:
        y = product(x, w)
        return y, y.sum(0), y.max(0)

    assert groups(plan(fn, spec(m, 64), spec(64, n))) == [(1, 63, n)] * 2


@pytest.mark.parametrize("n", [1000, 1001, 1030])
def test_columns_that_are_no_whole_groups(n: int) -> None:
    p = plan(lambda x, w: jnp.argmin(product(x, w), axis=1), spec(600, 64), spec(64, n))
    assert groups(p) == [(1, 600, -(-n // 32))] * 2


def test_a_transposed_result_is_reduced_as_well() -> None:
    """Here as columns: the contraction is turned round."""
    p = plan(lambda x, w: product(x, w).T.sum(1), spec(1024, 64), spec(64, 512))
    assert groups(p) == [(1, 512, 32)]


@pytest.mark.sampled(7)
@pytest.mark.parametrize(("fn", "args", "reason"), [
    (lambda x, w: jax.nn.softmax(product(x, w), axis=-1), (spec(1024, 64), spec(64, 1024)),
     "its group reads these rows for what else it writes"),
    (lambda x, w: (product(x, w), product(x, w).sum(1)), (spec(1024, 64), spec(64, 1024)),
     "what is reduced is stored as well, and its rows are short"),
    (lambda x, w: product(x, w).sum(0), (spec(32768, 64), spec(64, 16)),
     "32768 rows and 16 columns are fewer than 256 and 32"),
    (lambda x, w: product(x, w).sum(0), (spec(128, 64), spec(64, 4096)),
     "128 rows and 4096 columns are fewer than 256 and 32"),
    (lambda x, w: (product(x, w).astype(BF16), product(x, w).astype(BF16).max(0)),
     (spec(512, 64), spec(64, 768)), "768 KiB are read in little time"),
    (lambda x, w, r: ((y := product(x, w) - r.sum(1).astype(F32)[:, None]), y.sum(0)),
     (spec(1024, 64), spec(64, 1024), spec(1024, 64)),
     "the contraction would wait for what else is reduced"),
], ids=["softmax", "short rows", "few columns", "few rows", "few bytes", "waits"])
def test_what_stays_whole_says_why(fn: Callable[..., Any], args: tuple[Any, ...], reason: str,
                                   ) -> None:
    p = plan(fn, *args, rtol=0.05)
    assert not groups(p) and any(n.endswith(reason) for n in p.notes), p.notes


def test_what_is_stored_for_the_reduce_alone_need_not_be_large() -> None:
    def fn(x: X, w: X, z: X) -> X:
        dz = jnp.where(z > 0, product(x, w), 0)
        return dz.astype(BF16), dz.sum(0)

    p = plan(fn, spec(1024, 64), spec(64, 512), spec(1024, 512))
    assert groups(p) == [(1, 64, 512)] and all(b.type.nbytes < 2 << 20 for b in p.buffers)


def test_others_read_what_is_stored_in_fewer_bytes() -> None:
    p = plan(batch_norm, spec(4096, 64), spec(64, 256), rtol=1e-2)
    assert max(b.type.nbytes for b in p.buffers) == 4096 * 256 * 2, "bf16, not f32"


def test_operands_of_other_shapes() -> None:
    def fn(x: X, w: X, t: X) -> X:
        y = jnp.einsum("abk,kn->abn", x, w, preferred_element_type=F32).reshape(-1, 1024)
        pairs = y, jnp.exp(t.reshape(-1, 1024))
        return lax.reduce(pairs, (jnp.float32(0), jnp.float32(0)),
                          lambda a, b: (a[0] + b[0], a[1] + b[1]), (1,))

    assert groups(plan(fn, spec(8, 128, 64), spec(64, 1024), spec(8, 128, 1024, dtype=F32),
                       rtol=1e-4))


def test_all_that_a_contraction_waits_for() -> None:
    def fn(x: X, w: X, a: X) -> X:
        d = product(x, w)
        deep = jnp.exp(a.max(1) - jnp.exp(a.sum(1)).max())
        return (deep - d).min(1), (a.sum(1) - d).max(1)

    for order in (1, -1):
        p = plan(lambda *x, o=order: fn(*x)[::o], spec(1024, 64), spec(64, 1024),
                 spec(1024, 32, dtype=F32), rtol=1e-4)
        assert groups(p) == [(1, 1024, 32)] * 2


def test_a_reduce_of_a_part_stores_the_whole() -> None:
    def fn(x: X, w: X) -> X:
        y = product(x, w)
        return y.sum(1), y.reshape(8, 64, 1024).sum(1)

    p = plan(fn, spec(512, 64), spec(64, 1024), rtol=1e-4)
    assert not groups(p)
    assert any(n.endswith("what is reduced is stored as well, and its rows are short")
               for n in p.notes)


def test_a_bias_gradient_beside_its_weights_begins_too() -> None:
    """In a training step: the gradient of the weights reads the same."""
    def fn(x: X, w: X, z: X, u: X) -> X:
        dz, db = gradient(x, w, z)
        return dz, db, jnp.einsum("abn,abk->nk", dz, u)

    p = plan(fn, spec(4, 512, 64), spec(64, 512), spec(4, 512, 512), spec(4, 512, 128))
    assert kinds(p) == [["dot"], ["dot", "row"]] or kinds(p) == [["dot"], ["row", "dot"]]
    assert groups(p) == [(1, 128, 512)]


def test_a_reduce_that_needs_a_later_product_stays_whole() -> None:
    def fn(x: X, w: X, u: X) -> X:
        y = product(x, w)
        return (y * product(y.astype(BF16), u)).sum(0)

    p = plan(fn, spec(1024, 64), spec(64, 512), spec(512, 512), rtol=1e-4)
    # Of the second product, whose epilogue reads the first one's result.
    assert groups(p) == [(1, 64, 512)]


def test_contractions_that_would_wait_for_each_other() -> None:
    """Neither waits: the outer reduces stay whole, the inner ones begin."""
    def fn(x: X, w: X) -> X:
        y, z = product(x, w), product(x + 1, w)
        return (y - z.max(1)[:, None]).max(1), (z - y.max(1)[:, None]).max(1)

    p = plan(fn, spec(1024, 64), spec(64, 1024))
    assert groups(p) == [(1, 1024, 32)] * 2
    assert any(n.endswith("it needs what is computed behind that") for n in p.notes), p.notes


def test_groups_that_do_not_cover_the_rows_are_rejected() -> None:
    p = plan(gradient, spec(4, 512, 64), spec(64, 512), spec(4, 512, 512))
    g = p.groups[0]
    form = g.sig.form
    assert isinstance(form, DotForm)
    (s,) = form.reduced
    fewer = dataclasses.replace(s.over[1], size=127)
    broken = dataclasses.replace(s, over=(s.over[0], fewer, s.over[2]), index=tuple(
        i.substitute({s.over[1]: type(i).of(fewer)}) for i in s.index))
    stores = tuple(broken if x is s else x for x in form.stores)
    sig = dataclasses.replace(g.sig, form=dataclasses.replace(form, stores=stores))
    stage = dataclasses.replace(p.stages[0], groups=(dataclasses.replace(g, sig=sig),))
    with pytest.raises(PlanError, match="is not stored over groups of 16"):
        verify(dataclasses.replace(p, stages=(stage, *p.stages[1:])))


def test_can_be_left_out_to_measure_it() -> None:
    assert "epilogue_reduces" in OPTIONAL
    assert not groups(plan(gradient, spec(4, 512, 64), spec(64, 512), spec(4, 512, 512),
                           without=("epilogue_reduces",)))
