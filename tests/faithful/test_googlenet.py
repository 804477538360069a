"""GoogLeNet against torchvision."""

from __future__ import annotations

from typing import Any

import images
import jax.numpy as jnp
import pytest
from mapping import TOLERANCE, Source, merged

from examples.models import googlenet

torch = pytest.importorskip("torch")
torchvision = pytest.importorskip("torchvision")

pytestmark = pytest.mark.faithful

BRANCHES = {"branch1": "one", "branch2.0": "three.0", "branch2.1": "three.1", "branch3.0": "five.0",
            "branch3.1": "five.1", "branch4.1": "pooled"}


def reference(classes: int = 1000) -> Any:
    return torchvision.models.GoogLeNet(classes, aux_logits=False, init_weights=False)


def weights(source: Source) -> dict[str, Any]:
    names = {f"conv{i + 1}": f"stem.{i}" for i in range(3)}
    for stage, blocks in enumerate(("ab", "abcde", "ab")):
        for i, letter in enumerate(blocks):
            names |= {f"inception{stage + 3}{letter}.{theirs}": f"stages.{stage}.{i}.{ours}"
                      for theirs, ours in BRANCHES.items()}
    parts = [source.dense("fc", "out")]
    for theirs, ours in names.items():
        parts += [source.convolution(f"{theirs}.conv", f"{ours}.conv", bias=False),
                  source.batch_norm(f"{theirs}.bn", f"{ours}.norm")]
    source.assert_empty(ignore=images.IGNORED)
    return merged(*parts)


# 64: every maximum sees an even size, as at 224; 72: odd ones too.
@pytest.mark.parametrize("size", [64, 72])
def test_logits(size: int) -> None:
    theirs = images.randomised(reference())
    assert images.error(theirs, lambda: googlenet.create(googlenet.googlenet(dtype=jnp.float32)),
                        weights(Source(theirs)), size=size) <= TOLERANCE


def test_published_size() -> None:
    assert images.agreed_size(reference, lambda: googlenet.create(googlenet.googlenet()),
                              weights) == 6_624_904
