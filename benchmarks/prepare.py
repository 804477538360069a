"""jaxmono's kernels of the table, compiled ahead on a machine without the GPU.

    python -m benchmarks.prepare --cache_dir=kept --gpu="NVIDIA H200" --workers=2
    python -m benchmarks.run --cache_dir=kept        there, with the same versions of JAX and NVRTC

A kernel's key is its content, the GPU's facts and NVRTC's version: neither JAX's backend nor a
driver is in it, so what is compiled here is found there. Only an untuned kernel is: schedules that
a GPU has measured are in that machine's cache. On a leased GPU the 400 s that the standard table's
kernels take to compile are better spent measuring. ``kernels.json`` says which are whose, for
`benchmarks.beside`, which times the kernels of two trees in one run, or of one tree with and
without a decision (``--without=back_to_back``).
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from pathlib import Path

os.environ.setdefault("JAX_PLATFORMS", "cpu")

from absl import app, flags

from benchmarks import ahead, select
from benchmarks.select import BadFlag
from examples.cli import flags_parser
from jaxmono._build import OPTIONAL

_MODELS = flags.DEFINE_list("models", ["all"], "As of benchmarks.run.")
_BATCH = flags.DEFINE_list("batch", [], "Default: each workload's own.")
_DTYPE = flags.DEFINE_list("dtype", [], "bf16, f16 or f32. Default: each workload's own.")
_MODES = flags.DEFINE_list("modes", ["monolithic"], "Of jaxmono.jit.")
_TINY = flags.DEFINE_bool("tiny", False, "The small configurations that CI runs.")
_CACHE = flags.DEFINE_string("cache_dir", None, "That benchmarks.run will be given there.",
                             required=True)
_GPU = flags.DEFINE_string("gpu", "NVIDIA H200", "As the driver names it; one with the SMs of the "
                           "cost model's reference, an H200's.")
_WITHOUT = flags.DEFINE_list("without", [], f"What to leave out, to measure what it is worth: "
                             f"{', '.join(OPTIONAL)}.")
_WORKERS = flags.DEFINE_integer("workers", 1, "Processes.", lower_bound=1)


def main(arguments: Sequence[str]) -> int:
    """Compiles all; returns 1 if a kernel could not be, 2 for flags that make no sense."""
    try:
        if len(arguments) > 1:
            raise BadFlag(f"{' '.join(arguments[1:])!r} is not understood; flags are --name=value")
        cases = select.cases(_MODELS.value, _BATCH.value, _DTYPE.value, tiny=_TINY.value)
        if unknown := [name for name in _WITHOUT.value if name not in OPTIONAL]:
            raise BadFlag(f"--without={unknown[0]}: a kernel can be made without "
                          f"{', '.join(OPTIONAL)}")
        modes = [mode for _, mode in select.systems((), _MODES.value) if mode is not None]
    except BadFlag as error:
        sys.stderr.write(f"python -m benchmarks.prepare: {error}\n")
        return 2
    jobs = [(case.workload.name, case.batch, case.dtype, case.tiny, mode, _GPU.value)
            for case in cases for mode in modes]
    failed = ahead.prepare_all(jobs, Path(_CACHE.value), workers=_WORKERS.value,
                               without=_WITHOUT.value)
    return 1 if failed else 0


if __name__ == "__main__":
    app.run(main, flags_parser=flags_parser("python -m benchmarks.prepare"))
