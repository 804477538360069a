"""BERT against transformers."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from mapping import TOLERANCE, Source, load, merged, randomise, relative_error

from examples.models import bert

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

pytestmark = pytest.mark.faithful

CONFIG = bert.BertConfig(vocabulary=128, hidden=64, layers=3, heads=4, intermediate=128,
                         positions=48, dtype=jnp.float32)


def weights(source: Source) -> dict[str, np.ndarray]:
    parts = [source.dense("pooler.dense", "pooler"),
             source.norm("embeddings.LayerNorm", "encoder.embeddings.norm")]
    for theirs, ours in {"word": "words", "position": "positions",
                         "token_type": "token_types"}.items():
        parts.append(source.table(f"embeddings.{theirs}_embeddings", f"encoder.embeddings.{ours}"))
    for i in range(CONFIG.layers):
        theirs, ours = f"encoder.layer.{i}", f"encoder.layers.{i}"
        for part in ("query", "key", "value"):
            parts.append(source.dense(f"{theirs}.attention.self.{part}",
                                      f"{ours}.attention.{part}"))
        parts += [
            source.dense(f"{theirs}.attention.output.dense", f"{ours}.attention.out"),
            source.norm(f"{theirs}.attention.output.LayerNorm", f"{ours}.attention_norm"),
            source.dense(f"{theirs}.intermediate.dense", f"{ours}.up"),
            source.dense(f"{theirs}.output.dense", f"{ours}.down"),
            source.norm(f"{theirs}.output.LayerNorm", f"{ours}.norm"),
        ]
    source.assert_empty(ignore=("embeddings.position_ids", "embeddings.token_type_ids"))
    return merged(*parts)


@pytest.mark.parametrize("attention", [None, "xla"])
def test_states_and_pooler_output(attention: str | None) -> None:
    # Wider than the usual 0.02: narrow layers shall add as much to the residual as real ones.
    torch.manual_seed(0)
    reference = randomise(transformers.BertModel(transformers.BertConfig(
        vocab_size=CONFIG.vocabulary, hidden_size=CONFIG.hidden, hidden_act="gelu",
        num_hidden_layers=CONFIG.layers, num_attention_heads=CONFIG.heads,
        intermediate_size=CONFIG.intermediate, max_position_embeddings=CONFIG.positions,
        type_vocab_size=2, layer_norm_eps=1e-12, initializer_range=0.15)).eval())
    config = bert.BertConfig(**{**vars(CONFIG), "attention": attention})
    graphdef, state = nnx.split(bert.create(config))
    model = nnx.merge(graphdef, load(state, weights(Source(reference))))

    rng = np.random.default_rng(0)
    ids = rng.integers(0, CONFIG.vocabulary, (3, 40))
    types = rng.integers(0, 2, ids.shape)
    mask = np.arange(40) < np.array([[40], [23], [1]])
    with torch.no_grad():
        theirs = reference(torch.tensor(ids), torch.tensor(mask).long(), torch.tensor(types))
    with jax.default_matmul_precision("highest"):
        states = nnx.jit(model.encoder)(ids, mask, types)
        pooled = nnx.jit(model)(ids, mask, types)
    # States of padding are nobody's concern; they agree all the same.
    assert relative_error(states[mask], theirs.last_hidden_state[torch.tensor(mask)]) <= TOLERANCE
    assert relative_error(pooled, theirs.pooler_output) <= TOLERANCE


def test_published_sizes() -> None:
    for config, parameters in ((bert.base(), 109_482_240), (bert.large(), 335_141_888)):
        shapes = nnx.eval_shape(lambda config=config: bert.create(config))
        assert sum(x.size for x in jax.tree.leaves(nnx.state(shapes))) == parameters
