"""The programs that are measured, tested and listed in docs/coverage.md, one file per family."""

from __future__ import annotations

import importlib
from collections.abc import Sequence

from benchmarks.workloads.workload import Program, Request, Workload

__all__ = ["FAMILIES", "Program", "Request", "UnknownWorkload", "Workload", "all_workloads", "find",
           "further_tables"]

FAMILIES = ("bert", "minilm", "t5", "decoders", "vision_transformers", "speech", "convnets",
            "diffusion", "recurrent", "micro")
"""Files of this folder with a tuple WORKLOADS each, in the order of the tables."""


class UnknownWorkload(ValueError):
    """No workload has that name; the message lists those that come near, and all."""


FURTHER = ("kernels", "exact", "quantised", "reduces", "depthwise", "loops", "nested", "solvers",
           "recurrences", "control", "random_bits", "scatters", "gates", "streams", "training",
           "mixed", "stock_vision", "stock_sequences", "stock_small", "science", "graphs",
           "everyday", "functions", "rows", "complex_numbers", "transforms", "recent")
"""Files whose workloads are measured only where they are asked for."""


def all_workloads() -> dict[str, Workload]:
    """Every workload of the standard table by name, in its order."""
    return _workloads(FAMILIES)


def further_tables() -> dict[str, tuple[Workload, ...]]:
    """The workloads of the other tables, by the table's name."""
    found = _workloads(FURTHER).values()
    return {table: tuple(w for w in found if w.table == table)
            for table in dict.fromkeys(w.table for w in found)}


def _workloads(files: Sequence[str]) -> dict[str, Workload]:
    out: dict[str, Workload] = {}
    for file in files:
        for workload in importlib.import_module(f"{__name__}.{file}").WORKLOADS:
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
    further = {w.name: w for table in further_tables().values() for w in table}
    if name in known or name in further:
        return known.get(name) or further[name]
    near = difflib.get_close_matches(name, known, n=3)
    hint = f"; did you mean {' or '.join(near)}?" if near else ""
    raise UnknownWorkload(f"unknown model {name!r}{hint} Known: {', '.join(known)}")
