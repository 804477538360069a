"""MobileNetV2 against torchvision."""

from __future__ import annotations

from typing import Any

import images
import jax.numpy as jnp
import pytest
from mapping import TOLERANCE, Source, merged

from examples.models import mobilenet

torch = pytest.importorskip("torch")
torchvision = pytest.importorskip("torchvision")

pytestmark = pytest.mark.faithful

SMALL = ((1, 16, 1, 1), (6, 24, 2, 2), (4, 24, 2, 1), (6, 40, 1, 2))


def weights(source: Source, config: mobilenet.MobileNetConfig) -> dict[str, Any]:
    def pair(conv: str, norm: str, ours: str) -> list[dict[str, Any]]:
        return [source.convolution(conv, f"{ours}.conv", bias=False),
                source.batch_norm(norm, f"{ours}.norm")]

    parts, i = [*pair("features.0.0", "features.0.1", "stem"),
                source.dense("classifier.1", "out")], 0
    for expansion, _, count, _ in config.stages:
        for _ in range(count):
            theirs, ours = f"features.{i + 1}.conv", f"blocks.{i}"
            inner = ["depthwise"] if expansion == 1 else ["expand", "depthwise"]
            for k, name in enumerate(inner):
                parts += pair(f"{theirs}.{k}.0", f"{theirs}.{k}.1", f"{ours}.{name}")
            parts += pair(f"{theirs}.{len(inner)}", f"{theirs}.{len(inner) + 1}",
                          f"{ours}.project")
            i += 1
    parts += pair(f"features.{i + 1}.0", f"features.{i + 1}.1", "head")
    source.assert_empty(ignore=images.IGNORED)
    return merged(*parts)


# 64: every stride sees an even size; 75: odd ones too.
@pytest.mark.parametrize("size", [64, 75])
def test_logits(size: int) -> None:
    reference = images.randomised(torchvision.models.MobileNetV2(
        12, inverted_residual_setting=[list(stage) for stage in SMALL]))
    config = mobilenet.MobileNetConfig(SMALL, classes=12, dtype=jnp.float32)
    assert images.error(reference, lambda: mobilenet.create(config),
                        weights(Source(reference), config), size=size) <= TOLERANCE


def test_published_size() -> None:
    config = mobilenet.mobilenet_v2()
    count = images.agreed_size(torchvision.models.mobilenet_v2, lambda: mobilenet.create(config),
                               lambda source: weights(source, config))
    assert count == 3_504_872
