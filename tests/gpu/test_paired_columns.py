"""Products of which one half gates the other, on a GPU, beside XLA and f32."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxmono

BF16, F16, F32 = jnp.bfloat16, jnp.float16, jnp.float32
X = Any


def geglu(x: X, w: X, b: X) -> X:
    u, g = jnp.split(x @ w + b, 2, axis=-1)
    return u * jax.nn.gelu(g, approximate=False)


def geglu_of_rows(x: X, w: X, b: X) -> X:
    """Weights [n, k]."""
    u, g = jnp.split(x @ w.T + b, 2, axis=-1)
    return u * jax.nn.gelu(g)


def swiglu(x: X, gate: X, up: X) -> X:
    return jax.nn.silu(x @ gate) * (x @ up)


def block(x: X, gate: X, up: X, down: X) -> X:
    """Behind a norm, in front of the next product; the same rows once more."""
    h = x / jnp.sqrt(jnp.mean(jnp.square(x.astype(F32)), -1, keepdims=True)).astype(x.dtype)
    return x + swiglu(h, gate, up) @ down


CASES: dict[str, tuple[Any, tuple[tuple[int, ...], ...]]] = {
    "geglu": (geglu, ((8192, 320), (320, 2560), (2560,))),
    "geglu, tiles of 128": (geglu, ((2048, 640), (640, 5120), (5120,))),
    "geglu, [n, k]": (geglu_of_rows, ((2048, 640), (5120, 640), (5120,))),
    "geglu of odd sizes": (geglu, ((1111, 328), (328, 2 * 1096), (2 * 1096,))),
    "geglu of odd rows, [n, k]": (geglu_of_rows, ((777, 456), (2 * 2056, 456), (2 * 2056,))),
    "swiglu": (swiglu, ((512, 2048), (2048, 8192), (2048, 8192))),
    "swiglu of odd sizes": (swiglu, ((1025, 520), (520, 1672), (520, 1672))),
    "block": (block, ((1024, 1024), (1024, 4096), (1024, 4096), (4096, 1024))),
}


def given(shapes: tuple[tuple[int, ...], ...], dtype: Any) -> tuple[jax.Array, ...]:
    rng = np.random.default_rng(len(shapes))
    return tuple(jnp.asarray(rng.standard_normal(s) / (1 if i == 0 else np.sqrt(s[0])), F32)
                 .astype(dtype) for i, s in enumerate(shapes))


def check(fn: Any, args: tuple[jax.Array, ...], stages: int | None) -> None:
    compiled = jaxmono.jit(fn).lower(*args).compile()
    told = compiled.explain()
    assert told.kernels == 1 and (stages is None or told.stages == stages), str(told)
    assert "gated by their own columns" in str(told), str(told)
    with jax.default_matmul_precision("highest"):
        wanted = jax.tree.leaves(jax.jit(fn)(*(a.astype(F32) for a in args)))
    outs = [compiled(*args) for _ in range(5)]
    for a, b, want in zip(jax.tree.leaves(outs[0]), jax.tree.leaves(jax.jit(fn)(*args)), wanted,
                          strict=True):
        norm = float(jnp.linalg.norm(want))
        ours, theirs = (float(jnp.linalg.norm(x.astype(F32) - want)) / norm for x in (a, b))
        assert ours <= 1.1 * theirs + 1e-6, (ours, theirs)
    assert len({np.asarray(jax.tree.leaves(o)[0]).tobytes() for o in outs}) == 1


@pytest.mark.parametrize("dtype", [BF16, F16])
@pytest.mark.parametrize("case", CASES)
def test_gated_in_one_tile(case: str, dtype: Any) -> None:
    fn, shapes = CASES[case]
    check(fn, given(shapes, dtype), None if case == "block" else 1)


def test_gradients() -> None:
    """The halves are stored for the backward pass, beside what is gated."""
    def loss(x: X, gate: X, up: X) -> X:
        return jax.grad(lambda *a: jnp.sum(swiglu(*a).astype(F32) ** 2), argnums=(0, 1, 2))(
            x, gate, up)

    check(loss, given(((1024, 512), (512, 2048), (512, 2048)), BF16), None)


def test_what_is_no_number_stays_so() -> None:
    x, gate, up = given(((512, 512), (512, 4096), (512, 4096)), BF16)
    x = x.at[17, 3].set(jnp.nan).at[300, 5].set(jnp.inf)
    ours = jaxmono.jit(swiglu)(x, gate, up).astype(F32)
    theirs = jax.jit(swiglu)(x, gate, up).astype(F32)
    np.testing.assert_array_equal(np.isfinite(ours), np.isfinite(theirs))
