"""How long each stage of a kernel takes: clocks read at its grid barriers and open borders.

    python -m benchmarks.prepare --cache_dir=/tmp/kept --models=bert_base --batch=1
    python -m benchmarks.stages /tmp/kept               compiles; where there is a GPU, runs, too

The kernel's own source with two reads of the SM's clock around each grid barrier, by one thread of
each block. For each stage: microseconds from barrier to barrier (of block 0, barrier included), the
share of them that blocks are busy on average, and what runs there. The reads cost some 20 ns a
stage. The inputs are random numbers. At an open border blocks do not meet: a block that waits for
flagged values does so within the stage behind it, and counts as busy.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from absl import app

from benchmarks import clocks
from examples.cli import flags_parser
from jaxmono.codegen.program import Program
from jaxmono.tuning.gpu_worker import Bench

_BLOCKS, _STAGES = 264, 2048
"""That there is room for."""
_MARKS = clocks.WALL + f"""
__device__ long long jm_marks[2][{_STAGES}][{_BLOCKS}];
__device__ __forceinline__ void jm_mark(int which, unsigned stage) {{
  if (threadIdx.x == 0 && stage < {_STAGES} && blockIdx.x < {_BLOCKS})
    jm_marks[which][stage][blockIdx.x] = clock64();
}}
"""


def main(arguments: Sequence[str]) -> int:
    """Returns 1 if a kernel failed, 2 where there is nothing to do."""
    return clocks.tool("stages", arguments, lambda p: marked(p.source) if p.barriers else None,
                       _told)


def marked(source: str) -> str:
    """A kernel's source with clocks at its borders, and one at the end of each block."""
    source = clocks.framed(
        source, begin="unsigned jm_stage = 0;\n  jm_time(0);\n  jm_mark(1, jm_stage++);\n  ",
        arrive="jm_mark(0, jm_stage);", passed="jm_mark(1, jm_stage++);",
        end="jm_mark(0, jm_stage);\njm_time(1);\n")
    kernel = source.index('extern "C" __global__')
    return source[:kernel] + _MARKS + source[kernel:]


def _told(bench: Bench, program: Program) -> list[str]:
    """A line for each stage."""
    marks, walls = list[Any](), list[float]()
    for kernel, us in clocks.runs(bench, program):
        host = clocks.array(bench, kernel, b"jm_marks", (2, _STAGES, _BLOCKS), np.int64)
        marks.append(host[:, :program.stages + 1, :min(kernel.grid, _BLOCKS)])
        walls.append(us)
    n = program.stages
    # Cycles are those of the clock as it was: under load it is below what the device names.
    cycles = [float(m[0, n, 0] - m[1, 0, 0]) for m in marks]
    mhz = float(np.median(np.array(cycles) / np.array(walls)))
    arrived, passed = np.array(marks).transpose(1, 0, 2, 3) / mhz  # [run, stage, block]
    busy = np.median((arrived[:, 1:n + 1] - passed[:, :n]).mean(2), 0)
    last = (arrived[:, n] - passed[:, n - 1]).max(1)
    us = np.median(np.concatenate(
        [np.diff(passed[:, :n, 0], axis=1), last[:, None]], 1), 0)
    lines = [f"{us.sum():9.2f} us in {n} stages at {mhz:.0f} MHz"]
    order = clocks.names(program)
    return lines + [f"{us[k]:9.2f} us  {busy[k] / us[k]:4.0%}  {order[k][:150]}" for k in range(n)]


if __name__ == "__main__":
    app.run(main, flags_parser=flags_parser("python -m benchmarks.stages"))
