"""VGG against torchvision."""

from __future__ import annotations

from typing import Any

import images
import jax.numpy as jnp
import pytest
from mapping import TOLERANCE, Source, merged

from examples.models import vgg

torch = pytest.importorskip("torch")
torchvision = pytest.importorskip("torchvision")

pytestmark = pytest.mark.faithful


def weights(source: Source, config: vgg.VggConfig) -> dict[str, Any]:
    parts, layer = [], 0
    for i, widths in enumerate(config.stages):
        for j in range(len(widths)):
            parts.append(source.convolution(f"features.{layer}", f"stages.{i}.{j}"))
            layer += 2  # a ReLU between
        layer += 1  # the maximum
    first = source.raw("classifier.0.weight")
    # Theirs reads [C, H, W], ours [H, W, C].
    channels = config.stages[-1][-1]
    side = config.image // 2 ** len(config.stages)
    first = first.reshape(-1, channels, side, side).transpose(2, 3, 1, 0)
    parts += [{"dense.0.kernel": first.reshape(-1, first.shape[-1]),
               "dense.0.bias": source.vector("classifier.0.bias")},
              source.dense("classifier.3", "dense.1"), source.dense("classifier.6", "dense.2")]
    source.assert_empty()
    return merged(*parts)


def test_logits() -> None:
    config = vgg.VggConfig(((8, 8), (12,), (16, 16), (16,), (24, 24)), hidden=48, classes=12,
                           dtype=jnp.float32)
    plan: list[Any] = []
    for widths in config.stages:
        plan += [*widths, "M"]
    reference = torchvision.models.VGG(torchvision.models.vgg.make_layers(plan), num_classes=12,
                                       init_weights=False)
    # torchvision has fixed sizes here; the rest of the classifier stays as it made it.
    for i, (a, b) in {0: (24 * 7 * 7, 48), 3: (48, 48), 6: (48, 12)}.items():
        reference.classifier[i] = torch.nn.Linear(a, b)
    reference = images.randomised(reference)
    assert images.error(reference, lambda: vgg.create(config), weights(Source(reference), config),
                        size=config.image) <= TOLERANCE


def test_published_sizes() -> None:
    config = vgg.vgg16()
    count = images.agreed_size(torchvision.models.vgg16, lambda: vgg.create(config),
                               lambda source: weights(source, config))
    assert count == 138_357_544
