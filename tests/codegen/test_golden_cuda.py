"""The CUDA text of small programs, and what NVRTC makes of each family of contractions."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import models
import numpy as np
import pytest
from contraction_harness import dot_sigs
from flax import nnx
from thinned import crossed, thinned

from jaxmono.codegen import cuda_target, dot_schedule, generate
from jaxmono.codegen.attention import AttentionSchedule
from jaxmono.codegen.dot_schedule import DotSchedule
from jaxmono.codegen.generate import default_schedule, emit
from jaxmono.codegen.target import Target
from jaxmono.fusion import make_plan
from jaxmono.fusion.plan import Device, DotForm, Plan
from jaxmono.fusion.text import plan_to_text
from jaxmono.hlo.ir import UNKNOWN_LOC, Graph

Golden = Callable[[str, str], None]
Spec = jax.ShapeDtypeStruct
BF16, F16, F32 = jnp.bfloat16, jnp.float16, jnp.float32
H200 = Device()


def without_locs(g: Graph) -> Graph:
    """The graph without source lines: texts must not depend on where the repository is."""
    return dataclasses.replace(g, ops=tuple(
        dataclasses.replace(o, loc=UNKNOWN_LOC, **{
            f.name: without_locs(getattr(o, f.name)) for f in type(o).declared("region")})
        for o in g.ops))


def plan_of(fn: Callable[..., Any], *args: Any) -> Plan:
    return make_plan(without_locs(models.graph_of(fn, *args)), H200)


def encoder_layer() -> Plan:
    """A BERT layer: 16 tokens, width 32, 2 heads."""
    layer = models.EncoderLayer(32, 2, 64, BF16, nnx.Rngs(0))
    definition, state = nnx.split(layer)
    specs = jax.tree.map(lambda x: Spec(x.shape, x.dtype), state)

    def fn(state: Any, x: Any, mask: Any) -> Any:
        return nnx.merge(definition, state)(x, mask[:, None, None, :] > 0)

    return plan_of(fn, specs, Spec((1, 16, 32), BF16), Spec((1, 16), jnp.int32))


def decode_step() -> Plan:
    """One token's keys go into the cache in place; its query attends to what is filled."""
    def fn(cache: Any, x: Any, wk: Any, wq: Any, pos: Any) -> Any:
        key = (x @ wk).reshape(1, 2, 16)
        cache = jax.lax.dynamic_update_slice(cache, key, (pos, 0, 0))
        q = (x @ wq).reshape(2, 16)
        s = jnp.einsum("hd,nhd->hn", q, cache).astype(F32)
        s = jnp.where(jnp.arange(24) <= pos, s, -1e9)
        return cache, jnp.einsum("hn,nhd->hd", jax.nn.softmax(s, -1).astype(BF16), cache)

    return plan_of(fn, Spec((24, 2, 16), BF16), Spec((1, 32), BF16), Spec((32, 32), BF16),
                   Spec((32, 32), BF16), Spec((), jnp.int32))


def four_bits() -> Plan:
    """A row times weights of 4 bits [k, n], whose scales are of groups, and [n, k]; more rows."""
    def fn(x: Any, q: Any, s: Any, qt: Any, y: Any) -> Any:
        wide = (q.reshape(-1, 128, 512).astype(BF16) * s[:, None].astype(BF16)).reshape(256, 512)
        h = jnp.tanh(x @ wide)
        return jnp.einsum("mk,nk->mn", h, qt.astype(BF16)), y @ wide

    return plan_of(fn, Spec((1, 256), BF16), Spec((256, 512), jnp.int4), Spec((2, 512), F32),
                   Spec((256, 512), jnp.int4), Spec((64, 256), BF16))


def channels_last() -> Plan:
    """An image with channels first, a bias, and a residual with channels last: through tiles."""
    def fn(x: Any, b: Any, y: Any) -> Any:
        return jax.nn.relu(x.transpose(0, 2, 3, 1) + b + y)

    return plan_of(fn, Spec((8, 96, 30, 40), BF16), Spec((96,), BF16), Spec((8, 30, 40, 96), BF16))


def vocabulary() -> Plan:
    """Logits of 30522 words: rows of the weights begin anywhere."""
    def fn(x: Any, w: Any, b: Any) -> Any:
        return (x @ w + b).astype(F32)

    return plan_of(fn, Spec((128, 256), BF16), Spec((256, 30522), BF16), Spec((30522,), BF16))


PROGRAMS = {"bert_layer": encoder_layer, "decode_step": decode_step, "four_bits": four_bits,
            "channels_last": channels_last, "vocabulary": vocabulary}


@pytest.mark.sampled(2)
@pytest.mark.parametrize("name", PROGRAMS)
def test_golden(name: str, golden: Golden) -> None:
    """A change of the generator shows here as a change of text; --update-goldens accepts it."""
    plan = PROGRAMS[name]()
    target = cuda_target("sm_90a")
    golden(f"plan_{name}", plan_to_text(plan))
    source = emit(plan, target, H200, name).source
    assert str(Path(__file__).parents[2]) not in source
    golden(f"cuda_{name}", source)


@pytest.mark.sampled(7)
@pytest.mark.parametrize("arch", ["sm_80", "sm_90a"])
@pytest.mark.parametrize("name", PROGRAMS)
def test_programs_compile(name: str, arch: str) -> None:
    plan = PROGRAMS[name]()
    device = dataclasses.replace(H200, shared_bytes=cuda_target(arch).shared_bytes)
    program = generate(plan, cuda_target(arch), device, name)
    assert program.binary.startswith(b"\x7fELF")
    assert program.shared_bytes <= cuda_target(arch).shared_bytes
    no_spills(program.resources)


def no_spills(resources: dict[str, int]) -> None:
    assert resources["spill_stores"] == resources["spill_loads"] == 0
    assert resources["static_shared"] == 0


def compiled(plan: Plan, schedule: Any, arch: str) -> dict[str, int]:
    """Resources with ``schedule`` for every contraction of the plan."""
    target: Target = cuda_target(arch)
    device = dataclasses.replace(H200, shared_bytes=target.shared_bytes)
    chosen = default_schedule(plan, target, device)
    sigs = {s.key: schedule if s.kind in ("dot", "attention") else chosen.sigs[s.key]
            for s in plan.sigs}
    return generate(plan, target, device, "test",
                    dataclasses.replace(chosen, sigs=sigs)).resources


def product(m: int, k: int, n: int, dtype: Any) -> Plan:
    """With bias and gelu, as the largest products of a model have them."""
    def fn(x: Any, w: Any, b: Any) -> Any:
        y = jnp.dot(x, w, preferred_element_type=F32) + b
        return jax.nn.gelu(y, approximate=False).astype(dtype)

    return plan_of(fn, Spec((m, k), dtype), Spec((k, n), dtype), Spec((n,), F32))


@pytest.mark.sampled(7)
@crossed(("arch", ["sm_80", "sm_90a"]), (("dtype", "s"), [
    (BF16, DotSchedule("mma", 128, 192, 64, 3, (4, 2, 1))),
    (BF16, DotSchedule("mma", 128, 96, 64, 4, (2, 4, 1))),
    (BF16, DotSchedule("mma", 16, 8, 512, 4, (1, 1, 8))),
    (F16, DotSchedule("mma", 64, 64, 128, 3, (2, 2, 2), 4)),
    (F32, DotSchedule("mma", 64, 96, 32, 3, (2, 4, 1))),
    (F32, DotSchedule("mma", 128, 128, 32, 3, (4, 2, 1)))]))
def test_tiles_compile_without_spills(arch: str, dtype: Any, s: DotSchedule) -> None:
    resources = compiled(product(256, 1024, 384, dtype), s, arch)
    no_spills(resources)
    assert resources["registers"] <= 255


def widest(dtype: Any) -> list[DotSchedule]:
    """The widest tile of a warp for each number of its rows that the chooser may take."""
    found: dict[int, tuple[int, DotSchedule]] = {}
    for s in dot_schedule._candidates(256, 384, 1024, np.dtype(dtype).itemsize, 8, False, False):
        rows, columns = s.bm // (16 * s.warps[0]), s.bn // (8 * s.warps[1])
        if columns > found.get(rows, (0, s))[0]:
            found[rows] = columns, dataclasses.replace(s, stages=3)
    return [s for _, s in found.values()]


@pytest.mark.slow
@pytest.mark.parametrize("dtype", thinned([BF16, F32]))
def test_widest_candidates_compile_without_spills(dtype: Any) -> None:
    assert len(widest(dtype)) == 3
    for s in widest(dtype):
        no_spills(compiled(product(256, 1024, 384, dtype), s, "sm_90a"))


@pytest.mark.sampled(2)
@pytest.mark.parametrize("arch", ["sm_80", "sm_90a"])
def test_panels_compile_without_spills(arch: str) -> None:
    def fn(x: Any, s: Any, b: Any, w: Any) -> Any:
        return models.norm(x.astype(F32), s, b).astype(BF16) @ w

    plan = plan_of(fn, Spec((32, 768), BF16), Spec((768,), F32), Spec((768,), F32),
                   Spec((768, 768), BF16))
    form = dot_sigs(plan)[0].form
    assert isinstance(form, DotForm) and form.row_prologue
    no_spills(compiled(plan, DotSchedule("mma", 32, 96, 64, 4, (2, 2, 2)), arch))


@pytest.mark.slow
@pytest.mark.parametrize("arch", ["sm_80", "sm_90a"])
@pytest.mark.parametrize(("dtype", "n", "d", "s"), [
    (BF16, 128, 64, AttentionSchedule(64, 64, 4, 8)),
    (BF16, 512, 64, AttentionSchedule(16, 64, 4, 8)),
    (BF16, 256, 128, AttentionSchedule(32, 64, 2, 8)),
    (F32, 128, 64, AttentionSchedule(16, 64, 2, 8)),
    (F16, 100, 80, AttentionSchedule(16, 16, 3, 8))])
def test_attention_compiles_without_spills(arch: str, dtype: Any, n: int, d: int,
                                           s: AttentionSchedule) -> None:
    def fn(q: Any, k: Any, v: Any) -> Any:
        x = jnp.einsum("bmhd,bnhd->bhmn", q, k).astype(F32) / 8
        return jnp.einsum("bhmn,bnhd->bmhd", jax.nn.softmax(x, -1).astype(dtype), v)

    plan = plan_of(fn, *[Spec((1, n, 12, d), dtype)] * 3)
    assert [x.kind for x in plan.sigs] == ["attention"]
    no_spills(compiled(plan, s, arch))


@pytest.mark.sampled(2)
@pytest.mark.parametrize("arch", ["sm_80", "sm_90a"])
def test_exact_products_compile_without_spills(arch: str) -> None:
    """f32 at HIGHEST, f64 and integers: ordinary arithmetic."""
    def fn(a: Any, b: Any, c: Any, d: Any) -> Any:
        return (jnp.dot(a, b, precision="highest"),
                jnp.dot(c, d, preferred_element_type=jnp.int32))

    plan = plan_of(fn, Spec((130, 70), F32), Spec((70, 90), F32), Spec((33, 64), jnp.int8),
                   Spec((64, 65), jnp.int8))
    resources = generate(plan, cuda_target(arch), H200, "test").resources
    no_spills(resources)
