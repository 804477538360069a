"""The ASR encoder against its formulas, written once more as NumPy loops in f64; what the CTC loss
of Wav2Vec2 counts; which weights its training step moves."""

from __future__ import annotations

import dataclasses
import itertools
import math
from typing import Any, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx
from thinned import thinned

from examples.models import asr_encoder, wav2vec2

Array: TypeAlias = np.ndarray[Any, Any]

CONFIG = asr_encoder.tiny(dtype=jnp.float32)


@pytest.fixture
def model() -> asr_encoder.AsrEncoder:
    """With noise on every weight, so that none is 0 or 1 by its initialisation."""
    created = asr_encoder.create(CONFIG)
    rng = np.random.default_rng(5)
    nnx.update(created, jax.tree.map(
        lambda leaf: leaf + jnp.asarray(0.1 * rng.standard_normal(leaf.shape), leaf.dtype),
        nnx.state(created)))
    return created


def _close(got: Any, want: Array) -> None:
    got = np.asarray(got, np.float64)
    assert got.shape == want.shape
    assert np.linalg.norm(got - want) <= 1e-4 * np.linalg.norm(want)


def _f64(parameter: Any) -> Array:
    return np.asarray(parameter[...], np.float64)


def _dense(layer: Any, x: Array) -> Array:
    return x @ _f64(layer.kernel) + _f64(layer.bias)


def _norm(layer: Any, x: Array) -> Array:
    x = x - x.mean(-1, keepdims=True)
    x = x / np.sqrt((x * x).mean(-1, keepdims=True) + 1e-12)
    return x * _f64(layer.scale) + _f64(layer.bias)


def _conv(layer: Any, x: Array) -> Array:
    """x: [T, F, C]; windows of 3 x 3, every other one, then ReLU."""
    kernel, bias = _f64(layer.kernel), _f64(layer.bias)
    return np.array([[
        np.maximum(np.einsum("tfc,tfco->o", x[t:t + 3, f:f + 3], kernel) + bias, 0)
        for f in range(0, x.shape[1] - 2, 2)] for t in range(0, x.shape[0] - 2, 2)])


def _subsampled(part: asr_encoder.Subsampling, mels: Array) -> Array:
    x = _conv(part.second, _conv(part.first, mels[..., None]))
    return _dense(part.out, x.reshape(len(x), -1))


def _layer(layer: Any, x: Array) -> Array:
    """x: [T, H]."""
    attention, heads = layer.attention, CONFIG.heads
    y = _norm(layer.attention_norm, x)
    query, key, value = (_dense(part, y).reshape(len(x), heads, -1)
                         for part in (attention.query, attention.key, attention.value))
    mixed = np.zeros_like(query)
    for h, t in itertools.product(range(heads), range(len(x))):
        scores = np.array([query[t, h] @ k / math.sqrt(query.shape[-1]) for k in key[:, h]])
        weights = np.exp(scores) / np.sum(np.exp(scores))
        mixed[t, h] = weights @ value[:, h]
    x = x + _dense(attention.out, mixed.reshape(len(x), -1))
    return x + _dense(layer.down, np.maximum(_dense(layer.up, _norm(layer.norm, x)), 0))


@pytest.mark.parametrize("frames", thinned([15, 18, 23], 3))
def test_subsampling(model: asr_encoder.AsrEncoder, frames: int) -> None:
    mels = jax.random.normal(jax.random.key(0), (2, frames, CONFIG.mels))
    got = nnx.jit(model.subsampling)(mels)
    assert got.shape == (2, asr_encoder.shorter(frames), CONFIG.hidden)
    _close(got, np.array([_subsampled(model.subsampling, np.asarray(m, np.float64))
                          for m in mels]))


def test_one_layer(model: asr_encoder.AsrEncoder) -> None:
    x = jax.random.normal(jax.random.key(0), (2, 9, CONFIG.hidden))
    got = nnx.jit(model.layers[1])(x)
    _close(got, np.array([_layer(model.layers[1], np.asarray(row, np.float64)) for row in x]))


def test_the_encoder(model: asr_encoder.AsrEncoder) -> None:
    mels = jax.random.normal(jax.random.key(0), (2, 30, CONFIG.mels))
    want = []
    for row in np.asarray(mels, np.float64):
        x = math.sqrt(CONFIG.hidden) * _subsampled(model.subsampling, row)
        for t, i in itertools.product(range(len(x)), range(CONFIG.hidden)):
            angle = t / 10000 ** (2 * (i // 2) / CONFIG.hidden)
            x[t, i] += math.cos(angle) if i % 2 else math.sin(angle)
        for layer in model.layers:
            x = _layer(layer, x)
        want.append(_norm(model.norm, x))
    _close(nnx.jit(model)(mels), np.array(want))


def test_ctc_loss_sums_all_paths() -> None:
    """Every path over the frames that reads as the label, one by one."""
    logits = np.random.default_rng(0).standard_normal((3, 5, 3))
    labels = np.array([[1, 2, -1], [1, 1, -1], [2, 1, 2]])
    probabilities = np.exp(logits) / np.exp(logits).sum(-1, keepdims=True)
    losses = []
    for p, label in zip(probabilities, labels, strict=True):
        wanted, total = [int(i) for i in label if i >= 0], 0.0
        for path in itertools.product(range(3), repeat=5):
            if [i for i, _ in itertools.groupby(path) if i != wav2vec2.BLANK] == wanted:
                total += math.prod(p[t, i] for t, i in enumerate(path))
        losses.append(-math.log(total) / len(wanted))
    got = wav2vec2.ctc_loss(jnp.asarray(logits, jnp.float32), jnp.asarray(labels))
    assert float(got) == pytest.approx(np.mean(losses), rel=1e-5)


@pytest.mark.slow
def test_fine_tuning_learns_and_freezes_the_feature_encoder() -> None:
    config = dataclasses.replace(wav2vec2.tiny(weight_norm=True, dtype=jnp.float32), layers=1)
    model = wav2vec2.create(config)
    training = wav2vec2.training(model, learning_rate=1e-2)
    assert nnx.to_pure_dict(training.frozen).keys() == {"features"}
    assert not {"features"} & nnx.to_pure_dict(training.weights).keys()
    assert isinstance(training.optimiser, optax.GradientTransformation)

    audio = jax.random.normal(jax.random.key(0), (2, 400))
    labels = jnp.array([[1, 2, 3, -1], [4, 4, 5, 6]])
    carry = (training.weights, training.optimiser.init(training.weights))
    step, losses = jax.jit(training.step), []
    for _ in range(20):
        loss, carry = step(training.frozen, carry, audio, labels)
        losses.append(float(loss))
    assert losses[-1] < 0.5 * losses[0]
    moved = jax.tree.map(lambda a, b: bool(jnp.any(a != b)), training.weights, carry[0])
    assert all(jax.tree.leaves(moved))
    stored = nnx.state(model, nnx.PathContains("features"))
    assert all(map(np.array_equal, jax.tree.leaves(stored), jax.tree.leaves(training.frozen)))


def test_weight_norm_starts_as_the_kernel_it_stands_for() -> None:
    folded, kept = (wav2vec2.Positions(wav2vec2.tiny(weight_norm=flag, dtype=jnp.float32),
                                       rngs=nnx.Rngs(0)) for flag in (False, True))
    x = jax.random.normal(jax.random.key(0), (2, 12, 32))
    _close(nnx.jit(kept)(x), np.asarray(nnx.jit(folded)(x), np.float64))
    assert folded.gain is None and kept.gain.shape == (8,)
