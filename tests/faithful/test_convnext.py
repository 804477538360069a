"""ConvNeXt against torchvision."""

from __future__ import annotations

from typing import Any

import images
import jax.numpy as jnp
import pytest
from mapping import TOLERANCE, Source, merged

from examples.models import convnext

torch = pytest.importorskip("torch")
torchvision = pytest.importorskip("torchvision")

pytestmark = pytest.mark.faithful


def weights(source: Source, config: convnext.ConvNeXtConfig) -> dict[str, Any]:
    parts = [source.convolution("features.0.0", "stem"), source.norm("features.0.1", "stem_norm"),
             source.norm("classifier.0", "norm"), source.dense("classifier.2", "out")]
    for stage, count in enumerate(config.blocks):
        if stage:
            theirs, ours = f"features.{2 * stage}", f"stages.{stage}.0"
            parts += [source.norm(f"{theirs}.0", f"{ours}.norm"),
                      source.convolution(f"{theirs}.1", f"{ours}.conv")]
        for block in range(count):
            theirs = f"features.{2 * stage + 1}.{block}"
            ours = f"stages.{stage}.{block + (stage > 0)}"
            parts += [source.convolution(f"{theirs}.block.0", f"{ours}.depthwise"),
                      source.norm(f"{theirs}.block.2", f"{ours}.norm"),
                      source.dense(f"{theirs}.block.3", f"{ours}.up"),
                      source.dense(f"{theirs}.block.5", f"{ours}.down"),
                      {f"{ours}.scale": source.raw(f"{theirs}.layer_scale").reshape(-1)}]
    source.assert_empty()
    return merged(*parts)


# 64: every stride divides its image; 74: what is left at an edge is dropped. The tanh
# approximation of GELU would be off by 1e-4, hence the smaller bar.
@pytest.mark.parametrize("size", [64, 74])
def test_logits(size: int) -> None:
    config = convnext.ConvNeXtConfig((2, 1, 1), (16, 24, 32), classes=12, dtype=jnp.float32)
    kind = torchvision.models.convnext.CNBlockConfig
    reference = images.randomised(torchvision.models.ConvNeXt(
        [kind(16, 24, 2), kind(24, 32, 1), kind(32, None, 1)], num_classes=12))
    assert images.error(reference, lambda: convnext.create(config),
                        weights(Source(reference), config), size=size) <= TOLERANCE / 10


def test_published_size() -> None:
    config = convnext.convnext_tiny()
    count = images.agreed_size(torchvision.models.convnext_tiny, lambda: convnext.create(config),
                               lambda source: weights(source, config))
    assert count == 28_589_128
