"""jaxmono's kernels of the table, compiled ahead on a machine without the GPU.

    python -m benchmarks.prepare --cache_dir=kept --gpu="NVIDIA H200" --workers=2
    python -m benchmarks.run --cache_dir=kept        there, with the same versions of JAX and NVRTC

A kernel's key is its content, the GPU's facts and NVRTC's version: neither JAX's backend nor a
driver is in it, so what is compiled here is found there. Only an untuned kernel is: schedules that
a GPU has measured are in that machine's cache. On a leased GPU the 400 s that the standard table's
kernels take to compile are better spent measuring.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from multiprocessing import get_context
from pathlib import Path

os.environ.setdefault("JAX_PLATFORMS", "cpu")

from absl import app, flags

import jaxmono
from benchmarks import data, select
from benchmarks.select import BadFlag
from examples.cli import flags_parser
from jaxmono import _collect, _config
from jaxmono._build import Job, build
from jaxmono._device import Facts, facts_for
from jaxmono.custom_call import cache

_MODELS = flags.DEFINE_list("models", ["all"], "As of benchmarks.run.")
_BATCH = flags.DEFINE_list("batch", [], "Default: each workload's own.")
_DTYPE = flags.DEFINE_list("dtype", [], "bf16, f16 or f32. Default: each workload's own.")
_MODES = flags.DEFINE_list("modes", ["monolithic"], "Of jaxmono.jit.")
_TINY = flags.DEFINE_bool("tiny", False, "The small configurations that CI runs.")
_CACHE = flags.DEFINE_string("cache_dir", None, "That benchmarks.run will be given there.",
                             required=True)
_GPU = flags.DEFINE_string("gpu", "NVIDIA H200", "As the driver names it; one with the SMs of the "
                           "cost model's reference, an H200's.")
_WORKERS = flags.DEFINE_integer("workers", 1, "Processes.", lower_bound=1)


def main(arguments: Sequence[str]) -> int:
    """Compiles all; returns 1 if a kernel could not be, 2 for flags that make no sense."""
    try:
        if len(arguments) > 1:
            raise BadFlag(f"{' '.join(arguments[1:])!r} is not understood; flags are --name=value")
        cases = select.cases(_MODELS.value, _BATCH.value, _DTYPE.value, tiny=_TINY.value)
        modes = [mode for _, mode in select.systems((), _MODES.value) if mode is not None]
    except BadFlag as error:
        sys.stderr.write(f"python -m benchmarks.prepare: {error}\n")
        return 2
    os.environ["JAXMONO_CACHE_DIR"] = str((Path(_CACHE.value) / "jaxmono").resolve())
    jobs = [(case.workload.name, case.batch, case.dtype, case.tiny, mode, _GPU.value)
            for case in cases for mode in modes]
    bad = 0
    # Workloads hold functions, which a process cannot be sent: they go by name.
    with ProcessPoolExecutor(_WORKERS.value, mp_context=get_context("spawn")) as pool:
        for told, failed in pool.map(_prepared, jobs):
            bad += failed
            sys.stdout.write(told + "\n")
            sys.stdout.flush()
    return 1 if bad else 0


def gpu_facts(name: str) -> Facts:
    """Those of a GPU that is not here, with as many SMs as the reference."""
    facts = facts_for("cuda", interpret=False)
    return replace(facts, here=True, device=replace(
        facts.device, name=name, shared_bytes=facts.target.shared_bytes,
        keeps_pairs=facts.target.wgmma))


def prepare(case: data.Case, mode: str, facts: Facts) -> tuple[int, int]:
    """Compiles the kernels of a case into the cache.

    Returns:
      How many it has, and how many of them were there.

    Raises:
      JaxmonoError: one cannot be planned or compiled.
    """
    program, arguments = data.abstract(case)
    with _collect.collecting(plan_only=True) as collected:
        jaxmono.jit(program.step, donate_argnums=1, mode=mode).trace(*arguments).lower(
            lowering_platforms=("cuda",))
    jobs = [replace(built.job, facts=facts) for outcome in collected.outcomes
            for built in {b.key: b for b in outcome.built}.values()]
    built = [_built(job) for job in jobs]
    return len(built), sum(built)


def _built(job: Job) -> bool:
    """Whether it was there."""
    config = _config.read()
    done = build(job, config, plan_only=False)
    assert cache.current() is not None
    return done.cached


def _prepared(job: tuple[str, int, str, bool, str, str]) -> tuple[str, bool]:
    """One case in a worker: a line for people, and whether it failed."""
    name, batch, dtype, tiny, mode, gpu = job
    (case,) = select.cases([name], [str(batch)], [dtype], tiny=tiny)
    start = time.perf_counter()
    try:
        kernels, known = prepare(case, mode, gpu_facts(gpu))
    except Exception as error:
        return f"{case.name} {mode}: failed: {error}", True
    seconds = time.perf_counter() - start
    there = f", {known} of them there" if known else ""
    return f"{case.name} {mode}: {kernels} kernels{there}, {seconds:.1f} s", False


if __name__ == "__main__":
    app.run(main, flags_parser=flags_parser("python -m benchmarks.prepare"))
