"""Llama against transformers: forward pass, prefill, and decoding with a cache."""

from __future__ import annotations

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from mapping import TOLERANCE, Array, Source, load, merged, randomise, relative_error

from examples.models import llama
from examples.models.cache import grown

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

pytestmark = pytest.mark.faithful

CONFIG = dataclasses.replace(llama.tiny(dtype=jnp.float32), layers=3)


def weights(source: Source) -> dict[str, Array]:
    parts = [source.table("model.embed_tokens", "words"),
             source.norm("model.norm", "norm", bias=False)]
    dense = {"self_attn.q_proj": "attention.query", "self_attn.k_proj": "attention.key",
             "self_attn.v_proj": "attention.value", "self_attn.o_proj": "attention.out",
             "mlp.gate_proj": "gate", "mlp.up_proj": "up", "mlp.down_proj": "down"}
    norms = {"input_layernorm": "attention_norm", "post_attention_layernorm": "norm"}
    for i in range(CONFIG.layers):
        parts += [source.dense(f"model.layers.{i}.{a}", f"layers.{i}.{b}", bias=False)
                  for a, b in dense.items()]
        parts += [source.norm(f"model.layers.{i}.{a}", f"layers.{i}.{b}", bias=False)
                  for a, b in norms.items()]
    source.assert_empty(ignore=("model.rotary_emb.*",))
    return merged(*parts)


def rope(config: llama.LlamaConfig) -> dict[str, Any]:
    theta, scaling = {"rope_theta": config.rope_theta}, config.rope_scaling
    if scaling is None:
        return theta | {"rope_type": "default"}
    return theta | {"rope_type": "llama3", "factor": scaling.factor,
                    "low_freq_factor": scaling.low, "high_freq_factor": scaling.high,
                    "original_max_position_embeddings": scaling.original}


def reference(config: llama.LlamaConfig, **sizes: Any) -> Any:
    return transformers.LlamaConfig(
        vocab_size=config.vocabulary, hidden_size=config.hidden, num_hidden_layers=config.layers,
        num_attention_heads=config.heads, num_key_value_heads=config.key_heads,
        head_dim=config.head_size, intermediate_size=config.intermediate,
        rms_norm_eps=config.norm_eps, rope_parameters=rope(config), tie_word_embeddings=True,
        **sizes)


@pytest.mark.parametrize("attention", [None, "xla"])
@pytest.mark.parametrize("scaling", [CONFIG.rope_scaling, None], ids=["llama3", "plain"])
def test_forward_and_decoding(scaling: llama.RopeScaling | None, attention: str | None) -> None:
    torch.manual_seed(0)
    config = dataclasses.replace(CONFIG, attention=attention, rope_scaling=scaling)
    theirs = transformers.LlamaForCausalLM(reference(
        config, max_position_embeddings=512, initializer_range=0.2)).eval()
    frequencies = {name: tensor.clone() for name, tensor in theirs.named_buffers()}
    randomise(theirs)
    for name, tensor in theirs.named_buffers():    # which are not to have noise
        tensor.copy_(frequencies[name])
    graphdef, state = nnx.split(llama.create(config))
    model = nnx.merge(graphdef, load(state, weights(Source(theirs))))
    tokens = np.random.default_rng(0).integers(0, CONFIG.vocabulary, (3, 100))
    with torch.no_grad():
        wanted = theirs(torch.tensor(tokens)).logits
    step, own = llama.functional(model)
    step = jax.jit(step, donate_argnums=1)
    cache = llama.empty_cache(config, batch=3, length=110)
    with jax.default_matmul_precision("highest"):
        assert relative_error(nnx.jit(llama.Llama.forward)(model, tokens), wanted) <= TOLERANCE
        for i in range(20):
            logits, cache = step(own, cache, tokens[:, i], jnp.int32(i))
            assert relative_error(logits, wanted[:, i]) <= TOLERANCE, i
        logits, cache = nnx.jit(llama.Llama.prefill)(model, tokens[:, :90])
        assert relative_error(logits, wanted[:, 89]) <= TOLERANCE
        cache = grown(cache, 110)
        for i in range(90, 100):
            logits, cache = step(own, cache, tokens[:, i], jnp.int32(i))
            assert relative_error(logits, wanted[:, i]) <= TOLERANCE, i


@pytest.mark.parametrize("config", [CONFIG, llama.llama_3_2_1b()], ids=["tiny", "1b"])
def test_frequencies(config: llama.LlamaConfig) -> None:
    from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

    theirs, factor = ROPE_INIT_FUNCTIONS["llama3"](reference(config), "cpu")
    assert factor == 1
    own = llama.rotary_frequencies(config)
    np.testing.assert_allclose(own, theirs.numpy(), rtol=1e-6)
    plain = llama.rotary_frequencies(dataclasses.replace(config, rope_scaling=None))
    stretch = plain / own     # all three ranges are there
    assert stretch.min() == 1 and np.isclose(stretch.max(), config.rope_scaling.factor)
    assert np.any((stretch > 1.01) & (stretch < 0.99 * config.rope_scaling.factor))
