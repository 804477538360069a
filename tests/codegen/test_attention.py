"""dot -> row chain -> dot in one block: masks, layouts, odd sizes, decode, in the emulator."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from typing import Any

import flax.nnx as nnx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from contraction_harness import Array, build, check_near, plan_of, smooth
from harness import DEVICE
from thinned import crossed, thinned, thinned_rows

from jaxmono.codegen import attention
from jaxmono.codegen.attention import AttentionSchedule
from jaxmono.fusion.plan import AttentionForm, Device, Plan, Sig
from jaxmono.fusion.support import attention_bytes

Spec = jax.ShapeDtypeStruct
BF16, F16, F32 = jnp.bfloat16, jnp.float16, jnp.float32
RTOL = {BF16: 2e-2, F16: 4e-3, F32: 4e-3}


def attend(q: Any, k: Any, v: Any, mask: Any = None, *, layout: str = "bhmd",
           wide: bool = True, scores: Any = None) -> Any:
    """softmax(q k^T / sqrt(d), masked) v in the dimension order ``layout``; of ``scores`` in f32
    logits are multiples."""
    a, b = layout, layout.replace("m", "n")
    s = jnp.einsum(f"{a},{b}->bhmn", q, k, preferred_element_type=scores)
    s = (s.astype(F32) if wide else s) / math.sqrt(q.shape[layout.index("d")])
    if mask is not None:
        s = jnp.where(mask, s, jnp.finfo(F32).min)
    p = jax.nn.softmax(s, -1).astype(v.dtype)
    return jnp.einsum(f"bhmn,{b}->{a}", p, v)


def attention_form(plan: Plan) -> AttentionForm:
    (sig,) = [s for s in plan.sigs if s.kind == "attention"]
    form = sig.form
    assert isinstance(form, AttentionForm)
    return form


def run(fn: Callable[..., Any], *args: Any, rtol: float, given: list[Array] | None = None,
        seeds: tuple[int, ...] = (0, 1, 2), sigs: dict[str, Any] | None = None,
        threads: int = 128) -> Plan:
    plan = plan_of(fn, *args)
    attention_form(plan)
    check_near(plan, build(plan, sigs, threads=threads), given or smooth(plan.graph), rtol,
               seeds=seeds)
    return plan


def qkv(m: int, n: int, d: int, dtype: Any, *, heads: int = 2, batch: int = 1, dv: int = 0,
        layout: str = "bhmd") -> list[Any]:
    size = {"b": batch, "h": heads, "d": d}
    shapes = [tuple({**size, "m": x, "d": y}[c] for c in layout)
              for x, y in ((m, d), (n, d), (n, dv or d))]
    return [Spec(s, dtype) for s in shapes]


@pytest.mark.sampled(7)
@crossed(("dtype", [BF16, F16, F32]),
         (("m", "n", "d"), [(16, 16, 16), (33, 50, 24), (5, 127, 8), (70, 64, 64)]))
def test_sizes(dtype: Any, m: int, n: int, d: int) -> None:
    """Rows and keys below, at and above a tile; keys not a multiple of 16."""
    run(attend, *qkv(m, n, d, dtype), rtol=RTOL[dtype])


@pytest.mark.sampled(5)
@pytest.mark.parametrize("d", thinned([9, 20, 36, 63, 72, 80, 96, 112, 128]))
def test_head_widths(d: int) -> None:
    """Widths that the warps cannot share out evenly, and ones without aligned rows."""
    dtype = (BF16, F32)[d % 8 == 4]
    run(attend, *qkv(20, 40, d, dtype), rtol=RTOL[dtype], seeds=(0, 1))


@pytest.mark.sampled(5)
@pytest.mark.parametrize(("d", "dv"), [(64, 16), (16, 80), (40, 1)])
def test_values_of_another_width(d: int, dv: int) -> None:
    run(attend, *qkv(17, 33, d, BF16, dv=dv), rtol=RTOL[BF16])


@pytest.mark.sampled(5)
@pytest.mark.parametrize("layout", thinned(
    ["".join(p) for p in itertools.permutations("bhmd")][::3]))
def test_layouts(layout: str) -> None:
    """Heads and positions anywhere: loaders copy along d, along positions, or neither."""
    for dtype in (BF16, F32):
        run(lambda q, k, v: attend(q, k, v, layout=layout),
            *qkv(24, 40, 16, dtype, heads=3, batch=2, layout=layout), rtol=RTOL[dtype],
            seeds=(0, 1))


def test_causal_and_key_masks() -> None:
    """A causal mask from iotas, a mask of keys from a buffer, and an additive bias."""
    def fn(q: Any, k: Any, v: Any, keep: Any, bias: Any) -> Any:
        causal = jnp.tril(jnp.ones((35, 35), bool))
        s = jnp.einsum("bhmd,bhnd->bhmn", q, k).astype(F32) * 0.25 + bias
        s = jnp.where(causal & keep[:, None, None, :], s, -1e30)
        return jnp.einsum("bhmn,bhnd->bhmd", jax.nn.softmax(s, -1).astype(v.dtype), v)

    args = [*qkv(35, 35, 16, BF16, batch=2), Spec((2, 35), jnp.bool_), Spec((2, 35, 35), F32)]
    args[4] = Spec((2, 35, 35), F32)
    plan = plan_of(lambda q, k, v, keep, bias: fn(q, k, v, keep, bias[:, None]), *args)
    attention_form(plan)
    given = smooth(plan.graph)
    given[3][:, 0] = True
    check_near(plan, build(plan), given, RTOL[BF16], seeds=(0, 1, 2))


def test_fully_masked_rows() -> None:
    """With -inf every probability of such a row is NaN; with a finite mask it is 1/n."""
    def infinite(q: Any, k: Any, v: Any, keep: Any) -> Any:
        s = jnp.einsum("bhmd,bhnd->bhmn", q, k).astype(F32)
        s = jnp.where(keep[:, None], s, -jnp.inf)
        return jnp.einsum("bhmn,bhnd->bhmd", jax.nn.softmax(s, -1).astype(v.dtype), v)

    def finite(q: Any, k: Any, v: Any, keep: Any) -> Any:
        return attend(q, k, v, keep[:, None])

    for fn in (infinite, finite):
        plan = plan_of(fn, *qkv(20, 24, 16, F32), Spec((1, 20, 24), jnp.bool_))
        attention_form(plan)
        given = smooth(plan.graph)
        given[3][:, :, 0] = True
        given[3][:, 7] = False
        given[3][:, 19] = False
        check_near(plan, build(plan), given, RTOL[F32])


def test_non_finite_inputs() -> None:
    """NaN and infinite queries, keys and values reach exactly the rows that they should."""
    plan = plan_of(attend, *qkv(20, 36, 16, F32))
    attention_form(plan)
    given = smooth(plan.graph)
    given[0][0, 0, 3, 5] = np.nan
    given[0][0, 1, 19, 0] = np.inf
    given[2][0, 0, 35, 2] = np.inf
    given[2][0, 1, 0, 15] = np.nan
    check_near(plan, build(plan), given, RTOL[F32])


def test_grouped_queries() -> None:
    """Fewer key heads than query heads: the same keys for every query of a group."""
    def fn(q: Any, k: Any, v: Any) -> Any:
        b, m, h, d = q.shape
        q = q.reshape(b, m, 2, h // 2, d)
        s = jnp.einsum("bmghd,bngd->bghmn", q, k).astype(F32) / 4
        p = jax.nn.softmax(s, -1).astype(v.dtype)
        return jnp.einsum("bghmn,bngd->bmghd", p, v).reshape(b, m, h * d)

    run(fn, Spec((2, 19, 6, 16), BF16), Spec((2, 40, 2, 16), BF16), Spec((2, 40, 2, 16), BF16),
        rtol=RTOL[BF16])

    def repeated(q: Any, k: Any, v: Any) -> Any:
        k, v = jnp.repeat(k, 3, axis=1), jnp.repeat(v, 3, axis=1)
        return attend(q, k, v)

    run(repeated, *qkv(9, 33, 16, F32, heads=6)[:1], *qkv(9, 33, 16, F32)[1:], rtol=RTOL[F32])


@pytest.mark.sampled(2)
@pytest.mark.parametrize("dtype", [BF16, F32])
def test_as_flax_writes_it(dtype: Any) -> None:
    """nnx.dot_product_attention: operands swapped, a mask, [batch, length, heads, width]."""
    def fn(q: Any, k: Any, v: Any, mask: Any) -> Any:
        return nnx.dot_product_attention(q, k, v, mask=mask > 0, dtype=dtype)

    shape = (2, 21, 3, 16)
    plan = plan_of(fn, *[Spec(shape, dtype)] * 3, Spec((2, 1, 21, 21), jnp.int32))
    attention_form(plan)
    given = smooth(plan.graph)
    given[3][..., 0] = 1
    check_near(plan, build(plan), given, 3e-2 if dtype is BF16 else 4e-3, seeds=(0, 1, 2))


def test_as_jax_nn_writes_it() -> None:
    def fn(q: Any, k: Any, v: Any) -> Any:
        return jax.nn.dot_product_attention(q, k, v, is_causal=True)

    run(fn, *[Spec((2, 37, 2, 24), F32)] * 3, rtol=RTOL[F32])


@pytest.mark.sampled(2)
@pytest.mark.parametrize("dtype", [BF16, F32])
def test_decode(dtype: Any) -> None:
    """One query row against a cache of which ``pos`` keys are filled; rows beyond are poison."""
    def fn(q: Any, k: Any, v: Any, pos: Any) -> Any:
        keep = jnp.arange(k.shape[2])[None, None, None] <= pos
        s = jnp.einsum("bhmd,bhnd->bhmn", q, k).astype(F32) / 5
        p = jax.nn.softmax(jnp.where(keep, s, -1e9), -1).astype(v.dtype)
        return jnp.einsum("bhmn,bhnd->bmhd", p, v).reshape(1, -1)

    plan = plan_of(fn, *qkv(1, 100, 24, dtype, heads=3), Spec((), jnp.int32))
    attention_form(plan)
    program = build(plan)
    for pos in (0, 15, 16, 63, 99):
        given = smooth(plan.graph)
        given[3] = np.asarray(pos, np.int32)
        check_near(plan, program, given, RTOL[dtype], seeds=(0, 1))


def test_row_chains_that_are_not_softmax() -> None:
    """Any row-wise program between the contractions: a norm of the scores, two outputs behind."""
    def fn(q: Any, k: Any, v: Any, r: Any) -> Any:
        s = jnp.einsum("md,nd->mn", q, k)
        p = jnp.maximum(s - s.mean(-1, keepdims=True), 0) / (1 + jnp.abs(s).max(-1, keepdims=True))
        y = p @ v
        return y + r, jnp.tanh(y).T

    run(fn, Spec((37, 20), F32), Spec((45, 20), F32), Spec((45, 12), F32), Spec((37, 12), F32),
        rtol=6e-3)


def attention_sig(plan: Plan) -> Sig:
    (sig,) = [s for s in plan.sigs if s.kind == "attention"]
    return sig


@pytest.mark.sampled(5)
@pytest.mark.parametrize(("s", "threads"), thinned_rows([
    (AttentionSchedule(16, 16, 2, 4), 128), (AttentionSchedule(16, 32, 3, 8), 256),
    (AttentionSchedule(32, 48, 4, 4), 128), (AttentionSchedule(64, 64, 2, 4), 128),
    (AttentionSchedule(64, 16, 8, 8), 256), (AttentionSchedule(32, 16, 5, 2), 64),
    (AttentionSchedule(16, 64, 6, 1), 32)]))
@pytest.mark.parametrize("dtype", thinned([BF16, F32]))
def test_schedules(s: AttentionSchedule, threads: int, dtype: Any) -> None:
    """Rings shallower and deeper than there are chunks, chunks that do not divide the keys."""
    plan = plan_of(attend, *qkv(70, 100, 16, dtype, dv=32))
    program = build(plan, {attention_sig(plan).key: s}, threads=threads)
    check_near(plan, program, smooth(plan.graph), RTOL[dtype], seeds=(0, 1), blocks=(3,))


@pytest.mark.sampled(2)
@pytest.mark.parametrize("dtype", [BF16, F32])
def test_wide_heads(dtype: Any) -> None:
    """Many columns for one warp: 4 warps, 64 rows, heads of 200."""
    plan = plan_of(attend, *qkv(65, 40, 200, dtype))
    program = build(plan, {attention_sig(plan).key: AttentionSchedule(64, 16, 2, 4)})
    check_near(plan, program, smooth(plan.graph, scale=0.3), RTOL[dtype], seeds=(0, 1))


# ---- planner and generator agree ---------------------------------------------------------------


@pytest.mark.parametrize("kib", thinned([48, 99, 163, 227], 4))
def test_what_the_planner_accepts_has_a_schedule(kib: int) -> None:
    """`support.attention_bytes` bounds the smallest schedule, whatever layout the operands have."""
    rng = np.random.default_rng(kib)
    shared = kib * 1024
    accepted = 0
    for _ in range(60):
        dtype = (BF16, F32)[int(rng.integers(2))]
        n, d, dv = (int(rng.integers(2, 4097)), int(rng.integers(2, 513)),
                    int(rng.integers(1, 513)))
        if rng.random() < 0.7:
            n, d, dv = n // 4 + 2, d // 3 + 2, dv // 3 + 1
        size = np.dtype(dtype).itemsize
        # as many keys as the planner takes: the tightest case
        while attention_bytes(n, d, dv, size) > shared and n > 2:
            n = n * 15 // 16
        if attention_bytes(n, d, dv, size) > shared:
            continue
        accepted += 1
        device = Device(shared_bytes=shared)
        plan = plan_of(attend, *qkv(40, n, d, dtype, dv=dv), device=device)
        sigs = [s for s in plan.sigs if s.kind == "attention"]
        assert len(sigs) == 1, f"{n} keys of {d}, values of {dv}"
        form = sigs[0].form
        assert isinstance(form, AttentionForm)
        for warps in (4, 8):
            s = attention.schedule(sigs[0], device, warps=warps, shared_bytes=shared)
            assert attention.shared_bytes_of(form, s) <= shared
    assert accepted > 10


def test_attention_that_does_not_fit_is_three_groups() -> None:
    plan = plan_of(attend, *qkv(20, 900, 64, F32), device=Device(shared_bytes=99 * 1024))
    assert [s.kind for s in plan.sigs].count("attention") == 0
    check_near(plan, build(plan), smooth(plan.graph), RTOL[F32], seeds=(0,))


def test_the_smallest_device_is_refused_clearly() -> None:
    plan = plan_of(attend, *qkv(20, 900, 64, F32), device=DEVICE)
    with pytest.raises(attention.CodegenError, match="900 keys of 64 do not fit 50000 bytes"):
        attention.schedule(attention_sig(plan), DEVICE, warps=4, shared_bytes=50000)
