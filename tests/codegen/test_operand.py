"""How operands of contractions are loaded: every layout, every size, bit-exact in the emulator."""

from __future__ import annotations

import itertools
import re
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from contraction_harness import build, check_exact, dot_sigs, plan_of
from jax import lax
from thinned import crossed, thinned

from jaxmono.codegen.dot_schedule import DotSchedule
from jaxmono.codegen.generate import emit, generate
from jaxmono.codegen.operand import Operand, analyse
from jaxmono.codegen.schedule import KernelSchedule
from jaxmono.codegen.target import cuda_target, interpret_target
from jaxmono.fusion.indexing import Index, Var, contiguous, linearize, stride
from jaxmono.fusion.plan import Device, DotForm, Plan

Spec = jax.ShapeDtypeStruct


def operands(plan: Plan) -> list[tuple[Operand, Operand]]:
    """How the left and right operand of every dot are loaded."""
    out: list[tuple[Operand, Operand]] = []
    for s in dot_sigs(plan):
        form = s.form
        assert isinstance(form, DotForm)
        size = form.dot.lhs.type.dtype.itemsize
        out.append((analyse(s.body, form.dot.lhs, form.lhs_index, form.m, form.k, size),
                    analyse(s.body, form.dot.rhs, form.rhs_index, form.n, form.k, size)))
    return out


def dots(subscripts: Sequence[str], sizes: Sequence[dict[str, int]], dtype: Any,
         out: Any = jnp.float32) -> Plan:
    """One kernel of many einsums, an input for every operand."""
    args: list[Any] = []
    for s, size in zip(subscripts, sizes, strict=True):
        args += [Spec(tuple(size[c] for c in side), dtype) for side in s.split("->")[0].split(",")]

    def fn(*xs: Any) -> Any:
        return tuple(jnp.einsum(s, xs[2 * i], xs[2 * i + 1], preferred_element_type=out)
                     for i, s in enumerate(subscripts))

    return plan_of(fn, *args)


ALIGNED = {"b": 2, "m": 24, "n": 40, "k": 48}
ODD = {"b": 3, "m": 19, "n": 23, "k": 37}
ONE_ALIGNED = {"b": 2, "m": 17, "n": 72, "k": 21}


@pytest.mark.sampled(7)
@pytest.mark.parametrize("left", thinned(["".join(p) for p in itertools.permutations("bmk")]))
@pytest.mark.parametrize("dtype", [jnp.bfloat16, jnp.float32])
def test_every_layout_of_both_operands(left: str, dtype: Any) -> None:
    """All 36 orders of (batch, free, contracting) dimensions, aligned and odd sizes."""
    subscripts = [f"{left},{''.join(p)}->bmn" for p in itertools.permutations("bnk")]
    sizes = [ALIGNED, ODD, ALIGNED, ONE_ALIGNED, ALIGNED, ODD]
    plan = dots(subscripts, sizes, dtype)
    check_exact(plan, build(plan))


def test_layout_decides_the_major_axis() -> None:
    def kinds(subscript: str, sizes: dict[str, int]) -> tuple[Any, ...]:
        ((a, b),) = operands(dots([subscript], [sizes], jnp.bfloat16))
        return a.k_major, a.param is not None, b.k_major, b.param is not None

    # operands stay in the order lhs, rhs: both are inputs
    assert kinds("bmk,bnk->bmn", ALIGNED) == (True, True, True, True)
    assert kinds("bkm,bnk->bmn", ALIGNED) == (False, True, True, True)
    assert kinds("bkm,bkn->bmn", ALIGNED) == (False, True, False, True)
    assert kinds("mbk,kbn->bmn", ALIGNED) == (True, True, False, True)
    # 16 bytes are not aligned in every row: computed, along the axis that is contiguous
    assert kinds("bmk,bkn->bmn", ODD) == (True, False, False, False)
    # neither axis is contiguous: element by element
    assert kinds("mkb,nkb->bmn", ALIGNED)[1::2] == (False, False)


def random_dot(rng: np.random.Generator, choices: Sequence[int]) -> tuple[Any, ...]:
    """Two shapes and dimension numbers: up to 2 batch, 2 contracting, 2 free dims a side."""
    batch = [int(rng.choice(choices[:4])) for _ in range(rng.integers(0, 3))]
    contract = [int(rng.choice(choices)) for _ in range(rng.integers(0, 3))]

    def side() -> tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]]:
        free = [int(rng.choice(choices)) for _ in range(rng.integers(0, 3))]
        sizes = [*batch, *contract, *free]
        order = [int(i) for i in rng.permutation(len(sizes))]
        where = [order.index(i) for i in range(len(sizes))]
        nb, nc = len(batch), len(contract)
        return (tuple(sizes[i] for i in order), tuple(where[:nb]), tuple(where[nb:nb + nc]))

    (a, ab, ac), (b, bb, bc) = side(), side()
    return a, b, ((ac, bc), (ab, bb))


@pytest.mark.sampled(2)
@pytest.mark.parametrize("seed", thinned(range(6)))
def test_random_dimension_numbers(seed: int) -> None:
    """Batch, contracting and free dimensions anywhere, none of a kind, sizes 1 and prime."""
    rng = np.random.default_rng(seed)
    choices = [(1, 2, 3, 5, 7, 11), (1, 2, 4, 8, 16, 24), (2, 3, 1, 8, 13, 32)][seed % 3]
    dtype = [jnp.bfloat16, jnp.float32, jnp.float16][seed % 3 - seed // 3]
    specs = [random_dot(rng, choices) for _ in range(10)]
    args = [Spec(s, dtype) for spec in specs for s in spec[:2]]

    def fn(*xs: Any) -> Any:
        return tuple(lax.dot_general(xs[2 * i], xs[2 * i + 1], spec[2],
                                     preferred_element_type=jnp.float32)
                     for i, spec in enumerate(specs))

    plan = plan_of(fn, *args)
    check_exact(plan, build(plan))


SIZES = [(1, 1, 1), (1, 64, 1), (1, 8, 200), (200, 8, 1), (16, 16, 8), (17, 16, 9), (31, 127, 33),
         (64, 64, 64), (65, 66, 67), (97, 130, 101), (3, 1000, 5), (130, 1, 70)]


@pytest.mark.sampled(2)
@crossed(("dtype", [jnp.bfloat16, jnp.float32]), ("half", [0, 1]))
def test_sizes_around_tiles(dtype: Any, half: int) -> None:
    """(m, k, n) of one, prime, below, at and above a tile; k not a multiple of the tile."""
    chosen = SIZES[half::2]
    sizes = [{"m": m, "k": k, "n": n} for m, k, n in chosen]
    plan = dots(["mk,kn->mn"] * len(chosen), sizes, dtype)
    check_exact(plan, build(plan), blocks=(1, 4))


def test_zero_sizes() -> None:
    sizes = [{"m": 3, "k": 0, "n": 5}, {"m": 0, "k": 4, "n": 5}, {"m": 3, "k": 4, "n": 0}]
    plan = dots(["mk,kn->mn"] * 3, sizes, jnp.float32)
    check_exact(plan, build(plan))


def test_views_are_copied() -> None:
    """Slices, reshapes, gathered rows and dynamic slices of one buffer go by cp.async."""
    def fn(x: Any, w: Any, ids: Any, i: Any) -> Any:
        rows = lax.dynamic_slice(x, (i, 0), (16, 128))
        taken = jnp.take(x, ids, axis=0, mode="clip")
        return (x[8:40:2, 32:96] @ w, taken[:, :64] @ w, rows[:, 64:] @ w,
                x.reshape(64, 2, 64)[:, 1] @ w)

    plan = plan_of(fn, Spec((64, 128), jnp.bfloat16), Spec((64, 24), jnp.bfloat16),
                   Spec((20,), jnp.int32), Spec((), jnp.int32))
    assert [a.param is not None for a, _ in operands(plan)] == [True] * 4
    program = build(plan)
    for at in (0, 5, 1000, -3):
        rng = np.random.default_rng(at + 9)
        given = [np.asarray(rng.integers(-2, 3, v.type.dims)).astype(v.type.dtype.numpy)
                 for v in plan.graph.inputs]
        given[2] = rng.integers(-2, 70, 20).astype(np.int32)  # some outside: clamped
        given[3] = np.asarray(at, np.int32)
        check_exact(plan, program, inputs=given)


@pytest.mark.sampled(2)
@pytest.mark.parametrize(("parts", "pitch", "choices"), [
    ((64, 128, 40), "pitch", 4), ((64, 64), "64", 1)])
def test_the_part_of_a_joined_operand_is_chosen_once(parts: tuple[int, ...], pitch: str,
                                                     choices: int) -> None:
    """And its rows' pitch, where they differ: producers copy several rows, and have few registers
    and predicates."""
    def fn(w: Any, *xs: Any) -> Any:
        return lax.dot(jnp.concatenate(xs, -1), w, preferred_element_type=jnp.float32)

    plan = plan_of(fn, Spec((sum(parts), 96), jnp.bfloat16),
                   *(Spec((200, k), jnp.bfloat16) for k in parts))
    tile = DotSchedule("wgmma", 128, 96, 64, 3, (2, 1, 1))
    schedule = KernelSchedule(sigs={s.key: tile for s in plan.sigs})
    program = generate(plan, interpret_target(), Device(), "k", schedule)
    (loader,) = re.findall(r"const auto load_a = [^}]*\};", program.source)
    assert f"(to, part + {pitch} * o, " in loader and loader.count("?") == choices
    check_exact(plan, program, blocks=(1, 3))


@pytest.mark.parametrize(("rows", "columns", "in_front"), [(2**25, 64, 0), (16, 2**20, 4080)])
def test_a_pitch_times_a_row_is_no_int_where_it_would_overflow(rows: int, columns: int,
                                                               in_front: int) -> None:
    """Rows that are padded in front count, too."""
    def fn(w: Any, *xs: Any) -> Any:
        x = jnp.concatenate(xs, -1)
        return lax.dot(jnp.pad(x, ((in_front, 0), (0, 0))) if in_front else x, w)

    part = Spec((rows, columns), jnp.bfloat16)
    plan = plan_of(fn, Spec((2 * columns, 64), jnp.bfloat16), part, part)
    source = emit(plan, cuda_target("sm_90a"), Device(), "k").source
    (loader,) = re.findall(r"const auto load_a = [^}]*\};", source)
    assert "part" not in loader and "(long long)o" in loader


def test_misaligned_views_are_computed() -> None:
    """A slice that starts at an odd column has no aligned 16 bytes."""
    def fn(x: Any, w: Any) -> Any:
        return x[:, 3:67] @ w[1:65], x[:, ::2] @ w[:65:]

    plan = plan_of(fn, Spec((24, 130), jnp.bfloat16), Spec((65, 24), jnp.bfloat16))
    (a, b), (c, _) = operands(plan)
    assert a.param is None and b.param is not None and c.param is None
    check_exact(plan, build(plan))


@pytest.mark.sampled(3)
@pytest.mark.parametrize(("n", "k", "split"), [(32, 256, 1), (24, 520, 1), (16, 1000, 2)])
def test_weights_that_are_rounded_on_the_way(n: int, k: int, split: int) -> None:
    """Of f32, for few columns: loads of several k tiles are in flight at a time, before the rows
    are there."""
    def fn(x: Any, v: Any, w: Any) -> Any:
        y = lax.dot(x, v.astype(jnp.bfloat16), preferred_element_type=jnp.float32)
        return lax.dot(jnp.maximum(y, 0).astype(jnp.bfloat16), w.astype(jnp.bfloat16))

    plan = plan_of(fn, Spec((50, 64), jnp.bfloat16), Spec((64, k), jnp.float32),
                   Spec((k, n), jnp.float32))
    for stages in (2, 4):  # some k tiles come in the main loop
        tile = DotSchedule("mma", 16, 8, 128, stages, (1, 1, 8), split)
        first = DotSchedule("mma", 16, 64, 64, 2, (1, 4, 2))
        schedule = KernelSchedule(sigs={g.sig.key: t for g, t in zip(plan.groups, (first, tile),
                                                                     strict=True)})
        program = generate(plan, interpret_target(), Device(), "k", schedule)
        assert "load_ro<float, 8>" in program.source
        assert "G::prologue<true>" in program.source and "G::prefetch<true>" in program.source
        check_exact(plan, program, blocks=(1, 3))


def test_computed_operands() -> None:
    """Prologues: conversion of f32 weights, scales, masks, padding, concatenation, iota."""
    def fn(x: Any, w: Any, s: Any, keep: Any) -> Any:
        half = w.astype(jnp.bfloat16)
        positions = lax.broadcasted_iota(jnp.bfloat16, (40, 24), 0)
        return (x @ half, (x * s) @ half.T[:, :40].T, jnp.where(keep, x, 0) @ half,
                jnp.pad(x, ((0, 0), (3, 5)))[:, :40] @ half,
                jnp.concatenate([x[:, :17], -x[:, 17:]], 1) @ half,
                x @ jnp.minimum(positions, 3), x[::-1, ::-1] @ half)

    plan = plan_of(fn, Spec((33, 40), jnp.bfloat16), Spec((40, 24), jnp.float32),
                   Spec((40,), jnp.bfloat16), Spec((33, 40), jnp.bool_))
    check_exact(plan, build(plan))


def test_weight_scales_and_dequantised_weights() -> None:
    def fn(x: Any, w: Any, s: Any) -> Any:
        return x @ (w.astype(jnp.float32) * s[None, :]), x @ w.astype(jnp.float32).T[:, :32]

    plan = plan_of(fn, Spec((9, 32), jnp.float32), Spec((32, 32), jnp.int8),
                   Spec((32,), jnp.float32))
    check_exact(plan, build(plan))


def test_contiguity_is_proven() -> None:
    k, m = Var("k", 64), Var("m", 10)
    rows = linearize((Index.of(m), Index.of(k)), (10, 64))
    assert contiguous(rows, k, 8) and not contiguous(rows, m, 2)
    assert not contiguous(rows + 1, k, 8) and contiguous(rows + 8, k, 8)
    assert not contiguous(linearize((Index.of(m), Index.of(k)), (10, 65)), k, 8)
    assert not contiguous(linearize((Index.of(k), Index.of(m)), (64, 10)), k, 8)
    # A reshape that splits k into parts of whole pieces keeps the pieces together.
    parts = Index.of(k) // 16 * 1000 + Index.of(k) % 16
    assert contiguous(parts, k, 8) and not contiguous(parts, k, 32)
    assert stride(rows, k) == 1 and stride(rows, m) == 64 and stride(rows, Var("z", 3)) == 0
