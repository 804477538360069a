"""Convolutional networks of torch against ours: random weights, one batch of images, one error."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from mapping import Source, flat_leaves, load, relative_error

IGNORED = ("*.num_batches_tracked",)
"""Buffers of torch's batch norm that inference does not read."""


def randomised(module: Any, seed: int = 0) -> Any:
    """The module in eval mode, f32, with random weights under which every layer still matters.

    Kernels keep the size of the activations (He et al.); scales and variances are in [0.5, 1.5],
    biases and means have a deviation of 0.2, so that no batch norm is the identity.
    """
    import torch

    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, tensor in [*module.named_parameters(), *module.named_buffers()]:
            if not tensor.is_floating_point():
                continue
            if tensor.ndim > 1:
                fan_in = tensor[0].numel()
                tensor.normal_(0, math.sqrt(2 / fan_in), generator=generator)
            elif name.endswith((".weight", ".running_var")):
                tensor.uniform_(0.5, 1.5, generator=generator)
            else:
                tensor.normal_(0, 0.2, generator=generator)
    return module.float().eval()


def error(reference: Any, create: Callable[[], nnx.Module], weights: Mapping[str, Any], *,
          size: int, batch: int = 2) -> float:
    """Relative error of our logits for a batch of random images, under these weights."""
    import torch

    # Initial values of ours are not needed, and take longer than the rest.
    graphdef, state = nnx.split(nnx.eval_shape(create))
    state = load(state, weights)
    images = np.random.default_rng(0).standard_normal((batch, size, size, 3), np.float32)
    with torch.no_grad():
        theirs = reference(torch.from_numpy(images).permute(0, 3, 1, 2))
    # Logits that hardly depend on the image would compare biases only.
    assert float((theirs[0] - theirs[1]).norm()) > 0.02 * float(theirs[0].norm())
    with jax.default_matmul_precision("highest"):
        ours = jax.jit(lambda s, x: nnx.merge(graphdef, s)(x))(state, jnp.asarray(images))
    return relative_error(ours, theirs)


def agreed_size(reference: Callable[[], Any], create: Callable[[], nnx.Module],
                weights: Callable[[Source], Mapping[str, Any]]) -> int:
    """Number of parameters of a published network, whose shapes are asserted to be the same in
    both. Neither side computes or draws anything."""
    import torch

    with torch.device("meta"):
        module = reference()
    module = module.to_empty(device="cpu")
    theirs = {name: np.shape(array) for name, array in weights(Source(module)).items()}
    ours = flat_leaves(nnx.state(nnx.eval_shape(create)))
    assert theirs == {name: leaf.shape for name, leaf in ours.items()}
    return sum(p.numel() for p in module.parameters())
