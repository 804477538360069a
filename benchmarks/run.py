"""The yardstick: XLA, torch and jaxmono on the models of the zoo, beside each other.

    python -m benchmarks.run                                   the standard table
    python -m benchmarks.run --models=bert_base,opt_decode --batch=1,16,32 --dtype=bf16 \\
        --peers=xla,torch_compile,torch_cudagraph --modes=monolithic,stitch
    python -m benchmarks.run --models=bert_base --profile --cpu_load=0.5,0.7
    python -m benchmarks.run --tiny --interpret                without a GPU: correctness only

Rows are written as soon as they are made; what fails is a row with its reason. README.md of this
folder tells how each figure is measured.
"""

from __future__ import annotations

import gc
import os
import signal
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

# Before JAX starts: torch and fresh processes share the GPU with it.
os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")
# NVRTC keeps what it compiled, too; compile times here are of a compiler that does not.
os.environ.setdefault("CUDA_CACHE_DISABLE", "1")

import jax
from absl import app, flags

from benchmarks import connections, depth, first_result, machine, select, supervise
from benchmarks.begun import Begun
from benchmarks.compile_times import CompileTimes
from benchmarks.data import Case
from benchmarks.measure import Key, Settings
from benchmarks.parts import Run
from benchmarks.results import Folder, default_folder
from benchmarks.select import BadFlag
from benchmarks.throttle import Nvml
from benchmarks.xla_best import Choices
from examples.cli import flags_parser

PARTS = ("time", "depth", "first")

_MODELS = flags.DEFINE_list("models", ["all"], "Names of workloads, families, "
                           "further tables (gemm_table, unaligned_table, exact_table, "
                           "epilogue_table, attention_table, reduce_table, quantised_table, "
                           "quantised_models, exact_models, loop_table), or all.")
_BATCH = flags.DEFINE_list("batch", [], "Default: each workload's own.")
_DTYPE = flags.DEFINE_list("dtype", [], "bf16, f16 or f32. Default: each workload's own.")
_PEERS = flags.DEFINE_list("peers", None, "Of xla, torch_compile, torch_cudagraph. Default: all; "
                           "without a GPU xla only.")
_MODES = flags.DEFINE_list("modes", ["monolithic"], "Of jaxmono.jit, e.g. monolithic,stitch.")
_ROUNDS = flags.DEFINE_integer("rounds", 15, "Rounds; medians are over these.", lower_bound=2)
_CALLS = flags.DEFINE_integer("calls", 50, "Calls per round, at most.", lower_bound=1)
_SECONDS = flags.DEFINE_float("seconds_per_row", 1.0, "Sampling time, compiling not included.",
                              lower_bound=0.01)
_OUT = flags.DEFINE_string("out", None, "Folder for the results; an earlier run there is "
                           "replaced. Default: benchmarks/results/<date>-<device>.")
_RESUME = flags.DEFINE_bool("resume", False, "Go on with the run in --out: leave out the cases "
                            "that it has.")
_COMMIT = flags.DEFINE_string("commit", None, "Commit measured, where git cannot tell.")
_TINY = flags.DEFINE_bool("tiny", False, "The small configurations that CI runs.")
_INTERPRET = flags.DEFINE_bool("interpret", False, "Without a GPU: jaxmono's kernels in the "
                               "interpreter, for correctness; nothing is timed.")
_PROFILE = flags.DEFINE_bool("profile", False, "Keep each kernel's own time.")
_LOADS = flags.DEFINE_list("cpu_load", [], "Shares of the cores; measures latency again while "
                           "other processes keep them busy.")
_VARIANTS = flags.DEFINE_enum("xla_variants", "all", ["all", "default"], "Search XLA's fastest "
                              "flags and attention, or take the default.")
_CACHE = flags.DEFINE_string("cache_dir", None, "Keeps compiled programs and chosen variants, so "
                             "that the next run is quick; what comes from it has the compile_s "
                             "of the run that compiled it. Default: a temporary folder.")
_WORKERS = flags.DEFINE_integer("workers", 1, "GPUs to spread the cases over, one process and a "
                                "share of the cores each.", lower_bound=1)
_PASSES = flags.DEFINE_integer("passes", 4, "How often XLA and jaxmono are timed at most, in turns "
                               "of all cases; of each system the lowest times count. From the "
                               "third pass on only cases whose lowest times were not seen twice.",
                               lower_bound=1)
_FRESH = flags.DEFINE_bool("fresh", True, "A process for each case of a later pass; else one goes "
                           "on from case to case, and XLA's kernels may start later in some.")
_LIMIT = flags.DEFINE_float("case_limit_s", 300, "A case that takes longer (a kernel hangs) is "
                            "given up and has failed.", lower_bound=1)
_PARTS = flags.DEFINE_list("parts", ["time"], "time: the table; depth: compile time of BERT with "
                           "12 and 24 layers; first: seconds to a first result in fresh "
                           "processes. The last two go to other.jsonl.")
_FIRST = flags.DEFINE_list("first_models", ["bert_base"], "Models of --parts=first.")


def main(arguments: Sequence[str]) -> int:
    """Checks the flags, then measures in a process that may die; returns the exit status: 1 when
    XLA's or jaxmono's side of a case failed or is wrong, 2 for flags that make no sense."""
    try:
        _check(arguments)
        cases = select.cases(_MODELS.value, _BATCH.value, _DTYPE.value, tiny=_TINY.value)
        systems = select.systems(select.PEERS if _PEERS.value is None else _PEERS.value,
                                 _MODES.value)
    except BadFlag as error:
        sys.stderr.write(f"python -m benchmarks.run: {error}\n")
        return 2
    if supervise.number() is None and (_WORKERS.value > 1 or not _INTERPRET.value):
        return _supervise(cases)
    supervise.await_turn()
    connections.take()
    problem = _platform_problem()
    if problem:
        sys.stderr.write(f"python -m benchmarks.run: {problem}\n")
        return 2
    if _PEERS.value is None and _INTERPRET.value:
        systems = select.systems(("xla",), _MODES.value)
    try:
        with tempfile.TemporaryDirectory() as scratch:
            return _run(cases, systems, _caches(Path(_CACHE.value or _scratch() or scratch)))
    except KeyboardInterrupt:
        return 128 + signal.SIGINT


def _supervise(cases: Sequence[Case]) -> int:
    """Measures in other processes, one for each worker; the report is written here."""
    order = [(c.workload.name, c.batch, c.dtype) for c in cases]

    def finish(folder: Path) -> None:
        results = Folder(folder, resume=True)
        results.sort(order)
        _report(results)

    gpus = [""] * _WORKERS.value
    if _WORKERS.value > 1 and not _INTERPRET.value:
        found = machine.gpus()
        if len(found) < _WORKERS.value:
            sys.stderr.write(f"python -m benchmarks.run: --workers={_WORKERS.value} needs as many "
                             f"GPUs, and here {'is' if len(found) == 1 else 'are'} {len(found)}\n")
            return 2
        gpus = found[:_WORKERS.value]
    try:
        return supervise.supervise("benchmarks.run", sys.argv[1:], limit_s=_LIMIT.value, gpus=gpus,
                                   finish=finish, fresh=_fresh())
    except KeyboardInterrupt:
        return 128 + signal.SIGINT


def _fresh() -> bool:
    return _FRESH.value and not _INTERPRET.value and "time" in _PARTS.value


def _report(folder: Folder) -> None:
    missing = folder.report()
    sys.stdout.write(f"written to {folder.path}{f' ({missing})' if missing else ''}\n")


def _scratch() -> Path | None:
    """The caches of a supervised run, for all of its processes: in a later pass, and after a death,
    another one has the case."""
    return None if supervise.number() is None else supervise.shared() / "cache"


def _check(arguments: Sequence[str]) -> None:
    """What selecting cases and systems does not check.

    Raises:
      BadFlag: a flag's value cannot be used.
    """
    if len(arguments) > 1:
        raise BadFlag(f"{' '.join(arguments[1:])!r} is not understood; flags are --name=value")
    unknown = [part for part in _PARTS.value if part not in PARTS]
    if unknown:
        raise BadFlag(f"--parts: {unknown[0]!r} is none of {', '.join(PARTS)}")
    if _RESUME.value and not _OUT.value:
        raise BadFlag("--resume needs --out: the folder of the run to go on with")
    select.shares(_LOADS.value)
    if "first" in _PARTS.value:
        select.workloads(_FIRST.value)


def _platform_problem() -> str:
    """Why this machine cannot do what was asked for, and what to do; or ""."""
    gpu = jax.default_backend() != "cpu"
    if not gpu and not _INTERPRET.value:
        return ("JAX sees no GPU here, so there is nothing to time. On a machine with one, "
                "install jax[cuda13]; for correctness only, add --tiny --interpret")
    if gpu and _INTERPRET.value:
        return ("--interpret is for machines without a GPU, and here is one; leave it out, or set "
                "JAX_PLATFORMS=cpu")
    return ""


def _caches(folder: Path) -> Path:
    """Points JAX and jaxmono to caches in a folder."""
    folder = folder.resolve()
    (folder / "jax").mkdir(parents=True, exist_ok=True)
    os.environ["JAXMONO_CACHE_DIR"] = str(folder / "jaxmono")
    os.environ.setdefault("TORCHINDUCTOR_CACHE_DIR", str(folder / "torch"))
    if jax.default_backend() != "cpu":  # a CPU's executables are quick, and depend on its kind
        jax.config.update("jax_compilation_cache_dir", str(folder / "jax"))
        jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)
        jax.config.update("jax_persistent_cache_min_entry_size_bytes", -1)
    return folder


def _run(cases: Sequence[Case], systems: tuple[Key, ...], cache: Path) -> int:
    """All parts; returns the exit status."""
    nvml, timed = Nvml(), not _INTERPRET.value
    worker, begun = supervise.number() or 0, Begun.earlier()
    fresh = _fresh() and supervise.number() is not None
    if begun is None:
        begun, folder = _begin(cases, nvml, worker)
        begun.keep()
    else:
        folder = Folder(Path(_OUT.value), resume=True)
    header, speed = begun.header, begun.speed
    gc.collect()
    gc.freeze()  # modules stay: no collection need look at them again
    settings = Settings(
        systems, speed, header["commit"], _ROUNDS.value, _CALLS.value, _SECONDS.value,
        profile=_PROFILE.value, cpu_loads=select.shares(_LOADS.value),
        search=_VARIANTS.value == "all", interpret=_INTERPRET.value,
        choices=Choices(cache / "variants.json" if timed else None),
        compiled=CompileTimes(cache / "compiled.json" if timed else None), nvml=nvml)
    try:
        bad = 0
        if "time" in _PARTS.value:
            run = Run(folder, settings, resume=_RESUME.value, workers=_WORKERS.value,
                      limit_s=_LIMIT.value, passes=_PASSES.value, fresh=fresh)
            bad = run.measure(cases)
        bad += 0 if worker else _others(folder)
        if speed is not None:
            header |= {**_dispatch("after"), "clocks_after": nvml.clocks() or None}
            folder.header({f"worker_{worker}": header} if worker else header)
    finally:  # what there is, if this was cut short
        if supervise.number() is None:
            _report(folder)
    return 1 if bad else 0


def _begin(cases: Sequence[Case], nvml: Nvml, worker: int) -> tuple[Begun, Folder]:
    """The folder of the results with its header."""
    given = [a for a in sys.argv[1:] if not a.startswith(("--commit", "--out", "--resume"))]
    header = machine.header(machine.commit_of(_COMMIT.value), given, nvml)
    if worker:
        folder = Folder(supervise.folder_opened(), resume=True)
        header = {"commit": header["commit"], "clocks_before": header["clocks_before"]}
    else:
        folder = Folder(Path(_OUT.value) if _OUT.value else default_folder(header),
                        resume=_RESUME.value)
        supervise.opened(folder.path)
        header["workers"] = _WORKERS.value
        header["connections"] = connections.told(alternate=_fresh() and _PASSES.value > 1)
    speed = None
    if not _INTERPRET.value and "time" in _PARTS.value:
        speed = machine.speed([case.dtype for case in cases])
        header |= {"read_gb_per_s": round(speed.read_bytes_per_s / 1e9), "tflop_per_s": {
            name: round(rate / 1e12, 1) for name, rate in speed.flops_per_s.items()}}
        header |= _dispatch("before")
        if not worker:
            header["passes"] = _PASSES.value
    if _INTERPRET.value and not worker:
        header["note"] = "run on the CPU for correctness only: nothing is timed"
        sys.stdout.write("No GPU: jaxmono runs in the interpreter, for correctness only; nothing "
                         "is timed.\n")
    folder.header({f"worker_{worker}": header} if worker else header)
    return Begun(header, speed), folder


def _dispatch(when: str) -> dict[str, Any]:
    """The host's time per call of a trivial program, before and after the run."""
    return {f"dispatch_us_{when}": {f"{n} arguments": round(machine.dispatch_us(n), 1)
                                    for n in (1, 200)}}


def _others(folder: Folder) -> int:
    """--parts=depth,first; returns how many failed."""
    rows: list[Any] = []
    if "depth" in _PARTS.value:
        rows.append(depth.rows(tiny=_TINY.value, interpret=_INTERPRET.value))
    if "first" in _PARTS.value:
        rows += [first_result.rows(w.name, tiny=_TINY.value, interpret=_INTERPRET.value)
                 for w in select.workloads(_FIRST.value)]
    bad = 0
    for part in rows:
        for row in part:
            if _INTERPRET.value:
                row = {k: None if k in ("seconds", "trace_s", "compile_s") else v
                       for k, v in row.items()}
            folder.add_other(row)
            bad += "failed" in row
            sys.stdout.write("  ".join(f"{k}={v}" for k, v in row.items()) + "\n")
            sys.stdout.flush()
    return bad


if __name__ == "__main__":
    app.run(main, flags_parser=flags_parser("python -m benchmarks.run"))
