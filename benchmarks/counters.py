"""Hardware counters of XLA's and jaxmono's kernels, side by side: Nsight Compute on any workload.

    python -m benchmarks.prepare --cache_dir=/tmp/kept --models=dot_2048_768_3072    here
    python -m benchmarks.counters /tmp/kept --models=dot_2048_768_3072               on the GPU

Each case runs once through XLA (products by cuBLASLt: Triton off, and command buffers, which hide
kernels) and once through jaxmono, under ``ncu``, which launches each kernel about 40 times: name a
few cases, not a table of 66. Clocks are not locked and caches are warm: what kernels take is
measured by `benchmarks.beside` and `benchmarks.run`. Kernels that the folder lacks are compiled.

``--out`` gets ``counters.txt`` (the table that is printed), ``counters.csv`` (all that was read,
some 2000 columns), ``counters.ncu-rep`` (for ncu's own viewer), and the logs of both runs: without
ncu, which fills the caches, and with it.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from absl import app, flags

from benchmarks import counters_table, machine, select
from benchmarks.data import Case
from benchmarks.select import BadFlag
from examples.cli import flags_parser

_MODELS = flags.DEFINE_list("models", ["dot_2048_768_3072"], "As of benchmarks.run.")
_BATCH = flags.DEFINE_list("batch", [], "Default: each workload's own.")
_DTYPE = flags.DEFINE_list("dtype", [], "bf16, f16 or f32. Default: each workload's own.")
_OUT = flags.DEFINE_string("out", None, "Default: FOLDER/counters.")
_NCU = flags.DEFINE_string("ncu", "ncu", "The program, where it is not on PATH.")
_KERNELS = flags.DEFINE_integer("kernels", 6, "Of a system's kernels the longest so many have a "
                                "column.", lower_bound=1)
_LIMIT = flags.DEFINE_integer("limit", 400, "Seconds for either run.", lower_bound=1)

CHILD = (sys.executable, "-m", "benchmarks.counters_child")
_XLA = ("--xla_gpu_enable_triton_gemm=false --xla_gpu_enable_cublaslt=true "
        "--xla_gpu_enable_command_buffer=")
_NCU_OPTIONS = ("--profile-from-start", "off", "--target-processes", "all", "--clock-control",
                "none", "--cache-control", "none", "--set", "full", "-f")
_ENDED = 124
"""Status of a program that has been ended."""


class Failed(Exception):
    """A program that this one starts is missing or has failed; says what to do."""


def main(arguments: Sequence[str]) -> int:
    """Returns 1 if there is no table or a case failed, 2 for arguments that make no sense."""
    try:
        if len(arguments) != 2:
            raise BadFlag("give one folder, as benchmarks.prepare makes it; flags are --name=value")
        cases = select.cases(_MODELS.value, _BATCH.value, _DTYPE.value)
        ncu = shutil.which(_NCU.value)
        if ncu is None:
            raise BadFlag(f"there is no program {_NCU.value}. It is NVIDIA's Nsight Compute, in "
                          f"bin of CUDA's toolkit, or a package (nsight-compute) of its own: put "
                          f"it on PATH, or name it with --ncu=FILE")
    except BadFlag as error:
        sys.stderr.write(f"python -m benchmarks.counters: {error}\n")
        return 2
    folder = Path(arguments[1]).resolve()
    out = Path(_OUT.value).resolve() if _OUT.value else folder / "counters"
    out.mkdir(parents=True, exist_ok=True)
    sys.stdout.write(f"{len(cases)} cases, into {out}\n")
    sys.stdout.flush()
    try:
        well = count(os.path.abspath(ncu), cases, folder, out)
        text = counters_table.table((out / "counters.csv").read_text(encoding="utf-8"),
                                    (out / "ranges.jsonl").read_text(encoding="utf-8"),
                                    _KERNELS.value)
    except (Failed, ValueError) as error:
        sys.stderr.write(f"python -m benchmarks.counters: {error}\n")
        return 1
    stamp = machine.stamp()
    text = (f"{stamp['date']}; gpu {stamp['gpu']}; driver {stamp['driver']}; commit "
            f"{machine.commit_of(None)}\n{text}")
    (out / "counters.txt").write_text(text, encoding="utf-8")
    sys.stdout.write(text)
    return 0 if well else 1


def count(ncu: str, cases: Sequence[Case], folder: Path, out: Path) -> bool:
    """Fills the folder but for the table; returns whether every case ran.

    Raises:
      Failed: there are no counters.
    """
    environment = _environment(folder)
    child = [*CHILD, str(out / "ranges.jsonl"),
             json.dumps([(case.workload.name, case.batch, case.dtype) for case in cases])]
    # First without ncu: the caches are full then, and what fails is not ncu's fault. 1: a case.
    if (plain := _run(child, environment, out / "plain.log")) not in (0, 1):
        raise Failed(_end_of(out / "plain.log", plain))
    report, metrics = out / "counters.ncu-rep", out / "metrics.txt"
    report.unlink(missing_ok=True)
    _run([ncu, "--query-metrics"], environment, metrics)
    known = counters_table.wanted(metrics.read_text(encoding="utf-8", errors="replace"))
    command = [ncu, *_NCU_OPTIONS, "-o", str(report.with_suffix(""))]
    status = _run([*command, *(["--metrics", known] if known else []), *child], environment,
                  out / "ncu.log")
    if known and not report.exists() and status != _ENDED:  # one of them may not fit this GPU
        status = _run([*command, *child], environment, out / "ncu.log")
    if not report.exists():
        raise Failed(_end_of(out / "ncu.log", status))
    if read := _run([ncu, "--import", str(report), "--page", "raw", "--csv", "--print-units",
                     "base"], environment, out / "counters.csv"):
        raise Failed(_end_of(out / "counters.csv", read))
    return plain == status == 0


def _environment(folder: Path) -> dict[str, str]:
    (folder / "jax").mkdir(parents=True, exist_ok=True)
    return {**os.environ, "XLA_FLAGS": f"{os.environ.get('XLA_FLAGS', '')} {_XLA}".strip(),
            "TF_CPP_MIN_LOG_LEVEL": "2", "JAXMONO_CACHE_DIR": str(folder / "jaxmono"),
            # The library's choice is then that of the run without ncu.
            "JAX_COMPILATION_CACHE_DIR": str(folder / "jax"),
            "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
            # ncu saves and restores what the process has allocated: no pool of 100 GB.
            "XLA_PYTHON_CLIENT_PREALLOCATE": "false"}


def _run(command: Sequence[str], environment: dict[str, str], log: Path) -> int:
    """Exit status; after the limit a program is ended, with those that it has started."""
    with log.open("wb") as file:
        process = subprocess.Popen(
            command, cwd=machine.ROOT, env=environment, stdout=file, start_new_session=True,
            stderr=subprocess.STDOUT if log.suffix == ".log" else None)
        try:
            return process.wait(_LIMIT.value)
        except subprocess.TimeoutExpired:
            sys.stderr.write(f"{command[0]}: ended after --limit={_LIMIT.value} s\n")
            return _ENDED
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()


def _end_of(log: Path, status: int) -> str:
    lines = log.read_text(encoding="utf-8", errors="replace").splitlines()[-12:]
    return "\n  ".join([f"no counters (status {status}); {log} ends with:", *lines])


if __name__ == "__main__":
    app.run(main, flags_parser=flags_parser("python -m benchmarks.counters"))
