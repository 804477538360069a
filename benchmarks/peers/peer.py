"""What a torch peer is: the same architecture as a workload, as a torch user would have it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

if TYPE_CHECKING:
    import torch


class NoPeer(RuntimeError):
    """There is no torch peer: none was written for that workload, or torch is not installed."""


class PeerFailed(RuntimeError):
    """A peer could not be built, compiled or run; the message is short enough for a table."""


@dataclass
class TorchPeer:
    """A torch program with its data.

    Attributes:
      module: random weights, in eval mode (unless it trains), on the device, in the dtype;
        channels_last for images.
      inputs: seed -> fresh random inputs of one call, on the device (the first one at least),
        shapes equal for all seeds.
      call: ``call(module, *inputs)``, which is what gets compiled; default ``module(*inputs)``.
        It may write in place into buffers of the module (a cache, weights under training).
      training: the call runs a backward pass, so gradients stay on.
      no_graph: why a call cannot be captured as a CUDA graph (it waits for the device, say), or
        None if it can.
      no_compile: why torch.compile is not tried, or None if it is.
      compiled: ``compiled(module, *inputs)`` with torch.compile at work inside, for calls that
        cannot be compiled from outside.
    """

    module: torch.nn.Module
    inputs: Callable[[int], tuple[torch.Tensor, ...]]
    call: Callable[..., Any] | None = None
    training: bool = False
    no_graph: str | None = None
    no_compile: str | None = None
    compiled: Callable[..., Any] | None = None

    def __call__(self, *inputs: torch.Tensor) -> Any:
        """One eager call."""
        return self.module(*inputs) if self.call is None else self.call(self.module, *inputs)


Builder: TypeAlias = "Callable[..., TorchPeer]"
"""``build(batch: int, dtype: torch.dtype, device: str) -> TorchPeer``; one that also takes
``tiny: bool`` makes a small configuration for tests."""
