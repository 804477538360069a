"""Torch peers of the workloads: `torch_peer("bert_base")(1, torch.bfloat16, "cuda")`.

One file per family, with a dictionary PEERS (name of the workload -> builder) each.
"""

from __future__ import annotations

import importlib
import importlib.util
import inspect

from benchmarks.peers.peer import Builder, NoPeer, PeerFailed, TorchPeer

__all__ = ["FAMILIES", "Builder", "NoPeer", "PeerFailed", "TorchPeer", "all_peers", "takes_tiny",
           "torch_peer"]

FAMILIES = ("torch_transformers", "torch_vision", "torch_speech", "torch_convnets",
            "torch_recurrent", "torch_micro")
"""Files of this folder with a dictionary PEERS each."""


def all_peers() -> dict[str, Builder]:
    """Every peer's builder, by the workload's name; torch is not imported.

    Raises:
      ValueError: two files have a peer of the same name.
    """
    out: dict[str, Builder] = {}
    for family in FAMILIES:
        # Told apart from a package that such a file needs and that is missing.
        if importlib.util.find_spec(f"{__name__}.{family}") is None:
            continue
        for name, builder in importlib.import_module(f"{__name__}.{family}").PEERS.items():
            if name in out:
                raise ValueError(f"two torch peers are named {name!r}")
            out[name] = builder
    return out


def torch_peer(name: str) -> Builder:
    """The builder of a workload's torch peer.

    Raises:
      NoPeer: torch is not installed, or that workload has no peer.
    """
    if importlib.util.find_spec("torch") is None:
        raise NoPeer("torch is not installed; pip install torch transformers torchvision, or "
                     "leave torch out of --peers")
    try:
        peers = all_peers()
    except ModuleNotFoundError as error:
        raise NoPeer(f"the torch peers need the package {error.name}; pip install torch "
                     "transformers torchvision") from error
    if name not in peers:
        raise NoPeer(f"no torch peer is written for {name!r}")
    return peers[name]


def takes_tiny(builder: Builder) -> bool:
    """Whether a builder has a small configuration."""
    return "tiny" in inspect.signature(builder).parameters
