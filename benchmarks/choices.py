"""How good the choice of a schedule without measuring is: every candidate of a table, timed.

    python -m benchmarks.choices /tmp/all --models=gemm_table     here: compiles all candidates
    python -m benchmarks.choices /tmp/all --timed                 on the GPU

A line for each group of ops that has something to tune: the time of the analytic choice, of the
fastest candidate, and what that is; the last line is the geometric mean of their quotients.
``times.jsonl`` in the folder has all candidates, for fitting a model anew. The tuner does the same
for one program (`jaxmono.tune`); there the GPU waits for the compiler.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from pathlib import Path

os.environ.setdefault("JAX_PLATFORMS", "cpu")

from absl import app, flags

from benchmarks import ahead, candidates, select
from benchmarks.select import BadFlag
from examples.cli import flags_parser

_MODELS = flags.DEFINE_list("models", ["gemm_table"], "As of benchmarks.run.")
_BATCH = flags.DEFINE_list("batch", [], "Default: each workload's own.")
_DTYPE = flags.DEFINE_list("dtype", [], "bf16, f16 or f32. Default: each workload's own.")
_GPU = flags.DEFINE_string("gpu", "NVIDIA H200", "As of benchmarks.prepare.")
_WORKERS = flags.DEFINE_integer("workers", os.cpu_count() or 1, "Compilers.", lower_bound=1)
_TIMED = flags.DEFINE_bool("timed", False, "Time what the folder has.")
_TURNS = flags.DEFINE_integer("turns", 7, "Of each candidate; the median counts.", lower_bound=1)


def main(arguments: Sequence[str]) -> int:
    """Compiles or times all; returns 2 for arguments that make no sense."""
    if len(arguments) != 2:
        sys.stderr.write("python -m benchmarks.choices: give one folder\n")
        return 2
    folder = Path(arguments[1])
    if _TIMED.value:
        if not (folder / candidates.INDEX).is_file():
            sys.stderr.write(f"python -m benchmarks.choices: {folder} has no {candidates.INDEX}: "
                             f"make it without --timed first\n")
            return 2
        candidates.time_all(folder, turns=_TURNS.value)
        return 0
    try:
        cases = select.cases(_MODELS.value, _BATCH.value, _DTYPE.value, tiny=False)
    except BadFlag as error:
        sys.stderr.write(f"python -m benchmarks.choices: {error}\n")
        return 2
    candidates.compile_all(cases, folder, ahead.gpu_facts(_GPU.value), workers=_WORKERS.value)
    return 0


if __name__ == "__main__":
    app.run(main, flags_parser=flags_parser("python -m benchmarks.choices"))
