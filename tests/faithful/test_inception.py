"""Inception-v3 against torchvision."""

from __future__ import annotations

from typing import Any

import images
import jax.numpy as jnp
import pytest
from mapping import TOLERANCE, Source, merged

from examples.models import inception

torch = pytest.importorskip("torch")
torchvision = pytest.importorskip("torchvision")

pytestmark = pytest.mark.faithful

STEM = {"Conv2d_1a_3x3": "stem.0", "Conv2d_2a_3x3": "stem.1", "Conv2d_2b_3x3": "stem.2",
        "Conv2d_3b_1x1": "stem2.0", "Conv2d_4a_3x3": "stem2.1"}
A = {"branch1x1": "one", "branch5x5_1": "five.0", "branch5x5_2": "five.1",
     "branch3x3dbl_1": "double.0", "branch3x3dbl_2": "double.1", "branch3x3dbl_3": "double.2",
     "branch_pool": "pooled"}
B = {"branch3x3": "three", "branch3x3dbl_1": "double.0", "branch3x3dbl_2": "double.1",
     "branch3x3dbl_3": "double.2"}
C = {"branch1x1": "one", "branch7x7_1": "seven.0", "branch7x7_2": "seven.1",
     "branch7x7_3": "seven.2", "branch7x7dbl_1": "double.0", "branch7x7dbl_2": "double.1",
     "branch7x7dbl_3": "double.2", "branch7x7dbl_4": "double.3", "branch7x7dbl_5": "double.4",
     "branch_pool": "pooled"}
D = {"branch3x3_1": "three.0", "branch3x3_2": "three.1", "branch7x7x3_1": "seven.0",
     "branch7x7x3_2": "seven.1", "branch7x7x3_3": "seven.2", "branch7x7x3_4": "seven.3"}
E = {"branch1x1": "one", "branch3x3_1": "three", "branch3x3_2a": "three_fan.0",
     "branch3x3_2b": "three_fan.1", "branch3x3dbl_1": "double.0", "branch3x3dbl_2": "double.1",
     "branch3x3dbl_3a": "double_fan.0", "branch3x3dbl_3b": "double_fan.1", "branch_pool": "pooled"}
BLOCKS = {"Mixed_5b": A, "Mixed_5c": A, "Mixed_5d": A, "Mixed_6a": B, "Mixed_6b": C, "Mixed_6c": C,
          "Mixed_6d": C, "Mixed_6e": C, "Mixed_7a": D, "Mixed_7b": E, "Mixed_7c": E}


def reference() -> Any:
    return torchvision.models.Inception3(aux_logits=False, init_weights=False)


def weights(source: Source) -> dict[str, Any]:
    names = dict(STEM)
    for i, (block, branches) in enumerate(BLOCKS.items()):
        names |= {f"{block}.{theirs}": f"blocks.{i}.{ours}" for theirs, ours in branches.items()}
    parts = [source.dense("fc", "out")]
    for theirs, ours in names.items():
        parts += [source.convolution(f"{theirs}.conv", f"{ours}.conv", bias=False),
                  source.batch_norm(f"{theirs}.bn", f"{ours}.norm")]
    source.assert_empty(ignore=images.IGNORED)
    return merged(*parts)


def test_logits() -> None:
    theirs = images.randomised(reference())
    assert images.error(theirs, lambda: inception.create(inception.inception_v3(dtype=jnp.float32)),
                        weights(Source(theirs)), size=107) <= TOLERANCE


def test_published_size() -> None:
    assert images.agreed_size(reference, lambda: inception.create(inception.inception_v3()),
                              weights) == 23_834_568
