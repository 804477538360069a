"""Weights of the yardstick that several processes share."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from benchmarks import supervise, weights


def drawn(seed: int) -> dict[str, Any]:
    keys = jax.random.split(jax.random.key(seed), 3)
    return {"w": jax.random.normal(keys[0], (3, 5), jnp.bfloat16), "n": jnp.int32(seed),
            "half": jax.random.normal(keys[1], (7,), jnp.float16), "none": jnp.zeros((0, 4)),
            "mask": jax.random.bernoulli(keys[2], shape=(9,))}


@pytest.fixture
def shared(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv(supervise.STATE, str(tmp_path / "state.json"))
    return tmp_path / "weights"


def bits(leaves: Any) -> list[tuple[Any, ...]]:
    return [(x.shape, x.dtype, np.asarray(x).tobytes()) for x in leaves]


def test_the_first_process_draws_and_the_others_read(shared: Path) -> None:
    first, tree = weights.leaves(lambda: drawn(1), "model b1 bf16")
    assert [f.name for f in shared.iterdir()] == ["model_b1_bf16"]
    again, same = weights.leaves(lambda: drawn(2), "model b1 bf16")  # what it would draw
    assert bits(again) == bits(first) and same == tree
    assert bits(jax.tree.leaves(drawn(1))) == bits(first)
    assert all(isinstance(x, jax.Array) for x in again)
    other, _ = weights.leaves(lambda: drawn(2), "model b1 f32")
    assert bits(other) != bits(first)


def test_what_is_large_or_no_array_of_numbers_is_drawn_each_time(
        shared: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    weights.leaves(lambda: {"key": jax.random.key(0), "w": jnp.ones(3)}, "keys")
    monkeypatch.setattr(weights, "MOST_BYTES", 11)
    weights.leaves(lambda: jnp.ones(3), "large")
    assert not shared.exists()


def test_without_a_run_nothing_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(supervise.STATE, raising=False)
    leaves, _ = weights.leaves(lambda: drawn(1), "model")
    assert bits(leaves) == bits(jax.tree.leaves(drawn(1))) and not list(tmp_path.iterdir())
