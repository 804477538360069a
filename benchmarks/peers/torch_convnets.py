"""Torch peers of the convolutional networks: torchvision's, and RepVGG's deploy form."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from benchmarks.peers.peer import Builder, TorchPeer
from examples.models import convnext, repvgg

if TYPE_CHECKING:
    import torch


def _peer(make: Callable[[], torch.nn.Module], size: int, batch: int, dtype: torch.dtype,
          device: str) -> TorchPeer:
    """``make``'s network and batches of normal pixels, channels_last."""
    import torch

    with torch.device(device):
        module = make().to(dtype=dtype, memory_format=torch.channels_last).eval()
    # With torch's own weights the activations shrink from layer to layer until they are next to
    # zero, which costs a GPU less power than real ones.
    for tensor in module.parameters():
        if tensor.ndim > 1:
            torch.nn.init.kaiming_normal_(tensor, nonlinearity="relu")

    def inputs(seed: int) -> tuple[torch.Tensor, ...]:
        pixels = torch.randn(batch, 3, size, size, dtype=dtype, device=device,
                             generator=_generator(seed, device))
        return (pixels.to(memory_format=torch.channels_last),)

    return TorchPeer(module, inputs)


def _generator(seed: int, device: str) -> torch.Generator | None:
    """None for "meta", where only shapes are of interest."""
    import torch

    return None if device == "meta" else torch.Generator(device).manual_seed(seed)


def _resnet(blocks: tuple[int, ...], tiny_blocks: tuple[int, ...], kind: str) -> Builder:
    def build(batch: int, dtype: torch.dtype, device: str, tiny: bool = False) -> TorchPeer:
        from torchvision.models import resnet

        def make() -> torch.nn.Module:
            return resnet.ResNet(getattr(resnet, kind), list(tiny_blocks if tiny else blocks))

        return _peer(make, 32 if tiny else 224, batch, dtype, device)

    return build


def _vgg16(batch: int, dtype: torch.dtype, device: str, tiny: bool = False) -> TorchPeer:
    from torch import nn
    from torchvision.models import vgg

    def make() -> torch.nn.Module:
        if not tiny:
            return vgg.VGG(vgg.make_layers(vgg.cfgs["D"]), init_weights=False)
        module = vgg.VGG(vgg.make_layers([8, "M", 16, "M"]), init_weights=False)
        module.avgpool = nn.AdaptiveAvgPool2d(2)
        module.classifier = nn.Sequential(nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 10))
        return module

    return _peer(make, 16 if tiny else 224, batch, dtype, device)


def _googlenet(batch: int, dtype: torch.dtype, device: str, tiny: bool = False) -> TorchPeer:
    from torchvision.models import GoogLeNet

    return _peer(lambda: GoogLeNet(aux_logits=False, init_weights=False), 32 if tiny else 224,
                 batch, dtype, device)


def _inception_v3(batch: int, dtype: torch.dtype, device: str, tiny: bool = False) -> TorchPeer:
    from torchvision.models import Inception3

    return _peer(lambda: Inception3(aux_logits=False, init_weights=False), 75 if tiny else 299,
                 batch, dtype, device)


def _mobilenet_v2(batch: int, dtype: torch.dtype, device: str, tiny: bool = False) -> TorchPeer:
    from torchvision.models import MobileNetV2

    stages = [[1, 8, 1, 1], [6, 16, 2, 2]] if tiny else None
    return _peer(lambda: MobileNetV2(inverted_residual_setting=stages), 32 if tiny else 224, batch,
                 dtype, device)


def _convnext_t(batch: int, dtype: torch.dtype, device: str, tiny: bool = False) -> TorchPeer:
    from torchvision.models.convnext import CNBlockConfig, ConvNeXt

    config = convnext.tiny() if tiny else convnext.convnext_tiny()
    widths = (*config.widths, None)
    stages = [CNBlockConfig(width, after, count) for width, after, count in zip(
        config.widths, widths[1:], config.blocks, strict=True)]
    return _peer(lambda: ConvNeXt(stages, num_classes=config.classes), config.image, batch, dtype,
                 device)


def _repvgg_module(config: repvgg.RepVggConfig) -> torch.nn.Module:
    from torch import nn

    plan = [(min(64, config.widths[0]), 2)]
    for count, width in zip(config.blocks, config.widths, strict=True):
        plan += [(width, 2 if i == 0 else 1) for i in range(count)]
    layers: list[Any] = []
    n_in = 3
    for i, (n_out, stride) in enumerate(plan):
        layers += [nn.Conv2d(n_in, n_out, 3, stride, padding=1), nn.ReLU()]
        if config.augmented and i < len(plan) - 1:
            layers += [nn.Conv2d(n_out, n_out, 1), nn.ReLU()]
        n_in = n_out
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(),
                         nn.Linear(n_in, config.classes))


def _repvgg(published: repvgg.RepVggConfig, small: repvgg.RepVggConfig) -> Builder:
    def build(batch: int, dtype: torch.dtype, device: str, tiny: bool = False) -> TorchPeer:
        config = small if tiny else published
        return _peer(lambda: _repvgg_module(config), config.image, batch, dtype, device)

    return build


PEERS: dict[str, Builder] = {
    "resnet18": _resnet((2, 2, 2, 2), (1, 1, 1, 1), "BasicBlock"),
    "resnet50": _resnet((3, 4, 6, 3), (1, 1, 1, 1), "Bottleneck"),
    "vgg16": _vgg16,
    "repvgg_a0": _repvgg(repvgg.repvgg_a0(), repvgg.tiny()),
    "repvggaug_a0": _repvgg(repvgg.repvggaug_a0(), repvgg.tiny(augmented=True)),
    "googlenet": _googlenet,
    "inception_v3": _inception_v3,
    "mobilenet_v2": _mobilenet_v2,
    "convnext_t": _convnext_t,
}
