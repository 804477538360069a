"""Weights of a PyTorch reference as weights of ours, with nothing left over on either side.

    reference = transformers.BertModel(small).eval()
    source = Source(reference)
    weights = {**source.dense("pooler.dense", "pooler"), ...}    # ours -> array
    source.assert_empty(ignore=("embeddings.position_ids",))
    state = load(nnx.state(model), weights)
"""

from __future__ import annotations

import fnmatch
from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np

Array: TypeAlias = np.ndarray[Any, np.dtype[Any]]

TOLERANCE = 1e-4
"""Largest relative error between ours and a reference, both in f32."""


def flat_leaves(state: Any) -> dict[str, Any]:
    """The leaves of an `nnx.State` by dotted path, e.g. ``"encoder.layers.0.up.kernel"``."""
    return {_dotted(path): leaf
            for path, leaf in jax.tree_util.tree_flatten_with_path(state)[0]}


def load(state: Any, mapping: Mapping[str, Any]) -> Any:
    """``state`` with every leaf replaced by ``mapping``'s array of the same dotted path.

    The arrays take the leaves' dtypes. Merge the result with the model's graphdef, or hand it to a
    workload's step.

    Raises:
      AssertionError: a leaf gets no array, an array has no leaf, or a shape differs; lists them.
    """
    wanted = flat_leaves(state)
    missing, unknown = sorted(wanted.keys() - mapping), sorted(mapping.keys() - wanted)
    assert not missing, f"leaves of ours that get no weight: {missing}"
    assert not unknown, f"weights for leaves that ours does not have: {unknown}"
    shapes = [f"{name}: ours {leaf.shape}, given {np.shape(mapping[name])}"
              for name, leaf in wanted.items() if leaf.shape != np.shape(mapping[name])]
    assert not shapes, f"shapes differ: {shapes}"
    return jax.tree_util.tree_map_with_path(
        lambda path, leaf: jnp.asarray(mapping[_dotted(path)], leaf.dtype), state)


def merged(*parts: Mapping[str, Any]) -> dict[str, Any]:
    """One mapping of several; no leaf may be set twice."""
    out: dict[str, Any] = {}
    for part in parts:
        twice = sorted(out.keys() & part)
        assert not twice, f"leaves set twice: {twice}"
        out |= part
    return out


class Source:
    """Parameters and buffers of a `torch.nn.Module`, handed out once each.

    Names are full parameter names ("encoder.layer.0.output.dense.weight"). Names that share one
    tensor (tied weights) count as one: taking any of them takes all.
    """

    def __init__(self, module: Any) -> None:
        named = [*module.named_parameters(remove_duplicate=False),
                 *module.named_buffers(remove_duplicate=False)]
        self._tensors: dict[str, Any] = dict(named)
        self._taken: set[int] = set()

    def raw(self, name: str) -> Array:
        """The tensor as it is.

        Raises:
          AssertionError: there is none of that name, or it was taken before.
        """
        assert name in self._tensors, f"no {name!r} among {sorted(self._tensors)}"
        tensor = self._tensors[name]
        assert id(tensor) not in self._taken, f"{name!r}, or a name tied to it, was taken before"
        self._taken.add(id(tensor))
        return np.array(tensor.detach().cpu().numpy())

    def linear(self, name: str) -> Array:
        """A dense weight [out, in] as a kernel [in, out]."""
        array = self.raw(name)
        assert array.ndim == 2, f"{name!r} has shape {array.shape}, a dense weight has two axes"
        return array.T

    def conv(self, name: str) -> Array:
        """A convolution's weight [out, in, *window] as [*window, in, out] (HWIO, WIO)."""
        array = self.raw(name)
        assert array.ndim >= 3, f"{name!r} has shape {array.shape}, a window has one axis or more"
        return np.moveaxis(array, (0, 1), (-1, -2))

    def vector(self, name: str) -> Array:
        """A bias or a scale."""
        array = self.raw(name)
        assert array.ndim == 1, f"{name!r} has shape {array.shape}, a vector has one axis"
        return array

    def embedding(self, name: str) -> Array:
        """A table [rows, size], as Flax has it."""
        array = self.raw(name)
        assert array.ndim == 2, f"{name!r} has shape {array.shape}, a table has two axes"
        return array

    def dense(self, module: str, ours: str, *, bias: bool = True) -> dict[str, Array]:
        """`torch.nn.Linear` at ``module`` for an `nnx.Linear` at ``ours``."""
        return self._layer(module, ours, "kernel", self.linear, bias)

    def convolution(self, module: str, ours: str, *, bias: bool = True) -> dict[str, Array]:
        """`torch.nn.Conv1d` or `Conv2d` at ``module`` for an `nnx.Conv` at ``ours``."""
        return self._layer(module, ours, "kernel", self.conv, bias)

    def norm(self, module: str, ours: str, *, bias: bool = True) -> dict[str, Array]:
        """LayerNorm, GroupNorm or RMSNorm at ``module`` for the Flax one at ``ours``."""
        return self._layer(module, ours, "scale", self.vector, bias)

    def batch_norm(self, module: str, ours: str) -> dict[str, Array]:
        """`torch.nn.BatchNorm` for `nnx.BatchNorm`; ignore ``*.num_batches_tracked``."""
        return self.norm(module, ours) | {f"{ours}.mean": self.vector(f"{module}.running_mean"),
                                          f"{ours}.var": self.vector(f"{module}.running_var")}

    def table(self, module: str, ours: str) -> dict[str, Array]:
        """`torch.nn.Embedding` at ``module`` for an `nnx.Embed` at ``ours``."""
        return {f"{ours}.embedding": self.embedding(f"{module}.weight")}

    def assert_empty(self, ignore: tuple[str, ...] = ()) -> None:
        """Every tensor has been taken, or is named by a shell pattern in ``ignore``."""
        left = [name for name, tensor in self._tensors.items() if id(tensor) not in self._taken
                and not any(fnmatch.fnmatchcase(name, pattern) for pattern in ignore)]
        assert not left, f"weights of the reference that were not used: {left}"

    def _layer(self, module: str, ours: str, kind: str, take: Callable[[str], Array],
               bias: bool) -> dict[str, Array]:
        out = {f"{ours}.{kind}": take(f"{module}.weight")}
        return out | {f"{ours}.bias": self.vector(f"{module}.bias")} if bias else out


def relative_error(ours: Any, theirs: Any) -> float:
    """Norm of the difference over the norm of the reference; both finite and of one shape."""
    a, b = (np.asarray(x.detach().cpu() if hasattr(x, "detach") else x).astype(np.float64)
            for x in (ours, theirs))
    assert a.shape == b.shape, f"ours has shape {a.shape}, the reference {b.shape}"
    assert np.isfinite(a).all() and np.isfinite(b).all(), "a value is not finite"
    assert np.any(b), "the reference is zero everywhere, which compares nothing"
    return float(np.linalg.norm(a - b) / np.linalg.norm(b))


def randomise(module: Any, seed: int = 0) -> Any:
    """Noise on every 1-D parameter and running statistic, so that biases of 0 and scales of 1 hide
    nothing. Other buffers (rotary frequencies) are constants of the architecture.

    Variances stay positive: one-dimensional values near 1 (scales, variances) become 1 +- 0.1.
    """
    import torch

    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        running = [b for name, b in module.named_buffers() if "running_" in name]
        for tensor in [*module.parameters(), *running]:
            if tensor.is_floating_point() and tensor.ndim == 1:
                tensor.add_(0.1 * torch.randn(tensor.shape, generator=generator).clamp(-3, 3))
    return module


def _dotted(path: tuple[Any, ...]) -> str:
    names = [str(getattr(p, "key", getattr(p, "name", getattr(p, "idx", p)))) for p in path]
    return ".".join(names[:-1] if names and names[-1] == "value" else names)
