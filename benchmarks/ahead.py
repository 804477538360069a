"""Kernels compiled ahead, for a GPU that is not here, and the folder that they are kept in."""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Collection, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from typing import TypeAlias

import jaxmono
from benchmarks import data, machine, select
from jaxmono import _collect, _config
from jaxmono._build import Built, build
from jaxmono._device import Facts, facts_for
from jaxmono.custom_call import cache

INDEX, MADE = "kernels.json", "made.json"
"""In the folder: names of cases to the files of their kernels, under it; what they were made of."""

Job: TypeAlias = tuple[str, int, str, bool, str, str]
"""Workload, batch, dtype, tiny, mode, GPU."""


def read(folder: Path) -> dict[str, list[str]]:
    """Files by case; nothing where there is no index."""
    file = folder / INDEX
    return json.loads(file.read_text(encoding="utf-8")) if file.exists() else {}


def write(folder: Path, files: dict[str, list[str]]) -> None:
    """Replaces the index."""
    (folder / INDEX).write_text(json.dumps(files, indent=1), encoding="utf-8")


def prepare_all(jobs: Sequence[Job], folder: Path, *, workers: int = 1,
                without: Collection[str] = ()) -> int:
    """Compiles the kernels of all, and writes the index and `MADE`; returns how many failed."""
    os.environ["JAXMONO_CACHE_DIR"] = str((folder / "jaxmono").resolve())
    folder.mkdir(parents=True, exist_ok=True)
    bad, known = 0, read(folder)
    # Workloads hold functions, which a process cannot be sent: they go by name.
    with ProcessPoolExecutor(workers, mp_context=get_context("spawn")) as pool:
        for name, told, files in pool.map(partial(_prepared, without=frozenset(without)), jobs):
            bad += files is None
            known |= {name: files} if files else {}
            write(folder, known)
            sys.stdout.write(f"{name}: {told}\n")
            sys.stdout.flush()
    (folder / MADE).write_text(json.dumps({"commit": machine.commit_of(None),
                                           "without": sorted(without)}), encoding="utf-8")
    return bad


def made_of(folder: Path) -> str:
    """For people: the commit of a folder's kernels, and what they were made without."""
    file = folder / MADE
    found = json.loads(file.read_text(encoding="utf-8")) if file.exists() else {}
    without = f", without {' and '.join(found['without'])}" if found.get("without") else ""
    return f"commit {found.get('commit') or 'unknown'}{without}"


def gpu_facts(name: str) -> Facts:
    """Those of a GPU that is not here, with as many SMs as the reference."""
    facts = facts_for("cuda", interpret=False)
    return replace(facts, here=True, device=replace(
        facts.device, name=name, shared_bytes=facts.target.shared_bytes,
        wgmma=facts.target.wgmma))


def planned(case: data.Case, mode: str) -> list[Built]:
    """The kernels of a case, planned; equal ones once.

    Raises:
      JaxmonoError: one cannot be planned.
    """
    program, arguments = data.abstract(case)
    with _collect.collecting(plan_only=True) as collected:
        jaxmono.jit(program.step, donate_argnums=1, mode=mode).trace(*arguments).lower(
            lowering_platforms=("cuda",))
    return list({b.key: b for outcome in collected.outcomes for b in outcome.built}.values())


def prepare(case: data.Case, mode: str, facts: Facts,
            without: frozenset[str] = frozenset()) -> list[Built]:
    """Compiles the kernels of a case into the cache, ``without`` some of `jaxmono._build.OPTIONAL`;
    equal ones once.

    Raises:
      JaxmonoError: one cannot be planned or compiled.
    """
    return [build(replace(b.job, facts=facts, without=without), _config.read(), plan_only=False)
            for b in planned(case, mode)]


def _prepared(job: Job, without: frozenset[str]) -> tuple[str, str, list[str] | None]:
    """One case in a worker: its name, a line for people, the kernels' files; None if it failed."""
    workload, batch, dtype, tiny, mode, gpu = job
    (case,) = select.cases([workload], [str(batch)], [dtype], tiny=tiny)
    name, start = f"{case.name} {mode}", time.perf_counter()
    try:
        built = prepare(case, mode, gpu_facts(gpu), without)
    except Exception as error:
        return name, f"failed: {error}", None
    known, kept = sum(b.cached for b in built), cache.current()
    assert kept is not None
    there = f", {known} of them there" if known else ""
    return (name, f"{len(built)} kernels{there}, {time.perf_counter() - start:.1f} s",
            [str(kept.path(b.key).relative_to(kept.directory.parent.parent)) for b in built])
