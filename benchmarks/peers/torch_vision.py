"""Torch peers of the vision transformers: transformers' ViT and CLIP, random weights, SDPA; and of
MLP-Mixer, which neither transformers nor torchvision has."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from benchmarks.peers.peer import Builder, TorchPeer
from examples.models import mixer

if TYPE_CHECKING:
    import torch

_TINY = {"hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4,
         "intermediate_size": 128}
_TINY_IMAGE = {"image_size": 32, "patch_size": 8}


def _images(batch: int, size: int, dtype: torch.dtype, device: str,
            ) -> Callable[[int], tuple[torch.Tensor, ...]]:
    """seed -> one batch of normal pixels, channels_last."""
    import torch

    from benchmarks.peers import hf

    def inputs(seed: int) -> tuple[torch.Tensor, ...]:
        pixels = torch.randn(batch, 3, size, size, generator=hf.generator(seed, device),
                             dtype=dtype, device=device)
        return (pixels.to(memory_format=torch.channels_last),)

    return inputs


def _vit_b16(batch: int, dtype: torch.dtype, device: str, tiny: bool = False) -> TorchPeer:
    """Pixels to the logits of 1000 classes."""
    import torch
    from transformers import ViTConfig, ViTForImageClassification

    from benchmarks.peers import hf

    config = ViTConfig(num_labels=10, **_TINY, **_TINY_IMAGE) if tiny else \
        ViTConfig(num_labels=1000)
    module = hf.build(ViTForImageClassification, config, dtype, device)
    return TorchPeer(module.to(memory_format=torch.channels_last),
                     _images(batch, config.image_size, dtype, device),
                     lambda model, pixels: model(pixels).logits)


_TINY_TEXT = {"vocab_size": 128, "max_position_embeddings": 16, "eos_token_id": 127,
              "bos_token_id": 126, "pad_token_id": 1}


def _texts(batch: int, length: int, vocabulary: int, device: str,
           ) -> Callable[[int], tuple[torch.Tensor, ...]]:
    """seed -> texts of all lengths, each with its end (the highest id) and more of it as padding.
    """
    import torch

    from benchmarks.peers import hf

    def inputs(seed: int) -> tuple[torch.Tensor, ...]:
        draw = {"generator": hf.generator(seed, device), "device": device}
        ids = torch.randint(vocabulary - 1, (batch, length), **draw)
        lengths = torch.randint(1, length, (batch, 1), **draw)
        return (torch.where(torch.arange(length, device=device) < lengths, ids, vocabulary - 1),)

    return inputs


def _clip_image(batch: int, dtype: torch.dtype, device: str, tiny: bool = False) -> TorchPeer:
    """Pixels to the projected embedding, ViT-B/32."""
    import torch
    from transformers import CLIPVisionConfig, CLIPVisionModelWithProjection

    from benchmarks.peers import hf

    config = CLIPVisionConfig(projection_dim=32, **_TINY, **_TINY_IMAGE) if tiny else \
        CLIPVisionConfig()
    module = hf.build(CLIPVisionModelWithProjection, config, dtype, device)
    return TorchPeer(module.to(memory_format=torch.channels_last),
                     _images(batch, config.image_size, dtype, device),
                     lambda model, pixels: model(pixels).image_embeds)


def _clip_text(batch: int, dtype: torch.dtype, device: str, tiny: bool = False) -> TorchPeer:
    """77 token ids to the projected embedding."""
    from transformers import CLIPTextConfig, CLIPTextModelWithProjection

    from benchmarks.peers import hf

    config = CLIPTextConfig(projection_dim=32, **_TINY_TEXT, **_TINY) if tiny else \
        CLIPTextConfig()
    return TorchPeer(hf.build(CLIPTextModelWithProjection, config, dtype, device),
                     _texts(batch, config.max_position_embeddings, config.vocab_size, device),
                     lambda model, ids: model(ids).text_embeds)


def _clip(batch: int, dtype: torch.dtype, device: str, tiny: bool = False) -> TorchPeer:
    """Both towers: as many texts as images to the cosines of all pairs, ViT-B/32."""
    import torch
    from transformers import CLIPConfig, CLIPModel

    from benchmarks.peers import hf

    config = CLIPConfig(text_config={**_TINY_TEXT, **_TINY},
                        vision_config={**_TINY_IMAGE, **_TINY}, projection_dim=32) \
        if tiny else CLIPConfig()
    text = config.text_config
    images = _images(batch, config.vision_config.image_size, dtype, device)
    texts = _texts(batch, text.max_position_embeddings, text.vocab_size, device)

    def call(model: Any, pixels: torch.Tensor, ids: torch.Tensor) -> tuple[torch.Tensor, ...]:
        out = model(input_ids=ids, pixel_values=pixels)
        return out.image_embeds, out.text_embeds, out.logits_per_image

    module = hf.build(CLIPModel, config, dtype, device)
    return TorchPeer(module.to(memory_format=torch.channels_last),
                     lambda seed: (*images(seed), *texts(seed)), call)


def _mixer_module(config: mixer.MixerConfig) -> torch.nn.Module:
    from torch import nn

    def mlp(size: int, inner: int) -> nn.Module:
        return nn.Sequential(nn.Linear(size, inner), nn.GELU(approximate="tanh"),
                             nn.Linear(inner, size))

    class Layer(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.token_norm, self.channel_norm = (
                nn.LayerNorm(config.hidden, eps=config.norm_eps) for _ in range(2))
            self.tokens = mlp(config.patches, config.tokens)
            self.channels = mlp(config.hidden, config.channels)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            x = x + self.tokens(self.token_norm(x).mT).mT
            return x + self.channels(self.channel_norm(x))

    class Mixer(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.stem = nn.Conv2d(3, config.hidden, config.patch, config.patch)
            self.layers = nn.Sequential(*(Layer() for _ in range(config.layers)))
            self.norm = nn.LayerNorm(config.hidden, eps=config.norm_eps)
            self.out = nn.Linear(config.hidden, config.classes)

        def forward(self, pixels: torch.Tensor) -> torch.Tensor:
            x = self.layers(self.stem(pixels).flatten(2).mT)
            return self.out(self.norm(x).mean(1))

    return Mixer()


def _mixer_b16(batch: int, dtype: torch.dtype, device: str, tiny: bool = False) -> TorchPeer:
    """Pixels to the logits of 1000 classes."""
    import torch

    config = mixer.tiny() if tiny else mixer.b16()
    module = _mixer_module(config).eval().to(device, dtype)
    return TorchPeer(module.to(memory_format=torch.channels_last),
                     _images(batch, config.image, dtype, device))


PEERS: dict[str, Builder] = {
    "vit_b16": _vit_b16,
    "mixer_b16": _mixer_b16,
    "clip": _clip,
    "clip_image": _clip_image,
    "clip_text": _clip_text,
}
