"""Torch peers of the text transformers: transformers' own models, random weights, SDPA."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from benchmarks.peers.peer import Builder, TorchPeer

if TYPE_CHECKING:
    import torch

_CONTEXT = 128


def _bert(batch: int, dtype: torch.dtype, device: str, tiny: bool = False, *,
          sizes: dict[str, int] | None = None) -> TorchPeer:
    """Token ids and mask of 128 positions to the pooled output."""
    from transformers import BertConfig, BertModel

    from benchmarks.peers import hf

    config = BertConfig(vocab_size=128, hidden_size=64, num_hidden_layers=2, num_attention_heads=4,
                        intermediate_size=128, max_position_embeddings=64) if tiny else \
        BertConfig(**(sizes or {}))
    return TorchPeer(hf.build(BertModel, config, dtype, device),
                     hf.masked_ids((batch, 32 if tiny else 128), config.vocab_size, device),
                     lambda model, ids, mask: model(ids, attention_mask=mask).pooler_output)


def _minilm(batch: int, dtype: torch.dtype, device: str, tiny: bool = False) -> TorchPeer:
    """The workload's own sentences, padded, to the mean of their token states, of length 1.

    As sentence-transformers computes it, with random weights: they do not change the time."""
    import numpy as np
    import torch
    from torch.nn import functional as F
    from transformers import BertConfig, BertModel

    from benchmarks.peers import hf
    from benchmarks.workloads.minilm import tokens

    config = BertConfig(vocab_size=128, hidden_size=64, num_hidden_layers=2, num_attention_heads=4,
                        intermediate_size=128, max_position_embeddings=64) if tiny else \
        BertConfig(hidden_size=384, num_hidden_layers=6, num_attention_heads=12,
                   intermediate_size=1536)
    # Without the pooler, which the embedding does not use.
    model = hf.build(BertModel, config, dtype, device, add_pooling_layer=False)
    ids, mask = (torch.from_numpy(a.astype(np.int64)).to(device)
                 for a in tokens(batch, tiny=tiny))

    def inputs(seed: int) -> tuple[torch.Tensor, ...]:
        return ids.roll(seed, 0), mask.roll(seed, 0)  # the sentences in another order

    def embed(model: Any, ids: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        states = model(ids, attention_mask=mask).last_hidden_state.float()
        weights = mask[:, :, None].float()
        return F.normalize((states * weights).sum(1) / weights.sum(1), dim=-1)

    return TorchPeer(model, inputs, embed)


def _t5_sizes(size: str) -> dict[str, Any]:
    return {
        "tiny": {"vocab_size": 128, "d_model": 64, "d_kv": 16, "d_ff": 128, "num_layers": 2,
                 "num_decoder_layers": 2, "num_heads": 4},
        "small": {"d_model": 512, "d_kv": 64, "d_ff": 2048, "num_layers": 6, "num_heads": 8},
        "base": {"d_model": 768, "d_kv": 64, "d_ff": 3072, "num_layers": 12, "num_heads": 12},
    }[size]


def _t5_encoder(batch: int, dtype: torch.dtype, device: str, tiny: bool = False, *,
                size: str) -> TorchPeer:
    from transformers import T5Config, T5EncoderModel

    from benchmarks.peers import hf

    config = T5Config(**_t5_sizes("tiny" if tiny else size))
    return TorchPeer(hf.build(T5EncoderModel, config, dtype, device),
                     hf.masked_ids((batch, 32 if tiny else 128), config.vocab_size, device),
                     lambda model, ids, mask: model(ids, attention_mask=mask).last_hidden_state)


def _t5_decode(batch: int, dtype: torch.dtype, device: str, tiny: bool = False, *,
               size: str) -> TorchPeer:
    """A token and the encoder's mask; the encoder's keys and values are in the cache."""
    import torch
    from transformers import T5Config, T5ForConditionalGeneration

    from benchmarks.peers import hf

    config = T5Config(**_t5_sizes("tiny" if tiny else size))
    context = 32 if tiny else _CONTEXT
    model = hf.build(T5ForConditionalGeneration, config, dtype, device)
    model.encoder = None  # done before the first step
    step = hf.Decode(model, batch=batch, context=context, layers=config.num_decoder_layers,
                     heads=config.num_heads, size=config.d_kv, dtype=dtype, device=device,
                     encoded=context)
    make = hf.ids((batch, 1), config.vocab_size, device)
    mask = torch.ones(batch, context, dtype=torch.long, device=device)
    return TorchPeer(step, lambda seed: (*make(seed), mask),
                     lambda step, token, mask: step(token, attention_mask=mask))


def _opt_model(dtype: torch.dtype, device: str, tiny: bool) -> Any:
    from transformers import OPTConfig, OPTForCausalLM

    from benchmarks.peers import hf

    config = OPTConfig(vocab_size=128, hidden_size=64, num_hidden_layers=2, ffn_dim=128,
                       num_attention_heads=4, word_embed_proj_dim=64,
                       max_position_embeddings=64) if tiny else OPTConfig()
    return hf.build(OPTForCausalLM, config, dtype, device)


def _gpt2_model(dtype: torch.dtype, device: str, tiny: bool) -> Any:
    from transformers import GPT2Config, GPT2LMHeadModel

    from benchmarks.peers import hf

    config = GPT2Config(vocab_size=128, n_embd=64, n_layer=2, n_head=4, n_positions=64,
                        bos_token_id=0, eos_token_id=1) if tiny else GPT2Config()
    return hf.build(GPT2LMHeadModel, config, dtype, device)


def _gptj_model(dtype: torch.dtype, device: str, tiny: bool) -> Any:
    from transformers import GPTJConfig, GPTJForCausalLM

    from benchmarks.peers import hf

    config = GPTJConfig(vocab_size=128, n_embd=64, n_layer=2, n_head=4, n_positions=64,
                        rotary_dim=8) if tiny else GPTJConfig()
    # transformers has no SDPA for GPT-J.
    return hf.build(GPTJForCausalLM, config, dtype, device, attention="eager")


def _llama_model(dtype: torch.dtype, device: str, tiny: bool) -> Any:
    """The shape of Llama-3.2-1B."""
    from transformers import LlamaConfig, LlamaForCausalLM

    from benchmarks.peers import hf

    config = LlamaConfig(
        vocab_size=128, hidden_size=64, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, intermediate_size=128, max_position_embeddings=64,
        tie_word_embeddings=True) if tiny else LlamaConfig(
        vocab_size=128256, hidden_size=2048, num_hidden_layers=16, num_attention_heads=32,
        num_key_value_heads=8, head_dim=64, intermediate_size=8192, rms_norm_eps=1e-5,
        max_position_embeddings=131072, tie_word_embeddings=True,
        rope_parameters={"rope_type": "llama3", "rope_theta": 500000.0, "factor": 32.0,
                         "low_freq_factor": 1.0, "high_freq_factor": 4.0,
                         "original_max_position_embeddings": 8192})
    return hf.build(LlamaForCausalLM, config, dtype, device)


_MODELS: dict[str, Callable[[Any, str, bool], Any]] = {
    "opt": _opt_model, "gpt2": _gpt2_model, "gptj": _gptj_model, "llama": _llama_model}


def _decode(batch: int, dtype: torch.dtype, device: str, tiny: bool = False, *,
            model: str) -> TorchPeer:
    """One token at the last position of a full static cache to the logits of the next."""
    import torch

    from benchmarks.peers import hf

    lm = _MODELS[model](dtype, device, tiny)
    c, context = lm.config, 32 if tiny else _CONTEXT
    masks = {"opt": lambda: torch.ones(batch, context, dtype=torch.long, device=device),
             "gptj": lambda: torch.zeros(batch, 1, 1, context, dtype=dtype, device=device)}
    step = hf.Decode(lm, batch=batch, context=context,
                     layers=c.num_hidden_layers,
                     heads=getattr(c, "num_key_value_heads", c.num_attention_heads),
                     size=c.hidden_size // c.num_attention_heads, dtype=dtype, device=device,
                     mask=masks[model]() if model in masks else None)
    return TorchPeer(step, hf.ids((batch, 1), c.vocab_size, device))


def _opt_forward(batch: int, dtype: torch.dtype, device: str, tiny: bool = False) -> TorchPeer:
    """Four tokens without a cache, as MonoNN measures OPT, to the logits of all of them."""
    from benchmarks.peers import hf

    lm = _opt_model(dtype, device, tiny)
    return TorchPeer(lm, hf.ids((batch, 4), lm.config.vocab_size, device),
                     lambda lm, ids: lm(ids, use_cache=False).logits)


def _llama_prefill(batch: int, dtype: torch.dtype, device: str, tiny: bool = False) -> TorchPeer:
    """A prompt of 128 tokens to the logits of the last, and the keys and values of all."""

    from benchmarks.peers import hf

    lm = _llama_model(dtype, device, tiny)

    def call(lm: Any, ids: torch.Tensor) -> tuple[torch.Tensor, ...]:
        out = lm(ids, use_cache=True, logits_to_keep=1)
        return out.logits, *(t for layer in out.past_key_values.layers
                             for t in (layer.keys, layer.values))

    return TorchPeer(lm, hf.ids((batch, 32 if tiny else 128), lm.config.vocab_size, device), call)


def _gpt2_beam(batch: int, dtype: torch.dtype, device: str, tiny: bool = False) -> TorchPeer:
    """transformers' generation with 5 beams: a prompt of 16 tokens and at most 32 more."""

    from benchmarks.peers import hf

    lm = _gpt2_model(dtype, device, tiny)
    prompt, new = (4, 8) if tiny else (16, 32)

    def generate(lm: Any, ids: torch.Tensor, mask: torch.Tensor, **more: Any) -> torch.Tensor:
        return lm.generate(ids, attention_mask=mask, max_new_tokens=new, num_beams=5,
                           do_sample=False, early_stopping=False,
                           pad_token_id=lm.config.eos_token_id, **more)

    def compiled(lm: Any, ids: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        # With a static cache, generate() compiles the decoding step by itself on a GPU.
        return generate(lm, ids, mask, cache_implementation="static")

    return TorchPeer(lm, hf.masked_ids((batch, prompt), lm.config.vocab_size, device), generate,
                     no_graph="generate() decides on the host when to stop", compiled=compiled)


def _with(build: Callable[..., TorchPeer], **fixed: Any) -> Builder:
    """The builder with its own arguments bound, and the contract's left."""

    def bound(batch: int, dtype: torch.dtype, device: str, tiny: bool = False) -> TorchPeer:
        return build(batch, dtype, device, tiny, **fixed)

    return bound


_LARGE = {"hidden_size": 1024, "num_hidden_layers": 24, "num_attention_heads": 16,
          "intermediate_size": 4096}

PEERS: dict[str, Builder] = {
    "bert_base": _with(_bert),
    "bert_large": _with(_bert, sizes=_LARGE),
    "minilm": _minilm,
    "minilm_f32": _minilm,
    "t5_small_encoder": _with(_t5_encoder, size="small"),
    "t5_base_encoder": _with(_t5_encoder, size="base"),
    "t5_small_decode": _with(_t5_decode, size="small"),
    "t5_base_decode": _with(_t5_decode, size="base"),
    "opt_125m": _opt_forward,
    "opt_decode": _with(_decode, model="opt"),
    "gpt2_decode": _with(_decode, model="gpt2"),
    "gpt2_beam": _gpt2_beam,
    "gptj_decode": _with(_decode, model="gptj"),
    "llama_prefill": _llama_prefill,
    "llama_decode": _with(_decode, model="llama"),
}
