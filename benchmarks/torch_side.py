"""The torch sides of a case: its peer built, compiled or captured, and running."""

from __future__ import annotations

import functools

import jax

from benchmarks.data import Data
from benchmarks.peers import NoPeer, TorchPeer, takes_tiny, torch_peer
from benchmarks.running import Running

SYSTEMS = ("torch_compile", "torch_cudagraph")
_KEPT = "torch peer"
_DTYPES = {"bf16": "bfloat16", "f16": "float16", "f32": "float32"}


def prepare(data: Data, system: str) -> Running:
    """One of SYSTEMS for a case.

    Raises:
      NoPeer: torch is not installed, or has nothing for this workload or size.
      PeerFailed: it cannot be compiled, captured or run.
    """
    case = data.case
    build = torch_peer(case.workload.name)
    if case.tiny and not takes_tiny(build):
        raise NoPeer("this torch peer has no tiny configuration")
    import torch

    from benchmarks.peers import torch_system

    if jax.default_backend() != "cpu" and not torch.cuda.is_available():
        raise NoPeer("torch is installed without CUDA, or sees no GPU; install a CUDA build")
    device = "cuda" if torch.cuda.is_available() else "cpu"
    size = {"tiny": True} if case.tiny else {}
    peer: TorchPeer | None = data.kept.get(_KEPT)
    if peer is None:
        peer = build(case.batch, getattr(torch, _DTYPES[case.dtype]), device, **size)
        peer.inputs = functools.cache(peer.inputs)
    # One module and its inputs do for both systems, unless calls change what both would read:
    # weights under training, and their gradients, which a CUDA graph keeps at fixed addresses.
    if not peer.training:
        data.kept[_KEPT] = peer
    return torch_system.prepare(peer, system, seeds=range(len(data.inputs)))
