"""ResNet against torchvision."""

from __future__ import annotations

from typing import Any

import images
import jax.numpy as jnp
import pytest
from mapping import TOLERANCE, Source, merged

from examples.models import resnet

torch = pytest.importorskip("torch")
torchvision = pytest.importorskip("torchvision")

pytestmark = pytest.mark.faithful

SMALL = [((2, 1, 1, 1), False), ((2, 1, 1, 1), True)]


def weights(source: Source, config: resnet.ResNetConfig) -> dict[str, Any]:
    def pair(conv: str, norm: str, ours: str) -> list[dict[str, Any]]:
        return [source.convolution(conv, f"{ours}.conv", bias=False),
                source.batch_norm(norm, f"{ours}.norm")]

    parts, i = [*pair("conv1", "bn1", "stem"), source.dense("fc", "out")], 0
    for stage, count in enumerate(config.blocks):
        for block in range(count):
            theirs, ours = f"layer{stage + 1}.{block}", f"blocks.{i}"
            for k in range(3 if config.bottleneck else 2):
                parts += pair(f"{theirs}.conv{k + 1}", f"{theirs}.bn{k + 1}", f"{ours}.convs.{k}")
            if block == 0 and (stage or config.bottleneck):
                parts += pair(f"{theirs}.downsample.0", f"{theirs}.downsample.1",
                              f"{ours}.projection")
            i += 1
    source.assert_empty(ignore=images.IGNORED)
    return merged(*parts)


@pytest.mark.parametrize(("blocks", "bottleneck"), SMALL, ids=["basic", "bottleneck"])
def test_logits(blocks: tuple[int, ...], bottleneck: bool) -> None:
    kind = torchvision.models.resnet.Bottleneck if bottleneck else \
        torchvision.models.resnet.BasicBlock
    reference = images.randomised(torchvision.models.ResNet(kind, list(blocks), num_classes=12))
    config = resnet.ResNetConfig(blocks, bottleneck, classes=12, dtype=jnp.float32)
    assert images.error(reference, lambda: resnet.create(config),
                        weights(Source(reference), config), size=72) <= TOLERANCE


@pytest.mark.parametrize("name", ["resnet18", "resnet50"])
def test_published_sizes(name: str) -> None:
    config = getattr(resnet, name)()
    count = images.agreed_size(getattr(torchvision.models, name), lambda: resnet.create(config),
                               lambda source: weights(source, config))
    assert count == {"resnet18": 11_689_512, "resnet50": 25_557_032}[name]
