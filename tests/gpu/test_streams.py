"""Programs that mostly move data, on a GPU beside XLA: steps of an optimiser, long softmaxes."""

from __future__ import annotations

import functools
import itertools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import jaxmono

BF16, F32 = jnp.bfloat16, jnp.float32


def normal(seed: int, *shape: int, dtype: Any = F32, scale: float = 1.0) -> jax.Array:
    return (jax.random.normal(jax.random.key(seed), shape) * scale).astype(dtype)


@pytest.mark.parametrize("donated", [False, True])
@pytest.mark.parametrize("dtype", [F32, BF16])
@pytest.mark.parametrize("shape", [(1024, 1024), (2051, 1027), (1 << 20,)])
def test_adamw(shape: tuple[int, ...], dtype: Any, donated: bool) -> None:
    """Five steps, each of what the one before gave; zeros, infinities and NaNs among gradients."""
    optimiser = optax.adamw(1e-3, weight_decay=0.01)

    def step(w: Any, state: Any, g: Any) -> Any:
        updates, state = optimiser.update({"w": g.astype(F32)}, state, {"w": w})
        return optax.apply_updates({"w": w}, updates)["w"], state

    ours = jaxmono.jit(step, donate_argnums=(0, 1) if donated else ())
    w = normal(0, *shape)
    a, b = ((w.copy(), optimiser.init({"w": w})) for _ in range(2))
    for i in range(5):
        g = normal(i + 1, *shape, dtype=dtype)
        g = jnp.where(jax.random.uniform(jax.random.key(i), shape) < 0.01, 0, g)
        if i == 4:
            g = g.reshape(-1).at[jnp.asarray([0, 77, 4097])].set(
                jnp.asarray([jnp.nan, jnp.inf, -jnp.inf], dtype)).reshape(shape)
        a, b = ours(*a, g), jax.jit(step)(*b, g)
        for got, want in zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True):
            np.testing.assert_allclose(got, want, rtol=2e-5, atol=1e-6)


@pytest.mark.parametrize("optimiser", ["sgd", "momentum", "adamw"])
@pytest.mark.parametrize("widths", [(96, 256, 128), (61, 515, 95), (512, 2048, 2048)])
def test_layers_learn_in_place(optimiser: str, widths: tuple[int, ...]) -> None:
    """Weights that products read, and updates in the epilogues of others: four steps, each of what
    the one before gave, in the same buffers."""
    chosen = {"sgd": optax.sgd(1e-2), "momentum": optax.sgd(1e-2, momentum=0.9),
              "adamw": optax.adamw(1e-3)}[optimiser]

    def loss(params: Any, x: Any, dtype: Any) -> Any:
        for w, b, scale in params:
            x = jnp.tanh((x * scale).astype(dtype) @ w.astype(dtype) + b.astype(dtype)).astype(F32)
        return (x ** 2).mean()

    def step(params: Any, state: Any, x: Any, dtype: Any = BF16) -> Any:
        value, grads = jax.value_and_grad(loss)(params, x, dtype)
        updates, state = chosen.update(grads, state, params)
        return optax.apply_updates(params, updates), state, value

    def exactly(*args: Any) -> Any:
        with jax.default_matmul_precision("highest"):
            return jax.jit(functools.partial(step, dtype=F32))(*args)

    params = [(normal(i, k, n, scale=k ** -0.5), normal(9 + i, n, scale=0.1), jnp.ones(k))
              for i, (k, n) in enumerate(itertools.pairwise(widths))]
    ours = jaxmono.jit(step, donate_argnums=(0, 1))
    a, b, e = (jax.tree.map(jnp.copy, (params, chosen.init(params))) for _ in range(3))
    told = str(ours.explain(*a, normal(0, 300, widths[0])))
    assert "outputs take the place of donated inputs" in told, told
    for i in range(4):
        x = normal(20 + i, 300, widths[0])
        *a, value = ours(*a, x)
        *b, other = jax.jit(step)(*b, x)
        *e, _ = exactly(*e, x)
        np.testing.assert_allclose(value, other, rtol=2e-2)
    for got, want, exact in zip(*map(jax.tree.leaves, (a, b, e)), strict=True):
        g, w, x = (np.asarray(v, np.float32) for v in (got, want, exact))
        mine, others = (np.sqrt(np.mean((v - x) ** 2)) for v in (g, w))
        assert mine <= 1.2 * others + 2e-3 * np.sqrt(np.mean(x ** 2))


@pytest.mark.parametrize("shape", [(64, 300), (513, 1000), (16, 50257), (4096, 1024), (3, 7)])
@pytest.mark.parametrize("dtype", [F32, BF16])
def test_rows_over_themselves(shape: tuple[int, ...], dtype: Any) -> None:
    """Elements that a row's sweeps read before they are written, many times over."""
    def rows(x: Any) -> Any:
        return jax.nn.standardize(x.astype(F32), -1).astype(dtype)

    def columns(x: Any) -> Any:
        return (x / (1 + jnp.abs(x.astype(F32)).sum(0)).astype(dtype)) * 8

    for fn in (rows, columns, jax.nn.softmax):
        ours, theirs = jaxmono.jit(fn, donate_argnums=0), jax.jit(fn)
        a = b = normal(7, *shape, dtype=dtype)
        a = jnp.copy(a)
        assert "1 outputs take the place of donated inputs" in str(ours.explain(a))
        for _ in range(3):
            a, b = ours(a), theirs(b)
            got, want = (np.asarray(v, np.float32) for v in (a, b))
            np.testing.assert_allclose(got, want, rtol=2e-5 if dtype is F32 else 2e-2,
                                       atol=2e-5 if dtype is F32 else 2e-2)


@pytest.mark.parametrize("size", [5, 4097, (1 << 22) + 8, (1 << 24) + 24])
def test_a_block_a_task(size: int) -> None:
    """Sizes that end inside a task, by far more blocks than run at a time."""
    function = jaxmono.jit(lambda x, y: (x / jnp.sqrt(y), x * y.astype(F32)))
    for seed in range(2):
        x, y = normal(seed, size), jnp.abs(normal(seed + 2, size)) + 0.1
        for got, want in zip(function(x, y), (x / jnp.sqrt(y), x * y), strict=True):
            np.testing.assert_allclose(got, want, rtol=1e-6)


@pytest.mark.parametrize("fn", [jax.nn.softmax, jax.nn.log_softmax, jax.nn.logsumexp])
@pytest.mark.parametrize("dtype", [F32, BF16])
@pytest.mark.parametrize("rows", [1, 3, 16])
def test_long_softmaxes(fn: Any, dtype: Any, rows: int) -> None:
    def along(x: Any) -> Any:
        return fn(x, axis=-1)

    function = jaxmono.jit(along)
    for seed in range(4):
        x = np.array(normal(seed, rows, 50257, scale=4), np.float32)
        x[0, 100] = (0.0, np.inf, -np.inf, np.nan)[seed]
        x[-1, :30000] = -np.inf
        x = jnp.asarray(x - 300, dtype)
        exact = np.asarray(jax.jit(along)(x.astype(F32)))
        ours, theirs = (np.asarray(f(x), np.float32) for f in (function, jax.jit(along)))
        np.testing.assert_array_equal(ours, np.asarray(function(x), np.float32))
        np.testing.assert_array_equal(np.isfinite(ours), np.isfinite(theirs))
        fine = np.isfinite(exact) & np.isfinite(theirs)
        mine, other = (np.linalg.norm((v - exact)[fine]) for v in (ours, theirs))
        assert mine <= 1.1 * other + 1e-5 * np.linalg.norm(exact[fine])


@pytest.mark.parametrize("dtype", [BF16, F32])
def test_products_that_meet(dtype: Any) -> None:
    """An MLP's gradients, of which one product has both in its epilogue, and their sums."""
    def gradients(x: Any, up: Any, bias: Any, down: Any, back: Any) -> Any:
        def layers(x: Any, up: Any, bias: Any, down: Any) -> Any:
            return jax.nn.gelu(x @ up + bias) @ down

        return jax.vjp(layers, x, up, bias, down)[1](back)

    args = (normal(0, 1024, 512), normal(1, 512, 2304, scale=0.04), normal(2, 2304),
            normal(3, 2304, 512, scale=0.02), normal(4, 1024, 512))
    args = tuple(v.astype(dtype) for v in args)
    function = jaxmono.jit(gradients)
    explained = function.lower(*args).compile().explain()
    assert explained.kernels == 1
    with jax.default_matmul_precision("highest"):
        wanted = jax.jit(gradients)(*(v.astype(F32) for v in args))
    for ours, same, theirs, exact in zip(function(*args), function(*args),
                                         jax.jit(gradients)(*args), wanted, strict=True):
        a, b, c, e = (np.asarray(v, np.float32) for v in (ours, same, theirs, exact))
        np.testing.assert_array_equal(a, b)
        mine, other = (np.sqrt(np.mean((v - e) ** 2)) for v in (a, c))
        assert mine <= 1.1 * other + (1e-3 if dtype is BF16 else 3e-4) * np.sqrt(np.mean(e ** 2))
