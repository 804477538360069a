"""Programs whose kernels once read outside of their buffers: elements that a pad, a concatenation
or an update takes from elsewhere were asked for ahead of the test that says so."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import pytest
from harness import DEVICE
from jax import lax
from models import graph_of

from jaxmono.fusion import make_plan
from jaxmono.fusion.plan import Plan

F32, BF16 = jnp.float32, jnp.bfloat16
X = Any
IMAGES = ("NHWC", "HWIO", "NHWC")


def window(y: X, fn: Any, start: float, pads: str) -> X:
    return lax.reduce_window(y, jnp.asarray(start, y.dtype), fn, (1, 3, 3, 1), (1, 1, 1, 1), pads)


def depthwise(y: X, w: X, pads: str = "SAME") -> X:
    return lax.conv_general_dilated(y, w, (1, 1), pads, dimension_numbers=IMAGES,
                                    feature_group_count=y.shape[-1])


def joined(x: X, y: X, z: X) -> X:
    return window(jnp.concatenate([x, y, z], -1), lax.max, -jnp.inf, "VALID")


def joined_and_computed(x: X, y: X, z: X) -> X:
    return joined(x, jnp.maximum(y, 0) * 2, z)


def padded_and_computed(x: X, s: X) -> X:
    return window(jnp.maximum(x, 0) * s, lax.add, 0, "SAME") * 2


def taps_of_computed(x: X, w: X) -> X:
    return depthwise(jnp.maximum(x, 0) * 2, w)


def taps_of_joined(x: X, z: X, w: X) -> X:
    return depthwise(jnp.concatenate([jnp.maximum(x, 0), z * 2], -1), w)


def taps_of_updated(x: X, u: X, i: X, w: X) -> X:
    return depthwise(lax.dynamic_update_slice(x, jnp.maximum(u, 0) * 2, (0, i, 0, 0)), w, "VALID")


def weighted(scores: X, v: X) -> X:
    return jax.nn.softmax(scores.astype(F32), -1).astype(v.dtype) @ v


def more_keys(q: X, k: X, v: X) -> X:
    return weighted(lax.pad(q @ k.T, jnp.asarray(-1e4, q.dtype), ((0, 0, 0), (0, 64, 0))), v)


def joined_keys(q: X, k: X, v: X, u: X) -> X:
    return weighted(jnp.concatenate([q @ k.T, u], -1), v)


def more_rows(q: X, k: X, v: X) -> X:
    return weighted(lax.pad(q @ k.T, jnp.asarray(0, q.dtype), ((0, 64, 0), (0, 0, 0))), v)


def updated_rows(x: X, u: X, i: X) -> X:
    """Its values are in registers from one sweep to the next, but for what a branch computes."""
    return jax.nn.softmax(lax.dynamic_update_slice(x, u, (i, 0)), -1) * x


NARROW = [(64, 64), (192, 64), (256, 64)]
PROGRAMS: dict[str, tuple[Any, list[tuple[int, ...]], Any]] = {
    "joined": (joined, [(2, 7, 9, c) for c in (16, 24, 8)], BF16),
    "joined_and_computed": (joined_and_computed, [(2, 7, 9, c) for c in (8, 16, 8)], BF16),
    "padded_and_computed": (padded_and_computed, [(2, 7, 9, 16), (16,)], F32),
    "taps_of_computed": (taps_of_computed, [(2, 7, 9, 16), (3, 3, 1, 16)], F32),
    "taps_of_joined": (taps_of_joined, [(2, 7, 9, 16), (2, 7, 9, 8), (3, 3, 1, 24)], F32),
    "taps_of_updated": (taps_of_updated, [(2, 7, 9, 16), (2, 3, 9, 16), (), (3, 3, 1, 16)], F32),
    "more_keys": (more_keys, NARROW, BF16),
    "joined_keys": (joined_keys, [*NARROW, (64, 64)], BF16),
    "more_rows": (more_rows, [(64, 64), (192, 64), (192, 64)], BF16),
    "updated_rows": (updated_rows, [(64, 128), (4, 128), ()], F32),
}


def planned(name: str) -> Plan:
    fn, shapes, dtype = PROGRAMS[name]
    args = [jax.ShapeDtypeStruct(s, dtype if s else jnp.int32) for s in shapes]
    return make_plan(graph_of(fn, *args), DEVICE)


@pytest.mark.parametrize("names", [
    pytest.param(list(PROGRAMS)[:5], marks=pytest.mark.slow),
    pytest.param(list(PROGRAMS)[5:8], marks=pytest.mark.slow), list(PROGRAMS)[8:]],
                         ids=["first", "others", "the last"])
def test_nothing_outside_is_read(names: list[str]) -> None:
    folder = Path(__file__).parent
    done = subprocess.run(
        [sys.executable, str(folder / "fenced.py"), *names], capture_output=True, text=True,
        check=False, timeout=240,
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(folder), *filter(None, sys.path)])})
    wanted = [f"{name} {side}" for name in names for side in ("front", "behind")]
    assert (done.stdout.split("\n")[:-1], done.returncode) == (wanted, 0), done.stderr[-2000:]
