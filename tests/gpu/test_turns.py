"""Warpgroups that take turns, in whole models on a GPU: no other tiles of wgmma are to be had."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from small_models import bert_data, jitted, relative_errors

import jaxmono
from benchmarks import data
from benchmarks.data import Data, copied
from benchmarks.workloads import find
from examples.models import bert
from jaxmono.codegen import dot_schedule_wgmma as wgmma

BF16, F32 = jnp.bfloat16, jnp.float32
CASES = {
    "bert": lambda: bert_data(4, length=128, config=bert.BertConfig(layers=2)),
    "bert, odd rows": lambda: bert_data(3, length=77, config=bert.BertConfig(layers=2)),
    "repvgg": lambda: data.make(data.Case(find("repvgg_a0"), 8, "bf16"), sets=2),
}


@pytest.fixture(autouse=True)
def only_in_turn(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("JAXMONO_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr(wgmma, "_shared_tiles", lambda: iter(
        ((1, 1, 1), rows, columns) for rows, columns in wgmma._IN_TURN))


@pytest.mark.parametrize("name", list(CASES))
def test_as_good_as_xla_and_the_same_bits(name: str) -> None:
    case: Data = CASES[name]()
    step = jitted(case)
    args = case.arguments()
    assert "takes_turn(at" in step.lower(*args).compile().as_text("cuda")
    ours, xla = relative_errors(case, step, jitted(case, "xla"))
    assert ours <= 1.2 * xla, (ours, xla)
    found = {tuple(np.asarray(x).tobytes() for x in jax.tree.leaves(jax.device_get(step(
        case.states[0], copied(case.carry), *case.inputs[0])))) for _ in range(60)}
    assert len(found) == 1


@pytest.mark.parametrize(("m", "n", "k"), [(128, 128, 64), (40000, 256, 64), (640, 1600, 200),
                                           (4096, 3072, 768), (1000, 520, 3072)])
@pytest.mark.parametrize("rows", [False, True])
def test_exact(m: int, n: int, k: int, rows: bool) -> None:
    """Small integers: every product and sum is exact. From less than a task a block to several."""
    a, b = jax.random.split(jax.random.key(m))
    x = jax.random.randint(a, (m, k), -2, 3).astype(BF16)
    w = jax.random.randint(b, (n, k) if rows else (k, n), -2, 3).astype(BF16)

    def dot(x: Any, w: Any) -> Any:
        return jnp.einsum("mk,nk->mn" if rows else "mk,kn->mn", x, w, preferred_element_type=F32)

    step = jaxmono.jit(dot, on_unsupported="error")
    wanted = np.asarray(x, np.float32) @ (np.asarray(w, np.float32).T if rows
                                          else np.asarray(w, np.float32))
    assert {np.asarray(step(x, w)).tobytes() for _ in range(20)} == {wanted.tobytes()}
