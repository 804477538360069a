"""DIEN, CRNN and DeepFM against the papers' formulas, written once more as NumPy loops in f64."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from examples.models import crnn, deepfm, dien

Array: TypeAlias = np.ndarray[Any, Any]

BATCH = 3


def _shaken(model: nnx.Module) -> nnx.Module:
    """Every weight with noise, so that none is 0 or 1 by its initialisation."""
    rng = np.random.default_rng(5)

    def noisy(path: Any, leaf: jax.Array) -> jax.Array:
        noise = jnp.asarray(0.2 * rng.standard_normal(leaf.shape), leaf.dtype)
        return leaf * jnp.exp(noise) if "var" in jax.tree_util.keystr(path) else leaf + noise

    nnx.update(model, jax.tree_util.tree_map_with_path(noisy, nnx.state(model)))
    return model


def _numpy(tree: Any) -> Any:
    """Weights as f64 arrays: ``weights.extractor.input.kernel``, ``weights.layers[0]``."""
    tree = nnx.to_pure_dict(tree) if isinstance(tree, nnx.State) else tree
    if not isinstance(tree, dict):
        return np.asarray(tree, np.float64)
    if 0 in tree:
        return [_numpy(tree[i]) for i in range(len(tree))]
    return SimpleNamespace(**{name: _numpy(leaf) for name, leaf in tree.items()})


def _close(got: Any, want: Array) -> None:
    got = np.asarray(got, np.float64)
    assert got.shape == want.shape
    assert np.linalg.norm(got - want) <= 1e-4 * np.linalg.norm(want)


def sigmoid(x: Array) -> Array:
    return 1 / (1 + np.exp(-x))


def relu(x: Array) -> Array:
    return np.maximum(x, 0)


def dense(w: Any, x: Array) -> Array:
    return x @ w.kernel + w.bias


# DIEN


def _history(config: dien.DienConfig, seed: int = 0) -> dien.History:
    rng = np.random.default_rng(seed)
    wide = (BATCH, config.length)
    return dien.History(*(jnp.asarray(a, jnp.int32) for a in (
        rng.integers(0, config.users, BATCH), rng.integers(0, config.items, BATCH),
        rng.integers(0, config.categories, BATCH), rng.integers(0, config.items, wide),
        rng.integers(0, config.categories, wide), [3, config.length, 1])))


def _labels(config: dien.DienConfig) -> tuple[jax.Array, ...]:
    other = _history(config, seed=1)
    return jnp.asarray([1.0, 0.0, 1.0]), other.items, other.categories


def _gru_step(w: Any, x: Array, h: Array, attention: float = 1.0) -> Array:
    n = len(h)
    gates, state = dense(w.input, x), h @ w.state.kernel
    update = attention * sigmoid(gates[:n] + state[:n])
    reset = sigmoid(gates[n:2 * n] + state[n:2 * n])
    new = np.tanh(gates[2 * n:] + reset * state[2 * n:])
    return (1 - update) * h + update * new


def _normalised(w: Any, x: Array, eps: float, *, training: bool) -> Array:
    mean, var = (x.mean(0), x.var(0)) if training else (w.mean, w.var)
    return (x - mean) / np.sqrt(var + eps)


def _dice(w: Any, x: Array, *, training: bool) -> Array:
    p = sigmoid(_normalised(w.norm, x, 1e-9, training=training))
    return p * x + (1 - p) * w.slope * x


def _dien(w: Any, history: dien.History, *, training: bool) -> tuple[Array, list[Any]]:
    """Logits; per user the interests and the items, without padding."""
    def embed(item: int, category: int) -> Array:
        return np.concatenate([w.items.embedding[item], w.categories.embedding[category]])

    features, seen = [], []
    for b in range(BATCH):
        user, item, category, items, categories, length = (np.asarray(a)[b] for a in history)
        target = embed(item, category)
        past = [embed(items[t], categories[t]) for t in range(length)]
        states, h = [], np.zeros_like(target)
        for x in past:
            h = _gru_step(w.extractor, x, h)
            states.append(h)
        a = w.attention
        query = dense(a.query, target)
        query = np.array([q if q > 0 else s * q for q, s in zip(query, a.prelu.slope, strict=True)])
        scores = []
        for s in states:
            x = sigmoid(dense(a.first, np.concatenate([query, s, query - s, query * s])))
            scores.append(dense(a.score, sigmoid(dense(a.second, x)))[0])
        weights = np.exp(scores) / np.sum(np.exp(scores))
        h = np.zeros_like(target)
        for s, attention in zip(states, weights, strict=True):
            h = _gru_step(w.evolution, s, h, attention)
        total = np.sum(past, axis=0)
        features.append(np.concatenate([w.users.embedding[user], target, total, target * total, h]))
        seen.append((states, past))
    x = _normalised(w.norm, np.array(features), 1e-5, training=training)
    x = dense(w.first, x * w.norm.scale + w.norm.bias)
    x = dense(w.second, _dice(w.first_dice, x, training=training))
    return dense(w.out, _dice(w.second_dice, x, training=training))[:, 0], seen


def _loss(w: Any, history: dien.History, clicked: Any, items: Any, categories: Any) -> float:
    logits, seen = _dien(w, history, training=True)

    def leads(state: Array, item: Array) -> float:
        x = sigmoid(dense(w.auxiliary.first, np.concatenate([state, item])))
        return float(sigmoid(dense(w.auxiliary.out, sigmoid(dense(w.auxiliary.second, x))))[0])

    auxiliary = 0.0
    for b, (states, past) in enumerate(seen):
        for t in range(len(past) - 1):
            other = np.concatenate([w.items.embedding[items[b, t + 1]],
                                    w.categories.embedding[categories[b, t + 1]]])
            auxiliary -= np.log(leads(states[t], past[t + 1]))
            auxiliary -= np.log(1 - leads(states[t], other))
    y, p = np.asarray(clicked), sigmoid(logits)
    clicks = -np.mean(y * np.log(p) + (1 - y) * np.log(1 - p))
    return float(clicks + auxiliary / (BATCH * (np.shape(items)[1] - 1)))


@pytest.mark.slow
def test_dien_is_the_papers() -> None:
    config = dien.tiny(dtype=jnp.float32)
    model, history = _shaken(dien.create(config)), _history(config)
    logits, _ = _dien(_numpy(nnx.state(model)), history, training=False)
    _close(nnx.jit(model)(history), sigmoid(logits))
    assert len({round(float(x), 4) for x in logits}) == BATCH


@pytest.mark.slow
def test_dien_does_not_see_padding() -> None:
    config = dien.tiny(dtype=jnp.float32)
    model, history = _shaken(dien.create(config)), _history(config)
    changed = history._replace(items=history.items.at[0, 3:].add(1) % config.items)
    np.testing.assert_array_equal(model(history), model(changed))
    changed = history._replace(items=history.items.at[0, 2].add(1) % config.items)
    assert np.any(model(history) != model(changed))


@pytest.mark.slow
def test_dien_training_step_follows_the_gradient_of_the_papers_loss() -> None:
    config = dien.tiny(dtype=jnp.float32)
    history, batch = _history(config), _labels(config)
    train_step, weights = dien.training(_shaken(dien.create(config)), learning_rate=1.0)
    loss, after = jax.jit(train_step)(weights, history, *batch)
    reference = [np.asarray(a) for a in batch]
    assert loss == pytest.approx(_loss(_numpy(weights), history, *reference), rel=1e-4)

    leaves, tree = jax.tree_util.tree_flatten_with_path(weights)
    moved = jax.tree.leaves(after)
    rng, checked = np.random.default_rng(2), 0
    for i, ((path, leaf), new) in enumerate(zip(leaves, moved, strict=True)):
        name = jax.tree_util.keystr(path)
        if "mean" in name or "var" in name:
            continue
        gradient = np.asarray(leaf, np.float64) - np.asarray(new, np.float64)
        direction = rng.standard_normal(leaf.shape)

        def at(step: float, i: int = i, direction: Array = direction) -> float:
            values = [np.asarray(a, np.float64) for _, a in leaves]
            values[i] = values[i] + step * direction
            return _loss(_numpy(jax.tree.unflatten(tree, values)), history, *reference)

        slope = (at(1e-5) - at(-1e-5)) / 2e-5
        size = np.linalg.norm(gradient)
        assert size > 0, name
        assert abs(np.sum(gradient * direction) - slope) <= 1e-3 * size + 2e-6, name
        checked += 1
    assert checked == len(jax.tree.leaves(nnx.filter_state(weights, nnx.Param)))


@pytest.mark.slow
def test_dien_training_step_updates_the_running_statistics() -> None:
    config = dien.tiny(dtype=jnp.float32)
    train_step, weights = dien.training(_shaken(dien.create(config)))
    _, after = jax.jit(train_step)(weights, _history(config), *_labels(config))
    for name in ("norm", "first_dice", "second_dice"):
        old, new = ((s[name] if name == "norm" else s[name]["norm"])["mean"][...]
                    for s in (weights, after))
        assert np.all(old != new) and np.max(np.abs(old - new)) < 0.1


@pytest.mark.slow
def test_dien_learns() -> None:
    config = dien.tiny(dtype=jnp.float32)
    train_step, weights = dien.training(dien.create(config))
    step, losses = jax.jit(train_step, donate_argnums=0), []
    for _ in range(30):
        loss, weights = step(weights, _history(config), *_labels(config))
        losses.append(float(loss))
    assert losses[-1] < 0.8 * losses[0]
    assert all(b < a for a, b in zip(losses[::10], losses[9::10], strict=True))


# CRNN


def _conv(w: Any, x: Array, padding: int = 1) -> Array:
    """x: [H, W, C]."""
    x = np.pad(x, ((padding, padding), (padding, padding), (0, 0)))
    height, width, _, channels = w.kernel.shape
    out = np.zeros((x.shape[0] - height + 1, x.shape[1] - width + 1, channels))
    for i in range(out.shape[0]):
        for j in range(out.shape[1]):
            out[i, j] = np.tensordot(x[i:i + height, j:j + width], w.kernel, 3) + w.bias
    return out


def _pool(x: Array, height: int, width: int) -> Array:
    rows, columns = x.shape[0] // height, x.shape[1] // width
    return np.array([[x[i * height:(i + 1) * height, j * width:(j + 1) * width].max((0, 1))
                      for j in range(columns)] for i in range(rows)])


def _lstm(w: Any, x: list[Array]) -> list[Array]:
    n = w.state.kernel.shape[0]
    h, c, out = np.zeros(n), np.zeros(n), []
    for now in x:
        i, f, g, o = np.split(dense(w.input, now) + h @ w.state.kernel, 4)
        c = sigmoid(f) * c + sigmoid(i) * np.tanh(g)
        h = sigmoid(o) * np.tanh(c)
        out.append(h)
    return out


def _bidirectional(w: Any, x: list[Array]) -> list[Array]:
    back = _lstm(w.back, x[::-1])[::-1]
    return [dense(w.out, np.concatenate(pair))
            for pair in zip(_lstm(w.forth, x), back, strict=True)]


def _crnn(w: Any, x: Array) -> Array:
    def norm(n: Any, x: Array) -> Array:
        return (x - n.mean) / np.sqrt(n.var + 1e-5) * n.scale + n.bias

    x = _pool(relu(_conv(w.conv1, x)), 2, 2)
    x = _pool(relu(_conv(w.conv2, x)), 2, 2)
    x = relu(_conv(w.conv3, x))
    x = _pool(relu(_conv(w.conv4, x)), 2, 1)
    x = relu(norm(w.norm5, _conv(w.conv5, x)))
    x = _pool(relu(norm(w.norm6, _conv(w.conv6, x))), 2, 1)
    x = relu(_conv(w.conv7, x, padding=0))
    assert x.shape[0] == 1
    logits = np.array(_bidirectional(w.second, _bidirectional(w.first, list(x[0]))))
    return logits - np.log(np.sum(np.exp(logits), axis=-1, keepdims=True))


@pytest.mark.slow  # 12 seconds, most of them XLA's compiler
def test_crnn_is_the_papers() -> None:
    model = _shaken(crnn.create(crnn.tiny(dtype=jnp.float32)))
    images = jax.random.normal(jax.random.key(0), (2, 32, 20, 1))
    w = _numpy(nnx.state(model))
    want = np.array([_crnn(w, np.asarray(image, np.float64)) for image in images])
    assert want.shape == (2, 20 // 4 - 1, 5)
    _close(nnx.jit(model)(images), want)


# DeepFM


def _deepfm(w: Any, config: deepfm.DeepFmConfig, ids: Array, values: Array) -> float:
    """One example, pair by pair."""
    rows = [i * config.vocabulary + int(v) for i, v in enumerate(ids)]
    rows += [config.categorical * config.vocabulary + i for i in range(config.dense)]
    x = np.concatenate([np.ones(config.categorical), values])
    y = sum(w.weights.embedding[row, 0] * v for row, v in zip(rows, x, strict=True))
    embedded = [w.factors.embedding[row] * v for row, v in zip(rows, x, strict=True)]
    for i in range(len(rows)):
        for j in range(i):
            y += embedded[i] @ embedded[j]
    deep = np.concatenate(embedded)
    for layer in w.layers[:-1]:
        deep = relu(dense(layer, deep))
    return float(sigmoid(y + dense(w.layers[-1], deep)[0]))


def test_deepfm_is_the_papers() -> None:
    config = deepfm.tiny(dtype=jnp.float32)
    model = _shaken(deepfm.create(config))
    ids = jax.random.randint(jax.random.key(0), (4, config.categorical), 0, config.vocabulary)
    values = jax.random.normal(jax.random.key(1), (4, config.dense))
    w = _numpy(nnx.state(model))
    want = np.array([_deepfm(w, config, np.asarray(i), np.asarray(v))
                     for i, v in zip(ids, values, strict=True)])
    _close(nnx.jit(model)(ids, values), want)


def test_published_sizes() -> None:
    def parameters(model: Any) -> int:
        return sum(int(np.prod(a.shape)) for a in jax.tree.leaves(nnx.state(model, nnx.Param)))

    crnn_model = nnx.eval_shape(lambda: crnn.create(crnn.base()))
    assert 8.2e6 < parameters(crnn_model) < 8.4e6  # the paper: 8.3M
    dien_model = nnx.eval_shape(lambda: dien.create(dien.books()))
    assert dien_model.evolution.state.kernel.shape == (36, 108)
    assert dien_model.first.kernel.shape == (18 + 4 * 36, 200)
    deepfm_model = nnx.eval_shape(lambda: deepfm.create(deepfm.base()))
    assert deepfm_model.layers[0].kernel.shape == (48 * 10, 400)
