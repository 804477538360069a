"""Few rows times streamed weights on a real GPU: right, the same bits always, near bandwidth."""

from __future__ import annotations

import time
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxmono

BF16, F16, F32 = jnp.bfloat16, jnp.float16, jnp.float32


def operands(m: int, n: int, k: int, t: Any, *, rows: bool) -> tuple[jax.Array, jax.Array]:
    """Small integers: every product and sum is exact."""
    a, b = jax.random.split(jax.random.key(m * n + k))
    x = jax.random.randint(a, (m, k), -2, 3).astype(t)
    return x, jax.random.randint(b, (n, k) if rows else (k, n), -2, 3).astype(t)


def dot(x: Any, w: Any, *, rows: bool) -> Any:
    return jnp.einsum("mk,nk->mn" if rows else "mk,kn->mn", x, w, preferred_element_type=F32,
                      precision="highest")


@pytest.mark.parametrize("rows", [False, True])
@pytest.mark.parametrize(("m", "n", "k", "t"), [
    (1, 2048, 8192, BF16), (1, 768, 768, F32), (3, 3072, 768, F16), (4, 50257, 768, BF16),
    (5, 1000, 1001, BF16), (8, 8192, 2048, BF16), (2, 4096, 2048, BF16), (3, 8192, 2056, F16),
    (6, 2048, 8192, BF16), (8, 2304, 768, F32), (16, 2048, 2048, BF16)])
def test_exact(m: int, n: int, k: int, t: Any, rows: bool) -> None:
    x, w = operands(m, n, k, t, rows=rows)
    step = jaxmono.jit(lambda x, w: dot(x, w, rows=rows), on_unsupported="error")
    wanted = np.asarray(x, np.float32) @ (np.asarray(w, np.float32).T if rows
                                          else np.asarray(w, np.float32))
    found = {np.asarray(step(x, w)).tobytes() for _ in range(20)}
    assert found == {wanted.tobytes()}


@pytest.mark.parametrize(("m", "n", "k"), [
    (1, 2048, 8192), (4, 768, 3072), (16, 512, 2048), (64, 768, 3072)])
def test_mail_is_of_this_launch(m: int, n: int, k: int) -> None:
    """Every launch finds the sums of its own inputs in the words that the one before has emptied;
    rows of zeros, too, whose sums are no mail as they are."""
    _, w = operands(m, n, k, BF16, rows=False)
    step = jaxmono.jit(lambda x, w: dot(x, w, rows=False), on_unsupported="error")
    wide = np.asarray(w, np.float32)
    assert "Mailbox" in step.lower(jnp.zeros((m, k), BF16), w).as_text("cuda")
    xs = [jax.random.randint(jax.random.key(i), (m, k), -2, 3).astype(BF16) * (i % 5 > 0)
          for i in range(40)]
    for x, y in zip(xs, [step(x, w) for x in xs], strict=True):
        np.testing.assert_array_equal(np.asarray(y), np.asarray(x, np.float32) @ wide)


@pytest.mark.parametrize("t", [BF16, F16, F32])
def test_values_with_flags_are_of_this_launch(t: Any) -> None:
    """Each launch has other inputs and the words of the one before, behind which it lies on the
    stream. Sums of small integers, which are exact."""
    def step(x: Any, ws: Any) -> Any:
        for w, v in ws:
            h = jnp.clip(dot(x, w, rows=False), -2, 2).astype(t)
            x = jnp.clip(x + dot(h, v, rows=False), -3, 3).astype(t)
        return x

    ws = [(operands(1, 1536, 512, t, rows=False)[1], operands(1, 512, 1536, t, rows=False)[1])
          for _ in range(6)]
    mono = jaxmono.jit(step, on_unsupported="error")
    xs = [jax.random.randint(jax.random.key(i), (1, 512), -2, 3).astype(t) for i in range(60)]
    text = mono.lower(xs[0], ws).as_text("cuda")
    assert "Flagged<" in text and "open border" in text
    exact = jax.jit(step)
    for x, y in zip(xs, [mono(x, ws) for x in xs], strict=True):
        np.testing.assert_array_equal(np.asarray(y, np.float32),
                                      np.asarray(exact(x, ws), np.float32))


def test_layers_behind_each_other_give_the_same_bits() -> None:
    def step(x: Any, ws: Any) -> Any:
        for w, v in ws:
            h = x / jnp.sqrt((x.astype(F32) ** 2).mean(-1, keepdims=True) + 1e-5).astype(BF16)
            x = x + jnp.einsum("mk,nk->mn", jax.nn.silu(h @ w), v)
        return x

    keys = jax.random.split(jax.random.key(0), 13)
    ws = [(jax.random.normal(a, (768, 3072), BF16) / 28,
           jax.random.normal(b, (768, 3072), BF16) / 55)
          for a, b in zip(keys[:6], keys[6:12], strict=True)]
    x = jax.random.normal(keys[12], (1, 768), BF16)
    mono = jaxmono.jit(step, on_unsupported="error")
    found = {np.asarray(mono(x, ws)).tobytes() for _ in range(100)}
    assert len(found) == 1
    wanted = np.asarray(jax.jit(step)(x, ws), np.float32)
    a = np.asarray(mono(x, ws), np.float32)
    assert np.abs(a - wanted).max() <= 0.03 * np.abs(wanted).max()


def test_a_large_head_is_read_near_bandwidth() -> None:
    """525 MB, two weights in turn, of either layout; 2.9 TB/s is 70 % of an H200's read bandwidth.
    Other tests may have the GPU meanwhile, so it may take half a minute to see it once; a broken
    stream never. The layouts follow each other: side by side each has half of the bandwidth."""
    if "H200" not in jax.devices()[0].device_kind:
        pytest.skip("the bound is an H200's")
    for rows in (False, True):
        shape = (128256, 2048) if rows else (2048, 128256)
        ws = [jax.random.normal(jax.random.key(i), shape, BF16) for i in range(2)]
        x = jax.random.normal(jax.random.key(2), (1, 2048), BF16)
        step = jaxmono.jit(partial(dot, rows=rows))
        jax.block_until_ready([step(x, w) for w in ws])
        best, until = 0.0, time.perf_counter() + 30
        while best <= 2.9e12 and time.perf_counter() < until:
            begin = time.perf_counter()
            jax.block_until_ready([step(x, ws[i % 2]) for i in range(20)])
            best = max(best, 20 * ws[0].nbytes / (time.perf_counter() - begin))
        assert best > 2.9e12, f"rows={rows}"
