"""Every candidate of the problems of some cases: compiled to a folder, timed on a GPU."""

from __future__ import annotations

import json
import math
import shutil
import statistics
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks import ahead
from benchmarks.data import Case
from jaxmono import _tune
from jaxmono._device import Facts
from jaxmono._errors import JaxmonoError
from jaxmono.fusion import make_plan
from jaxmono.tuning.alone import alone
from jaxmono.tuning.compiling import Compiled, CompilePool
from jaxmono.tuning.gpu_worker import Bench, CudaError, MachineError
from jaxmono.tuning.problem import Problem, problems_of, schedule_text
from jaxmono.tuning.profiler import DIFFERENT

INDEX = "problems.json"


def compile_all(cases: Sequence[Case], folder: Path, facts: Facts, *, workers: int) -> None:
    """Fills the folder: cubins, and what `time_all` needs to launch them."""
    folder.mkdir(parents=True, exist_ok=True)
    pool = CompilePool(workers)
    begun: list[tuple[str, Problem, Any, list[tuple[str, Any]]]] = []
    seen: set[str] = set()
    try:
        for case in cases:
            try:
                kernels = ahead.planned(case, "monolithic")
            except JaxmonoError as error:
                sys.stdout.write(f"{case.name}: cannot be planned: {error}\n")
                continue
            for kernel in kernels:
                whole = make_plan(kernel.graph, facts.device, mode=kernel.job.mode,
                                  aliases=kernel.job.aliases)
                for problem in problems_of(whole, _tune.conditions(facts)):
                    if problem.key in seen:
                        continue
                    seen.add(problem.key)
                    plan = alone(problem.sig, problem.siblings)
                    begun.append((case.name, problem, plan, [
                        (schedule_text(s), pool.submit(plan, problem, s))
                        for s in problem.candidates]))
        index = [_kept(name, problem, plan, [(t, p.result(time.monotonic() + 3600))
                                             for t, p in pending], folder, number)
                 for number, (name, problem, plan, pending) in enumerate(begun)]
    finally:
        pool.close()
    (folder / INDEX).write_text(json.dumps(index), encoding="utf-8")


def _kept(case: str, problem: Problem, plan: Any, compiled: Sequence[tuple[str, Compiled | str]],
          folder: Path, number: int) -> dict[str, Any]:
    """One entry of the index; its cubins are copied to the folder."""
    candidates: list[dict[str, Any]] = []
    for rank, (text, kernel) in enumerate(compiled):
        entry: dict[str, Any] = {"schedule": json.loads(text)}
        if isinstance(kernel, str):
            entry["reason"] = kernel
        else:
            file = f"{number}_{rank}.cubin"
            shutil.copyfile(kernel.launch["cubin"], folder / file)
            entry |= {"launch": kernel.launch | {"cubin": file}, "scratch": kernel.scratch_bytes}
        candidates.append(entry)
    sys.stdout.write(f"{case}: {problem}: {len(candidates)} candidates\n")
    sys.stdout.flush()
    return {
        "case": case, "problem": str(problem), "candidates": candidates,
        "inputs": [(v.type.nbytes, v.type.dtype.value) for v in plan.graph.inputs],
        "outputs": [(v.type.nbytes, v.type.dtype.value) for v in plan.graph.outputs],
        "aliases": [(b.index, b.alias) for b in plan.outputs if b.alias is not None]}


def time_all(folder: Path, *, turns: int) -> None:
    """Times every candidate of the folder's index and tells what the choices are worth."""
    bench, quotients = Bench(0), list[float]()
    with (folder / "times.jsonl").open("w", encoding="utf-8") as out:
        for entry in json.loads((folder / INDEX).read_text(encoding="utf-8")):
            try:
                times = time_one(bench, entry, folder, turns)
            except (CudaError, MachineError) as error:
                sys.stdout.write(f"{entry['case']}: {error}\n")
                if not bench.is_well():
                    sys.stdout.write("the GPU's context is lost: what follows has no times\n")
                    break
                continue
            for rank, (us, candidate) in enumerate(zip(times, entry["candidates"], strict=True)):
                out.write(json.dumps({"case": entry["case"], "problem": entry["problem"],
                                      "rank": rank, "us": us,
                                      "schedule": candidate["schedule"]}) + "\n")
            known = [(us, rank) for rank, us in enumerate(times) if us is not None]
            if times[0] is None or not known:
                sys.stdout.write(f"{entry['case']}: the analytic choice has no time\n")
                continue
            best, rank = min(known)
            quotients.append(times[0] / best)
            sys.stdout.write(f"{entry['case']}: {entry['problem']}: analytic {times[0]:.2f} us, "
                             f"best {best:.2f} us ({times[0] / best:.3f}), {len(known)} of "
                             f"{len(times)} timed{_told(entry, rank)}\n")
            sys.stdout.flush()
    if quotients:
        mean = math.exp(statistics.fmean(map(math.log, quotients)))
        sys.stdout.write(f"analytic / best: {mean:.3f}, geometric mean of {len(quotients)}\n")


def time_one(bench: Bench, entry: dict[str, Any], folder: Path, turns: int,
             ) -> list[float | None]:
    """Microseconds a launch of each candidate of a problem; None where it failed or differs."""
    candidates = entry["candidates"]
    bench.problem(entry["inputs"], entry["outputs"], entry["aliases"],
                  max((c.get("scratch", 0) for c in candidates), default=0))
    live: list[int] = []
    for number, c in enumerate(candidates):
        if "launch" not in c:
            continue
        try:
            launch = {**c["launch"], "id": number, "cubin": str(folder / c["launch"]["cubin"])}
            if bench.load(launch)["difference"] <= DIFFERENT:
                live.append(number)
        except (CudaError, MachineError) as error:
            sys.stdout.write(f"{entry['case']}: {c['schedule']}: {error}\n")
    samples: dict[int, list[float]] = {number: [] for number in live}
    for _ in range(turns):
        for number in live:
            samples[number].append(bench.time(number))
    return [statistics.median(samples[n]) if samples.get(n) else None
            for n in range(len(candidates))]


def _told(entry: dict[str, Any], rank: int) -> str:
    if rank == 0:
        return ""
    first, best = (entry["candidates"][n]["schedule"] for n in (0, rank))
    changed = {k: (first.get(k), v) for k, v in best.items() if first.get(k) != v}
    return "; " + ", ".join(f"{k} {a} -> {b}" for k, (a, b) in changed.items())
