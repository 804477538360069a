"""The programs that are measured, tested and listed in docs/coverage.md, one file per family."""

from __future__ import annotations

import importlib

from benchmarks.workloads.workload import Program, Request, Workload

__all__ = ["FAMILIES", "Program", "Request", "UnknownWorkload", "Workload", "all_workloads", "find"]

FAMILIES = ("bert", "minilm", "t5", "decoders", "vision_transformers", "speech", "convnets",
            "recurrent", "micro")
"""Files of this folder with a tuple WORKLOADS each, in the order of the tables."""


class UnknownWorkload(ValueError):
    """No workload has that name; the message lists those that come near, and all."""


def all_workloads() -> dict[str, Workload]:
    """Every workload by name, in table order."""
    out: dict[str, Workload] = {}
    for family in FAMILIES:
        for workload in importlib.import_module(f"{__name__}.{family}").WORKLOADS:
            if workload.name in out:
                raise ValueError(f"two workloads are named {workload.name!r}")
            out[workload.name] = workload
    return out


def find(name: str) -> Workload:
    """The workload of that name.

    Raises:
      UnknownWorkload: there is none.
    """
    import difflib

    known = all_workloads()
    if name in known:
        return known[name]
    near = difflib.get_close_matches(name, known, n=3)
    hint = f"; did you mean {' or '.join(near)}?" if near else ""
    raise UnknownWorkload(f"unknown model {name!r}{hint} Known: {', '.join(known)}")
