"""Which cases and systems a run measures, from its flags."""

from __future__ import annotations

from collections.abc import Sequence

from benchmarks.data import Case
from benchmarks.measure import Key
from benchmarks.row import SYSTEMS
from benchmarks.workloads import (
    UnknownWorkload,
    Workload,
    all_workloads,
    find,
    further_tables,
)
from benchmarks.workloads.workload import DTYPES

MODES = ("auto", "monolithic", "layer", "stitch", "elementwise")
PEERS = tuple(system for system in SYSTEMS if system != "jaxmono")


class BadFlag(ValueError):
    """A flag's value cannot be used; says which are accepted."""


def systems(peers: Sequence[str], modes: Sequence[str]) -> tuple[Key, ...]:
    """What is measured beside each other.

    Raises:
      BadFlag: an unknown peer or mode, or none at all.
    """
    for flag, given, known in (("peers", peers, PEERS), ("modes", modes, MODES)):
        for value in given:
            if value not in known:
                raise BadFlag(f"--{flag}: {value!r} is none of {', '.join(known)}")
    keys = [*((peer, None) for peer in dict.fromkeys(peers)),
            *(("jaxmono", mode) for mode in dict.fromkeys(modes))]
    if not keys:
        raise BadFlag("--peers and --modes are both empty: there is nothing to measure")
    return tuple(keys)


def workloads(names: Sequence[str]) -> list[Workload]:
    """By name, by family, by the name of a further table, or all.

    Raises:
      BadFlag: an unknown name.
    """
    known = all_workloads()
    families = dict.fromkeys(w.family for w in known.values())
    tables = further_tables()
    found: dict[str, Workload] = {}
    for name in names:
        if name == "all":
            found |= known
        elif name in families:
            found |= {k: w for k, w in known.items() if w.family == name}
        elif name in tables:
            found |= {w.name: w for w in tables[name]}
        else:
            try:
                found[name] = find(name)
            except UnknownWorkload as error:
                raise BadFlag(f"--models: {error}; or all, one of the families "
                              f"{', '.join(families)}, or one of the tables "
                              f"{', '.join(tables)}") from error
    if not found:
        raise BadFlag("--models is empty; it takes names, families or all")
    return list(found.values())


def cases(names: Sequence[str], batches: Sequence[str], dtypes: Sequence[str], *,
          tiny: bool = False) -> list[Case]:
    """All combinations; by default each workload's own batches (tiny: the first) and dtype.

    Raises:
      BadFlag: an unknown name or dtype, or a batch that is no positive number.
    """
    sizes = []
    for batch in batches:
        if not batch.isdigit() or not int(batch):
            raise BadFlag(f"--batch: {batch!r} is no positive number")
        sizes.append(int(batch))
    for dtype in dtypes:
        if dtype not in DTYPES:
            raise BadFlag(f"--dtype: {dtype!r} is none of {', '.join(DTYPES)}")
    out = []
    for workload in workloads(names):
        own = workload.batches[:1] if tiny else workload.batches
        out += [Case(workload, batch, dtype, tiny) for batch in sizes or own
                for dtype in dtypes or (workload.dtype,)]
    return out


def shares(given: Sequence[str]) -> tuple[float, ...]:
    """Of busy cores.

    Raises:
      BadFlag: one is no number from 0 to 1.
    """
    out = []
    for text in given:
        try:
            share = float(text)
        except ValueError:
            share = -1.0
        if not 0 <= share <= 1:
            raise BadFlag(f"--cpu_load: {text!r} is no share of the cores from 0 to 1")
        out.append(share)
    return tuple(out)
