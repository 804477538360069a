"""MLP-Mixer: sizes of the published model, and the paper's equations in numpy."""

from __future__ import annotations

import math

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from examples.models import mixer


def test_b16_has_the_published_parameters() -> None:
    shapes = jax.eval_shape(lambda: nnx.state(mixer.create(mixer.b16())))
    assert sum(x.size for x in jax.tree.leaves(shapes)) == 59_880_472


def test_the_equations() -> None:
    config = mixer.tiny(dtype=jnp.float32)
    model = mixer.create(config)
    images = np.random.default_rng(0).standard_normal((2, 12, 12, 3)).astype(np.float32)

    def norm(x: np.ndarray, layer: nnx.LayerNorm) -> np.ndarray:
        centred = x - x.mean(-1, keepdims=True)
        made = centred / np.sqrt((centred**2).mean(-1, keepdims=True) + config.norm_eps)
        return made * np.asarray(layer.scale[...]) + np.asarray(layer.bias[...])

    def dense(x: np.ndarray, layer: nnx.Linear) -> np.ndarray:
        return x @ np.asarray(layer.kernel[...]) + np.asarray(layer.bias[...])

    def mlp(x: np.ndarray, layer: mixer.Mlp) -> np.ndarray:
        y = dense(x, layer.up)
        y = y * 0.5 * (1 + np.tanh(math.sqrt(2 / math.pi) * (y + 0.044715 * y**3)))
        return dense(y, layer.down)

    patches = images.reshape(2, 3, 4, 3, 4, 3).transpose(0, 1, 3, 2, 4, 5).reshape(2, 9, 48)
    x = patches @ np.asarray(model.stem.kernel[...]).reshape(48, 24) + np.asarray(
        model.stem.bias[...])
    for layer in model.layers:
        y = mlp(norm(x, layer.token_norm).transpose(0, 2, 1), layer.tokens)
        x = x + y.transpose(0, 2, 1)
        x = x + mlp(norm(x, layer.channel_norm), layer.channels)
    want = dense(norm(x, model.norm).mean(1), model.out)
    np.testing.assert_allclose(np.asarray(nnx.jit(model)(jnp.asarray(images))), want, rtol=1e-4,
                               atol=1e-4)
