"""OPT against transformers: the forward pass, and decoding with a cache."""

from __future__ import annotations

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from mapping import TOLERANCE, Source, load, merged, randomise, relative_error

from examples.models import opt

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

pytestmark = pytest.mark.faithful

CONFIG = dataclasses.replace(opt.tiny(dtype=jnp.float32), layers=3)
TOKENS = np.random.default_rng(0).integers(0, CONFIG.vocabulary, (3, 24))


def weights(source: Source) -> dict[str, np.ndarray]:
    base = "model.decoder"
    parts = [source.table(f"{base}.embed_tokens", "words"),
             source.table(f"{base}.embed_positions", "positions"),
             source.norm(f"{base}.final_layer_norm", "norm")]
    dense = {"self_attn.q_proj": "attention.query", "self_attn.k_proj": "attention.key",
             "self_attn.v_proj": "attention.value", "self_attn.out_proj": "attention.out",
             "fc1": "up", "fc2": "down"}
    norms = {"self_attn_layer_norm": "attention_norm", "final_layer_norm": "norm"}
    for i in range(CONFIG.layers):
        parts += [source.dense(f"{base}.layers.{i}.{a}", f"layers.{i}.{b}")
                  for a, b in dense.items()]
        parts += [source.norm(f"{base}.layers.{i}.{a}", f"layers.{i}.{b}")
                  for a, b in norms.items()]
    source.assert_empty()
    return merged(*parts)


@pytest.fixture(scope="module")
def reference() -> object:
    torch.manual_seed(0)
    return randomise(transformers.OPTForCausalLM(transformers.OPTConfig(
        vocab_size=CONFIG.vocabulary, hidden_size=CONFIG.hidden, num_hidden_layers=CONFIG.layers,
        ffn_dim=CONFIG.intermediate, num_attention_heads=CONFIG.heads,
        max_position_embeddings=CONFIG.positions, word_embed_proj_dim=CONFIG.hidden,
        activation_function="relu", do_layer_norm_before=True, init_std=0.2)).eval())


@pytest.mark.parametrize("attention", [None, "xla"])
def test_forward_and_decoding(reference: object, attention: str | None) -> None:
    config = dataclasses.replace(CONFIG, attention=attention)
    graphdef, state = nnx.split(opt.create(config))
    model = nnx.merge(graphdef, load(state, weights(Source(reference))))
    with torch.no_grad():
        wanted = reference(torch.tensor(TOKENS)).logits
    step, own = opt.functional(model)
    step = jax.jit(step, donate_argnums=1)
    cache = opt.empty_cache(config, batch=3, length=30)
    with jax.default_matmul_precision("highest"):
        assert relative_error(nnx.jit(opt.Opt.forward)(model, TOKENS), wanted) <= TOLERANCE
        few = nnx.jit(opt.Opt.forward)(model, TOKENS[:, :4])
        assert relative_error(few, wanted[:, :4]) <= TOLERANCE
        for i in range(TOKENS.shape[1]):
            logits, cache = step(own, cache, TOKENS[:, i], jnp.int32(i))
            assert relative_error(logits, wanted[:, i]) <= TOLERANCE, i
