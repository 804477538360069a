"""Time from an untraced function to its first result, in a fresh process each.

`in_fresh_process` starts this file as a program, which prints the seconds as its last line: with
``wait=False`` those to the first result, which XLA makes, and to the first one of the kernels.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

SECONDS = "seconds: "
_LIMIT_S = 240


def rows(model: str, *, tiny: bool = False, interpret: bool = False) -> Iterator[dict[str, Any]]:
    """Rows for jax.jit, jaxmono with an empty kernel cache, jaxmono with the filled one, and
    jaxmono that does not wait, with an empty one."""
    with tempfile.TemporaryDirectory() as cache, tempfile.TemporaryDirectory() as empty:
        for system, state, folder in (("xla", "", cache), ("jaxmono", "cold", cache),
                                      ("jaxmono", "cached", cache),
                                      ("jaxmono wait=False", "cold", empty)):
            row = {"part": "first", "model": model, "system": system, "cache": state}
            try:
                first, *kernels = in_fresh_process(model, system, folder, tiny=tiny,
                                                   interpret=interpret)
                yield {**row, "seconds": first} | ({"kernels_s": kernels[0]} if kernels else {})
            except RuntimeError as error:
                yield {**row, "failed": str(error)}


def in_fresh_process(model: str, system: str, cache: str, *, tiny: bool, interpret: bool,
                     ) -> list[float]:
    """Seconds in a new Python process whose kernel cache is the directory ``cache``.

    Raises:
      RuntimeError: the process failed; carries the end of what it wrote.
    """
    command = [sys.executable, "-m", "benchmarks.first_result", model, system,
               str(int(tiny)), str(int(interpret))]
    root = Path(__file__).resolve().parent.parent
    paths = os.pathsep.join(filter(None, [str(root), os.environ.get("PYTHONPATH", "")]))
    environment = {**os.environ, "JAXMONO_CACHE_DIR": cache, "PYTHONPATH": paths,
                   "CUDA_CACHE_DISABLE": "1"}  # NVRTC keeps what it compiled, too
    environment.pop("JAX_COMPILATION_CACHE_DIR", None)
    try:
        done = subprocess.run(command, cwd=root, capture_output=True, text=True, check=False,
                              timeout=_LIMIT_S, env=environment)
    except subprocess.TimeoutExpired as error:
        raise RuntimeError(f"no result within {_LIMIT_S} s") from error
    last = (done.stdout.splitlines() or [""])[-1]
    if done.returncode != 0 or not last.startswith(SECONDS):
        raise RuntimeError(f"exit status {done.returncode}: {done.stderr[-400:].strip()}")
    return [float(x) for x in last.removeprefix(SECONDS).split()]


def main(model: str, system: str, tiny: str, interpret: str) -> None:
    """The program in the fresh process."""
    import jax

    import jaxmono
    from benchmarks import data
    from benchmarks.workloads import find

    workload = find(model)
    made = data.make(data.Case(workload, workload.batches[0], workload.dtype, tiny == "1"), sets=1)
    own: dict[str, Any] = {} if system == "xla" else {"interpret": interpret == "1"}
    if system.endswith("wait=False"):
        own["wait"] = False
    jit = jax.jit if system == "xla" else jaxmono.jit
    step: Any = jit(made.program.step, donate_argnums=1, **own)
    arguments = made.arguments()
    start = time.perf_counter()
    jax.block_until_ready(step(*arguments))
    seconds = [time.perf_counter() - start]
    if "wait" in own:
        step.wait()
        jax.block_until_ready(step(*made.arguments()))
        seconds.append(time.perf_counter() - start)
    sys.stdout.write(SECONDS + " ".join(f"{x:.4f}" for x in seconds) + "\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
