"""RepVGG-A0 in deploy form against timm's, trained form and reparametrised."""

from __future__ import annotations

from typing import Any

import images
import jax.numpy as jnp
import pytest
from mapping import TOLERANCE, Source, merged

from examples.models import repvgg

torch = pytest.importorskip("torch")
timm = pytest.importorskip("timm")

pytestmark = pytest.mark.faithful

CONFIG = repvgg.repvgg_a0(dtype=jnp.float32)


def reference() -> Any:
    return timm.create_model("repvgg_a0", pretrained=False)


def names() -> list[str]:
    """timm's blocks in the order of ours."""
    return ["stem", *(f"stages.{i}.{j}" for i, n in enumerate(CONFIG.blocks) for j in range(n))]


def fused(source: Source) -> dict[str, Any]:
    """The weights of the training form, each block through `repvgg.fuse`."""
    def norm(name: str) -> repvgg.Norm:
        return repvgg.Norm(*(jnp.asarray(source.vector(f"{name}.{part}")) for part in (
            "weight", "bias", "running_mean", "running_var")))

    parts = [source.dense("head.fc", "out")]
    for i, name in enumerate(names()):
        first = i == 0 or name.endswith(".0")  # other channels out than in, or stride 2
        kernel, bias = repvgg.fuse(repvgg.TrainingBlock(
            jnp.asarray(source.conv(f"{name}.conv_kxk.conv.weight")), norm(f"{name}.conv_kxk.bn"),
            jnp.asarray(source.conv(f"{name}.conv_1x1.conv.weight")), norm(f"{name}.conv_1x1.bn"),
            None if first else norm(f"{name}.identity")))
        parts.append({f"blocks.{i}.square.kernel": kernel, f"blocks.{i}.square.bias": bias})
    source.assert_empty(ignore=images.IGNORED)
    return merged(*parts)


def deployed(source: Source) -> dict[str, Any]:
    """The weights after timm's own reparametrisation."""
    parts = [source.dense("head.fc", "out")]
    for i, name in enumerate(names()):
        parts.append(source.convolution(f"{name}.reparam_conv", f"blocks.{i}.square"))
    source.assert_empty(ignore=images.IGNORED)
    return merged(*parts)


def test_logits_of_the_training_form() -> None:
    theirs = images.randomised(reference())
    assert images.error(theirs, lambda: repvgg.create(CONFIG), fused(Source(theirs)),
                        size=64) <= TOLERANCE


def test_logits_after_timms_reparametrisation() -> None:
    theirs = timm.utils.model.reparameterize_model(images.randomised(reference()))
    assert images.error(theirs, lambda: repvgg.create(CONFIG), deployed(Source(theirs)),
                        size=64) <= TOLERANCE


def test_published_size() -> None:
    def theirs() -> Any:
        return timm.utils.model.reparameterize_model(reference())

    assert images.agreed_size(theirs, lambda: repvgg.create(CONFIG), deployed) == 8_309_384
