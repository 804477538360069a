"""Building transformers' models with random weights, and decode steps over a full static cache.

Imports torch and transformers: import it inside a builder.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from transformers.cache_utils import Cache, EncoderDecoderCache, StaticLayer


def build(cls: Any, config: Any, dtype: torch.dtype, device: str, *,
          attention: str = "sdpa", **more: Any) -> Any:
    """A model with random weights, made on the device in the dtype, in eval mode."""
    with torch.device(device):
        model = cls._from_config(config, dtype=dtype, attn_implementation=attention, **more)
    return model.to(device).eval()


def generator(seed: int, device: str) -> torch.Generator | None:
    """A random generator of the device; None for "meta", where only shapes are of interest."""
    return None if device == "meta" else torch.Generator(device).manual_seed(seed)


def ids(shape: tuple[int, ...], vocabulary: int, device: str) -> Callable[[int], Any]:
    """seed -> one tuple with uniform i64 token ids."""

    def inputs(seed: int) -> tuple[torch.Tensor, ...]:
        return (torch.randint(vocabulary, shape, generator=generator(seed, device),
                              device=device),)

    return inputs


def masked_ids(shape: tuple[int, ...], vocabulary: int, device: str) -> Callable[[int], Any]:
    """seed -> token ids and a mask of ones."""
    make = ids(shape, vocabulary, device)

    def inputs(seed: int) -> tuple[torch.Tensor, ...]:
        tokens, = make(seed)
        return tokens, torch.ones_like(tokens)

    return inputs


class FullLayer(StaticLayer):
    """A layer of transformers' static cache whose write position stays where it is.

    `StaticLayer` counts its own length up by one kernel a layer and call, and would be full after
    the first; here the length is one tensor, shared by all layers, that a real loop would count up
    once per call.
    """

    def __init__(self, shape: tuple[int, ...], position: torch.Tensor | int, dtype: torch.dtype,
                 device: str, seed: int) -> None:
        """``shape``: [B, heads, T, head size]; ``position``: i64[], the length so far, or a number
        for a layer that is only read."""
        super().__init__(shape[2])
        like = torch.empty(1, dtype=dtype, device=device).expand(shape)
        self.lazy_initialization(like, like)
        for k, tensor in enumerate((self.keys, self.values)):
            tensor.normal_(generator=generator(2 * seed + k, device))
        self.cumulative_length: Any = position

    def update(self, key_states: torch.Tensor, value_states: torch.Tensor, *args: Any,
               **kwargs: Any) -> tuple[torch.Tensor, torch.Tensor]:
        """Writes keys and values of one new token at the position, in place."""
        where = self.cumulative_length.view(1)
        self.keys.index_copy_(2, where, key_states)
        self.values.index_copy_(2, where, value_states)
        return self.keys, self.values


class Decode(torch.nn.Module):
    """One decoding step at the last position of a full cache of ``context`` positions."""

    def __init__(self, model: Any, *, batch: int, context: int, layers: int, heads: int, size: int,
                 dtype: torch.dtype, device: str, encoded: int = 0,
                 mask: torch.Tensor | None = None) -> None:
        """``heads``: of keys and values; ``encoded``: positions of an encoder's output that the
        step attends to, for T5; ``mask``: for models that would wait for the device to make their
        own, which a CUDA graph cannot hold."""
        super().__init__()
        self.model = model
        position = torch.tensor(context - 1, device=device)
        torch._dynamo.mark_static_address(position)

        def cache(length: int, position: torch.Tensor | int, seed: int) -> Cache:
            return Cache(layers=[
                FullLayer((batch, heads, length, size), position, dtype, device, seed + k)
                for k in range(layers)])

        self.extra: dict[str, Any] = {}
        if encoded:
            self.cache: Any = EncoderDecoderCache(cache(context, position, 0),
                                                  cache(encoded, encoded, layers))
            hidden = torch.randn(batch, encoded, model.config.d_model, dtype=dtype, device=device,
                                 generator=generator(3, device))
            # Its values are in the cache already; transformers asks for its shape.
            self.extra["encoder_outputs"] = (hidden,)
        else:
            self.cache = cache(context, position, 0)
            self.extra["position_ids"] = torch.full((batch, 1), context - 1, device=device)
        if mask is not None:
            self.extra["attention_mask"] = mask
        for tensor in self.extra.values():  # what stands still need not be copied in each call
            if isinstance(tensor, torch.Tensor):
                torch._dynamo.mark_static_address(tensor)
        self.token = "decoder_input_ids" if encoded else "input_ids"

    def forward(self, token: torch.Tensor, **more: torch.Tensor) -> torch.Tensor:
        """token: i64[B, 1] -> logits [B, 1, vocabulary]; ``more`` goes to the model."""
        return self.model(**{self.token: token}, past_key_values=self.cache, use_cache=True,
                          **self.extra, **more).logits
