"""Fine-tuning of BERT: dropout that a key decides, and a loss that falls."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from examples.models import bert
from examples.models.attention import attend
from examples.models.bert_classifier import create, training

CONFIG = bert.tiny(dtype=jnp.float32)
IDS = np.random.default_rng(0).integers(0, CONFIG.vocabulary, (4, 16))
MASK = np.ones_like(IDS)
LABELS = np.asarray([0, 1, 1, 0])


def test_a_key_decides_what_is_dropped() -> None:
    """On average the result is as without dropout: what is kept is larger instead."""
    graphdef, state = nnx.split(create(CONFIG))

    @jax.jit
    def logits(keys: jax.Array) -> tuple[jax.Array, jax.Array]:
        model = nnx.merge(graphdef, state)
        return model(IDS, MASK), jax.vmap(lambda k: model(IDS, MASK, nnx.Rngs(dropout=k)))(keys)

    keys = jax.random.split(jax.random.key(2), 100)
    plain, many = logits(keys.at[1].set(keys[0]))
    np.testing.assert_array_equal(many[0], many[1])
    assert np.abs(many[0] - many[2]).max() > 1e-3
    np.testing.assert_allclose(many.mean(0), plain, atol=5 * float(many.std(0).max()) / 10)


def test_a_tenth_is_dropped() -> None:
    ones = jnp.ones((100, 1000))
    out = np.asarray(bert.dropped(ones, 0.1, nnx.Rngs(dropout=0)))
    assert set(np.unique(out)) == {0.0, np.float32(1 / 0.9)}
    assert abs((out == 0).mean() - 0.1) < 0.01
    assert bert.dropped(ones, 0.1, None) is ones


@pytest.mark.slow
def test_the_loss_falls() -> None:
    made = training(create(CONFIG), learning_rate=1e-3)
    carry = (made.weights, made.optimiser.init(made.weights))
    step = jax.jit(made.step)
    losses = []
    for i in range(25):
        loss, carry = step(carry, jax.random.key(i), IDS, MASK, LABELS)
        losses.append(float(loss))
    assert np.mean(losses[-5:]) < 0.5 * np.mean(losses[:5])


def test_weights_are_f32_whatever_layers_compute_in() -> None:
    weights = training(create(bert.tiny(dtype=jnp.bfloat16))).weights
    assert {leaf.dtype for leaf in jax.tree.leaves(weights)} == {jnp.dtype(jnp.float32)}


def test_dropout_of_attention_is_for_einsums() -> None:
    q = jnp.ones((1, 4, 4, 8))
    for key, how in ((q, "xla"), (q[:, :, :2], None)):
        with pytest.raises(ValueError, match="attend: dropout is for einsums"):
            attend(q, key, key, scale=1.0, implementation=how, dropout=lambda x: x)
