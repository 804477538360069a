"""What a decode stage's time goes into: clocks on the way from one stage's values to the next.

    python -m benchmarks.prepare --cache_dir=/tmp/kept --models=gpt2_decode --batch=1
    python -m benchmarks.chain /tmp/kept                compiles; where there is a GPU, runs, too

Of each stage, microseconds since the last block of the stage before was done (its last values had
been stored; all blocks' clocks are laid over one another by the GPU's timer), mean and largest of
the blocks that have a task:

    entered     the block is done with its task before
    landed      what the first thread needs of x has come
    staged      x is whole, in shared memory
    products    all of a task's products are made and, within the block, summed
    done        its values, or its share of them, have been stored

A stage takes as long as from the last block's ``done`` to that of the stage before. Clocks of other
kinds of stages are just ``done``. The reads cost some 20 ns each.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import numpy as np
from absl import app

from benchmarks import clocks
from examples.cli import flags_parser
from jaxmono.codegen.program import Program
from jaxmono.tuning.gpu_worker import Bench

MOMENTS = ("entered", "landed", "staged", "products", "done")
_BLOCKS, _STAGES = 264, 2048
"""That there is room for."""
_CLOCKS = f"""
__device__ long long jm_moments[{len(MOMENTS)}][{_STAGES}][{_BLOCKS}];
__device__ unsigned long long jm_ends[2][2][{_BLOCKS}];  // begin, end; clock, timer
__shared__ unsigned jm_at;
__device__ __forceinline__ void jm_moment(int which) {{
  if (threadIdx.x == 0 && jm_at < {_STAGES} && blockIdx.x < {_BLOCKS})
    jm_moments[which][jm_at][blockIdx.x] = clock64();
}}
__device__ __forceinline__ void jm_end(int which) {{
  if (threadIdx.x == 0 && blockIdx.x < {_BLOCKS}) {{
    if (which == 0) jm_at = 0;
    jm_ends[which][0][blockIdx.x] = clock64();
    asm volatile("mov.u64 %0, %globaltimer;" : "=l"(jm_ends[which][1][blockIdx.x]));
  }}
}}
"""


def main(arguments: Sequence[str]) -> int:
    """Returns 1 if a kernel failed, 2 where there is nothing to do."""
    return clocks.tool("chain", arguments, lambda p: marked(p.source), _told)


def marked(source: str) -> str | None:
    """A kernel's source with clocks; None without a stage that waits for values."""
    if "stage_flagged<" not in source:
        return None
    step = "if (threadIdx.x == 0) ++jm_at;"
    source = clocks.framed(source, begin="jm_end(0);\n  jm_time(0);\n  ",
                           arrive="jm_moment(4);", passed=step,
                           end="jm_moment(4);\njm_end(1);\njm_time(1);\n")
    for pattern, told in (
            # Of both: a task begins; its products are made.
            (r"^ *syncthreads\(\);  // the previous task is done with shared memory$",
             r"\g<0>\n  jm_moment(0);"),
            (r"^ *G::(?:template )?run\S*\(smem, .*$", r"\g<0>\n  jm_moment(3);"),
            # x, as it is
            (r'^ *"x"\);$', r"\g<0>\n      jm_moment(1);"),
            (r"^ *G::template stage_flagged<XWords>\((?:.|\n)*?^  \}\);$",
             r"\g<0>\n  jm_moment(2);"),
            # and normalised
            (r"^ *const .*\bcombine_block<", r"jm_moment(1);\n\g<0>"),
            (r"^  syncthreads\(\);\n(?=  (?:const int own = |G::run))", r"\g<0>  jm_moment(2);\n")):
        source = re.sub(pattern, told, source, flags=re.M)
    return clocks.WALL + _CLOCKS + source


def _told(bench: Bench, program: Program) -> list[str]:
    """A line for each stage."""
    found = list[Any]()
    n = program.stages
    for kernel, _ in clocks.runs(bench, program):
        at = clocks.array(bench, kernel, b"jm_moments", (len(MOMENTS), _STAGES, _BLOCKS), np.int64)
        ends = clocks.array(bench, kernel, b"jm_ends", (2, 2, _BLOCKS), np.uint64).astype(float)
        blocks = min(kernel.grid, _BLOCKS)
        (c0, t0), (c1, t1) = ends[:, :, :blocks]
        us = (at[:, :n, :blocks] - c0) * (t1 - t0) / (c1 - c0) / 1e3 + (t0 - t0.min()) / 1e3
        found.append(np.where(us >= 0, us, np.nan))
    times = np.array(found)  # [run, moment, stage, block]
    lines = list[str]()
    order = clocks.names(program)
    for k in range(1, n):
        tasks = int(m[1]) if (m := re.search(r"\((\d+) tasks", order[k])) else 0
        before, now = times[:, -1, k - 1], times[:, :, k]
        has = np.isfinite(now[:, 0]) if np.isfinite(now[:, 0]).any() else np.isfinite(now[:, -1])
        last = np.nanmax(np.where(_had(times, k - 1), before, np.nan), 1)
        parts = list[str]()
        for i, name in enumerate(MOMENTS):
            x = np.where(has, now[:, i] - last[:, None], np.nan)
            if np.isfinite(x).any():
                parts.append(f"{name} {np.median(np.nanmean(x, 1)):6.2f} "
                             f"{np.median(np.nanmax(x, 1)):6.2f}")
        lines.append(f"{'  '.join(parts)}  {tasks} {order[k][:70]}")
    return lines


def _had(times: Any, k: int) -> Any:
    """Which blocks had a task of stage k, as far as its clocks tell."""
    entered = np.isfinite(times[:, 0, k])
    return entered if entered.any() else np.isfinite(times[:, -1, k])


if __name__ == "__main__":
    app.run(main, flags_parser=flags_parser("python -m benchmarks.chain"))
