"""Products on warpgroups whose k several blocks share."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import pytest
from contraction_harness import build, check_exact, in_order, plan_of, wgmma
from contraction_harness import run_wgmma as run
from thinned import thinned, thinned_rows

from jaxmono.codegen import compile as compiling
from jaxmono.codegen import headers
from jaxmono.codegen.dot_schedule_wgmma import COLUMNS, choose_wgmma
from jaxmono.codegen.dot_wgmma import meets_as_fragments
from jaxmono.fusion.plan import Device

Spec = jax.ShapeDtypeStruct
BF16, F32 = jnp.bfloat16, jnp.float32
H200 = Device()


def test_k_shared_by_blocks() -> None:
    plan = plan_of(lambda a, b: jnp.dot(a, b, preferred_element_type=F32), Spec((100, 520), BF16),
                   Spec((520, 56), BF16))
    run(plan, wgmma(64, 64, 3, (1, 1, 2), split=4))
    run(plan, wgmma(64, 64, 2, (1, 1, 2), split=2, lines=2))


@pytest.mark.sampled(2)
@pytest.mark.parametrize(("bm", "bn", "warps", "split"), thinned_rows([
    (128, 64, (2, 1, 1), 2), (64, 128, (1, 2, 1), 2), (128, 48, (2, 1, 1), 2),
    (128, 96, (2, 1, 1), 4), (64, 128, (1, 2, 1), 4)]))
def test_blocks_that_share_k_leave_each_other_fragments(
        bm: int, bn: int, warps: tuple[int, int, int], split: int) -> None:
    """With a bias and a residual, and rows, columns and k that do not fill the tiles."""
    def fn(a: Any, b: Any, bias: Any, c: Any) -> Any:
        return jnp.dot(a, b, preferred_element_type=F32) + bias + c

    plan = plan_of(fn, Spec((150, 456), BF16), Spec((456, 152), BF16), Spec((152,), F32),
                   Spec((150, 152), F32))
    program = build(plan, in_order(plan, wgmma(bm, bn, 2, warps, split)), threads=256)
    assert f"finish_split<{split}, " in program.source
    check_exact(plan, program, seeds=(0, 1, 2), blocks=(4, 5))


def test_a_partners_fragments_must_be_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    plan = plan_of(lambda a, b: jnp.dot(a, b, preferred_element_type=F32), Spec((128, 512), BF16),
                   Spec((512, 64), BF16))
    monkeypatch.setattr(compiling, "bundle", lambda source: headers.bundle(source).replace(
        "group_barrier<SPLIT>(arrivals);", "syncthreads();"))
    program = build(plan, in_order(plan, wgmma(128, 64, 2, (2, 1, 1), 2)), threads=256)
    with pytest.raises(AssertionError, match="not equal"):
        check_exact(plan, program, seeds=tuple(range(24)), blocks=(4,))


def test_k_is_shared_where_it_pays() -> None:
    def split(m: int, n: int, k: int, *, behind: bool = False, beside: bool = False) -> int:
        found = choose_wgmma(1, m, n, k, device=H200, shared_bytes=H200.shared_bytes,
                             row_prologue=False, k_major=(True, False), behind=behind,
                             beside=beside)
        assert found is not None
        return found[1].split_k

    assert split(1280, 768, 3072) == 2
    assert split(512, 1024, 4096) == 4
    assert split(1280, 768, 3072, behind=True) == split(512, 1024, 4096, behind=True) == 1
    assert split(1280, 768, 3072, beside=True) == 1
    assert split(512, 768, 3072) == split(2048, 768, 3072) == 1  # two warpgroups share k
    assert split(2048, 3072, 768) == split(4096, 768, 3072) == 1  # tiles for all


@pytest.mark.sampled(7)
@pytest.mark.parametrize("columns", thinned(COLUMNS[::-1], 3))  # 256, 144, 80, 32
def test_every_share_that_is_chosen_fits_the_staging(columns: int) -> None:
    """Of all tiles, one with 144 columns would stage more for half of them than for all."""
    def shares(columns: int, split: int) -> bool:
        return meets_as_fragments(wgmma(128, columns, 2, (2, 1, 1), split), gathered=False)

    assert not shares(144, 2) and shares(160, 2) and shares(96, 4)
    plan = plan_of(lambda a, b: jnp.dot(a, b, preferred_element_type=F32), Spec((128, 256), BF16),
                   Spec((256, 288), BF16))
    for split in (2, 4):
        build(plan, in_order(plan, wgmma(128, columns, 2, (2, 1, 1), split)), threads=256)
