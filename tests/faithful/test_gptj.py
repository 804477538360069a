"""GPT-J against transformers: forward pass, and decoding with a cache."""

from __future__ import annotations

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from mapping import TOLERANCE, Array, Source, load, merged, randomise, relative_error

from examples.models import gptj

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

pytestmark = pytest.mark.faithful

CONFIG = dataclasses.replace(gptj.tiny(dtype=jnp.float32), layers=3)


def weights(source: Source) -> dict[str, Array]:
    parts = [source.table("transformer.wte", "words"), source.norm("transformer.ln_f", "norm"),
             source.dense("lm_head", "head")]
    for i in range(CONFIG.layers):
        theirs, ours = f"transformer.h.{i}", f"layers.{i}"
        parts += [source.dense(f"{theirs}.attn.{a}_proj", f"{ours}.attention.{b}", bias=False)
                  for a, b in {"q": "query", "k": "key", "v": "value", "out": "out"}.items()]
        parts += [source.norm(f"{theirs}.ln_1", f"{ours}.norm"),
                  source.dense(f"{theirs}.mlp.fc_in", f"{ours}.up"),
                  source.dense(f"{theirs}.mlp.fc_out", f"{ours}.down")]
    source.assert_empty(ignore=("*.attn.embed_positions",))
    return merged(*parts)


@pytest.mark.parametrize("attention", [None, "xla"])
def test_forward_and_decoding(attention: str | None) -> None:
    torch.manual_seed(0)
    theirs = randomise(transformers.GPTJForCausalLM(transformers.GPTJConfig(
        vocab_size=CONFIG.vocabulary, n_embd=CONFIG.hidden, n_layer=CONFIG.layers,
        n_head=CONFIG.heads, n_inner=CONFIG.intermediate, rotary_dim=CONFIG.rotary,
        n_positions=64, activation_function="gelu_new", bos_token_id=0, eos_token_id=0,
        initializer_range=0.2)).eval())
    config = dataclasses.replace(CONFIG, attention=attention)
    graphdef, state = nnx.split(gptj.create(config))
    model = nnx.merge(graphdef, load(state, weights(Source(theirs))))
    tokens = np.random.default_rng(0).integers(0, CONFIG.vocabulary, (3, 24))
    with torch.no_grad():
        wanted = theirs(torch.tensor(tokens)).logits
    step, own = gptj.functional(model)
    step = jax.jit(step, donate_argnums=1)
    cache = gptj.empty_cache(config, batch=3, length=30)
    with jax.default_matmul_precision("highest"):
        assert relative_error(nnx.jit(gptj.Gptj.forward)(model, tokens), wanted) <= TOLERANCE
        for i in range(tokens.shape[1]):
            logits, cache = step(own, cache, tokens[:, i], jnp.int32(i))
            assert relative_error(logits, wanted[:, i]) <= TOLERANCE, i
