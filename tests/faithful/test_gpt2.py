"""GPT-2 against transformers: forward pass, decoding with a cache, beam search."""

from __future__ import annotations

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from mapping import TOLERANCE, Array, Source, load, merged, randomise, relative_error

from examples.models import gpt2

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

pytestmark = pytest.mark.faithful

CONFIG = dataclasses.replace(gpt2.tiny(dtype=jnp.float32), layers=3)


def weights(source: Source) -> dict[str, Array]:
    def conv1d(theirs: str, ours: str) -> dict[str, Array]:
        # transformers' Conv1D keeps its weight as [in, out], as Flax does.
        return {f"{ours}.kernel": source.raw(f"{theirs}.weight"),
                f"{ours}.bias": source.vector(f"{theirs}.bias")}

    parts = [source.table("transformer.wte", "words"),
             source.table("transformer.wpe", "positions"),
             source.norm("transformer.ln_f", "norm")]
    for i in range(CONFIG.layers):
        theirs, ours = f"transformer.h.{i}", f"layers.{i}"
        parts += [source.norm(f"{theirs}.ln_1", f"{ours}.attention_norm"),
                  source.norm(f"{theirs}.ln_2", f"{ours}.norm"),
                  conv1d(f"{theirs}.attn.c_attn", f"{ours}.attention.qkv"),
                  conv1d(f"{theirs}.attn.c_proj", f"{ours}.attention.out"),
                  conv1d(f"{theirs}.mlp.c_fc", f"{ours}.up"),
                  conv1d(f"{theirs}.mlp.c_proj", f"{ours}.down")]
    source.assert_empty()
    return merged(*parts)


def reference(seed: int) -> Any:
    torch.manual_seed(seed)
    return randomise(transformers.GPT2LMHeadModel(transformers.GPT2Config(
        vocab_size=CONFIG.vocabulary, n_embd=CONFIG.hidden, n_layer=CONFIG.layers,
        n_head=CONFIG.heads, n_inner=CONFIG.intermediate, n_positions=CONFIG.positions,
        activation_function="gelu_new", bos_token_id=CONFIG.end, eos_token_id=CONFIG.end,
        pad_token_id=CONFIG.end, initializer_range=0.2)).eval(), seed)


def ours(theirs: Any, **changes: Any) -> gpt2.Gpt2:
    graphdef, state = nnx.split(gpt2.create(dataclasses.replace(CONFIG, **changes)))
    return nnx.merge(graphdef, load(state, weights(Source(theirs))))


@pytest.mark.parametrize("attention", [None, "xla"])
def test_forward_and_decoding(attention: str | None) -> None:
    theirs = reference(0)
    model = ours(theirs, attention=attention)
    tokens = np.random.default_rng(0).integers(0, CONFIG.vocabulary, (3, 24))
    with torch.no_grad():
        wanted = theirs(torch.tensor(tokens)).logits
    step, own = gpt2.functional(model)
    step = jax.jit(step, donate_argnums=1)
    cache = gpt2.empty_cache(CONFIG, batch=3, length=30)
    with jax.default_matmul_precision("highest"):
        assert relative_error(nnx.jit(gpt2.Gpt2.forward)(model, tokens), wanted) <= TOLERANCE
        for i in range(tokens.shape[1]):
            logits, cache = step(own, cache, tokens[:, i], jnp.int32(i))
            assert relative_error(logits, wanted[:, i]) <= TOLERANCE, i


@pytest.mark.parametrize(("seed", "penalty"), [(0, 1.0), (1, 1.0), (2, 0.0), (3, 2.5)])
def test_beam_search_finds_the_same_tokens(seed: int, penalty: float) -> None:
    """Prompts side by side, of which some come to their end early; and their scores."""
    theirs = reference(seed)
    with torch.no_grad():     # an end that is probable everywhere, but seldom the best
        bias = theirs.transformer.ln_f.bias
        theirs.transformer.wte.weight[CONFIG.end] += 2.5 * bias / bias.dot(bias)
    generate = nnx.jit(gpt2.Gpt2.generate, static_argnames=("new_tokens", "length_penalty"))
    model, rng = ours(theirs), np.random.default_rng(seed)
    lengths = []
    for prompted, new in ((1, 6), (16, 20)):
        prompts = rng.integers(0, CONFIG.end, (6, prompted))
        out = theirs.generate(
            torch.tensor(prompts), attention_mask=torch.ones(prompts.shape).long(), num_beams=5,
            do_sample=False, max_new_tokens=new, length_penalty=penalty, output_scores=True,
            return_dict_in_generate=True)
        wanted = np.full((6, prompted + new), CONFIG.end)
        wanted[:, :out.sequences.shape[1]] = out.sequences.numpy()
        with jax.default_matmul_precision("highest"):
            tokens, scores = generate(model, prompts, new_tokens=new, length_penalty=penalty)
        np.testing.assert_array_equal(tokens, wanted)
        np.testing.assert_allclose(scores, out.sequences_scores.numpy(), rtol=1e-4)
        lengths += (wanted[:, prompted:] != CONFIG.end).sum(1).tolist()
    assert len(set(lengths)) > 3     # else the end was never, or always, the best
