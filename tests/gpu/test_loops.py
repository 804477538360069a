"""Loops that were taken apart, on a GPU beside XLA: one kernel, as right, every time."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from test_counted_loops import gru, lstm, training, two_ways
from test_layers_in_a_loop import inputs, layers

import jaxmono
from benchmarks.workloads.loops import ctc
from benchmarks.workloads.nested import controlled_steps, deep_rnn, pendulums, policy_update

BF16, F32 = jnp.bfloat16, jnp.float32


@pytest.mark.parametrize(("fn", "dtype", "batch", "width"), [
    (gru, BF16, 1, 36), (gru, BF16, 256, 36), (gru, F32, 64, 128), (two_ways, BF16, 8, 256),
    (lstm, BF16, 16, 128), (lstm, F32, 1, 256)])
def test_a_recurrent_network_is_one_kernel(fn: Any, dtype: Any, batch: int, width: int) -> None:
    rng = np.random.default_rng(0)
    compiled = None
    for _ in range(4):
        wide, high = (width, 2 * width) if fn is lstm else (3 * width, width)
        x = jnp.asarray(rng.standard_normal((60, batch, wide)), dtype)
        w = jnp.asarray(rng.standard_normal((high, (4 if fn is lstm else 3) * width)) / high ** 0.5,
                        dtype)
        with jax.default_matmul_precision("highest"):
            exact = np.asarray(jax.jit(fn)(x.astype(F32), w.astype(F32)), np.float64)
        theirs = np.asarray(jax.jit(fn)(x, w), np.float64)
        compiled = compiled or jaxmono.jit(fn).lower(x, w).compile()
        assert compiled.explain().kernels == 1
        for _ in range(5):
            ours = np.asarray(compiled(x, w), np.float64)
            error, allowed = np.linalg.norm(ours - exact), np.linalg.norm(theirs - exact)
            assert error <= 1.1 * allowed + 1e-6 * np.linalg.norm(exact)


@pytest.mark.parametrize(("dtype", "trips", "batch", "width"), [
    (BF16, 60, 16, 128), (F32, 300, 4, 64)])
def test_a_training_step_is_one_kernel(dtype: Any, trips: int, batch: int, width: int) -> None:
    """What the way back needs of each trip lies together; 300 trips are more than a choice of."""
    rng = np.random.default_rng(0)
    compiled = None
    for _ in range(3):
        x = jnp.asarray(rng.standard_normal((trips, batch, 3 * width)), dtype)
        w = jnp.asarray(rng.standard_normal((width, 3 * width)) / width ** 0.5, dtype)
        with jax.default_matmul_precision("highest"):
            _, exact = jax.jit(training)(x.astype(F32), w.astype(F32))
        exact = np.asarray(exact, np.float64)
        _, theirs = jax.jit(training)(x, w)
        compiled = compiled or jaxmono.jit(training).lower(x, w).compile()
        assert compiled.explain().kernels == 1
        for _ in range(3):
            _, ours = compiled(x, w)
            error = np.linalg.norm(np.asarray(ours, np.float64) - exact)
            allowed = np.linalg.norm(np.asarray(theirs, np.float64) - exact)
            assert error <= 1.1 * allowed + 1e-6 * np.linalg.norm(exact)


@pytest.mark.parametrize(("dtype", "rows", "wide"), [(BF16, 128, 768), (BF16, 1, 512),
                                                     (F32, 64, 256)])
def test_layers_in_a_loop_are_one_kernel(dtype: Any, rows: int, wide: int) -> None:
    x, weights = inputs(6, rows, wide, dtype)
    with jax.default_matmul_precision("highest"):
        exact = np.asarray(jax.jit(layers)(*jax.tree.map(lambda v: v.astype(F32), (x, weights))),
                           np.float64)
    theirs = np.asarray(jax.jit(layers)(x, weights), np.float64)
    compiled = jaxmono.jit(layers).lower(x, weights).compile()
    assert compiled.explain().kernels == 1
    for _ in range(5):
        ours = np.asarray(compiled(x, weights), np.float64)
        error, allowed = np.linalg.norm(ours - exact), np.linalg.norm(theirs - exact)
        assert error <= 1.1 * allowed + 1e-6 * np.linalg.norm(exact)


def test_a_loss_over_frames_and_its_gradient() -> None:
    """CTC's: two loops of 149 trips, as the data in wav2vec2's training step have it."""
    rng = np.random.default_rng(0)
    compiled = None
    for _ in range(4):
        logits = jnp.asarray(rng.standard_normal((8, 149, 32)) * 3, F32)
        marks = jnp.asarray(rng.standard_normal((8, 40)), F32)
        with jax.enable_x64(True):
            exact = jax.jit(ctc)(np.asarray(logits, np.float64), marks)
        theirs = jax.jit(ctc)(logits, marks)
        compiled = compiled or jaxmono.jit(ctc).lower(logits, marks).compile()
        for _ in range(3):
            ours = compiled(logits, marks)
            for a, b, c in zip(*map(jax.tree.leaves, (ours, theirs, exact)), strict=True):
                a, b, c = (np.asarray(v, np.float64) for v in (a, b, c))
                error, allowed = np.linalg.norm(a - c), np.linalg.norm(b - c)
                assert error <= 1.5 * allowed + 1e-6 * np.linalg.norm(c)


@pytest.mark.parametrize(("fn", "shapes", "dtype"), [
    (pendulums, [(512,), (512,), (30, 512)], F32),
    (deep_rnn, [(20, 8, 64), (3, 64, 64)], BF16), (deep_rnn, [(20, 8, 64), (3, 64, 64)], F32),
    (controlled_steps, [(32, 64), (64, 64)], F32),
    (policy_update, [(4, 128, 17), (4, 128), (17, 64), (64, 64), (64, 6)], F32)])
def test_loops_in_loops_are_one_kernel(fn: Any, shapes: Any, dtype: Any) -> None:
    rng = np.random.default_rng(0)
    compiled = None
    for _ in range(3):
        args = [jnp.asarray(rng.standard_normal(s) / max(1, len(s) > 1 and s[-2]) ** 0.5, dtype)
                for s in shapes]
        with jax.enable_x64(True):
            exact = jax.tree.leaves(jax.jit(fn)(*(np.asarray(a, np.float64) for a in args)))
        theirs = jax.tree.leaves(jax.jit(fn)(*args))
        compiled = compiled or jaxmono.jit(fn).lower(*args).compile()
        assert compiled.explain().kernels == 1
        for _ in range(3):
            for a, b, c in zip(jax.tree.leaves(compiled(*args)), theirs, exact, strict=True):
                a, b, c = (np.asarray(v, np.float64) for v in (a, b, c))
                error, allowed = np.linalg.norm(a - c), np.linalg.norm(b - c)
                assert error <= 1.5 * allowed + 2e-6 * np.linalg.norm(c)
