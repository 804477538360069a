"""What a stage's time goes into: clocks inside products on warpgroups.

    python -m benchmarks.prepare --cache_dir=/tmp/kept --models=bert_base --batch=1
    python -m benchmarks.moments /tmp/kept              compiles; where there is a GPU, runs, too

As benchmarks.stages, with more clocks, in 28 bytes a stage of shared memory until the kernel ends.
For each stage its microseconds, then since the grid barrier opened, mean and largest of the blocks
that have a task (``arrived``: of all):

    ready       the producers have heard of it
    first       the first k tile has landed        (of the block's first task)
    requested   all loads of a task are issued     (of its last one, as the rest)
    last        the last k tile has landed; one producer warp waits for it
    products    the last products are done
    arrived     the block is at the next barrier

and how long the last block to arrive waits there. The clocks take 8 to 9 % of BERT-base b1 on an
H200. It told that in a stage of 64 x 64 tiles the producers issued loads until 2.6 of the 3.8 us at
which blocks arrive, 0.2 us for each slot of the ring, and 0.16 where the loads were left out: so
small tiles have two lines of k in a slot (codegen/dot_schedule_wgmma.py).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from absl import app

from benchmarks import clocks
from benchmarks.ablate import HEADER, edited, has_product
from examples.cli import flags_parser
from jaxmono.codegen.program import Program
from jaxmono.tuning.gpu_worker import Bench

MOMENTS = ("ready", "first", "requested", "last", "products", "arrived", "opened")
"""The last one is the grid barrier in front of the stage."""
_ARRIVED, _OPENED = MOMENTS.index("arrived"), MOMENTS.index("opened")
_BLOCKS = 264
"""That there is room for."""
_CONSUMER, _PRODUCER = 0, 256
"""The threads that read the clocks."""


def _at(moment: str, thread: int = _CONSUMER) -> str:
    return f"jm_at({MOMENTS.index(moment)}, {thread});"


_EDITS = (
    ("    ready();\n    settle();\n",
     f"    ready();\n    {_at('ready', _PRODUCER)}\n    settle();\n"),
    ("    int before = -1;", "    mbarrier_wait(&roles->full[at.slot], at.parity());\n"
     f"    {_at('first')}\n    int before = -1;"),
    ("  }\n\n  // ---- consumers",
     f"    {_at('requested', _PRODUCER)}\n"
     f"    if (threadIdx.x == {_PRODUCER}) {{\n"
     "      const int slot = at.slot == 0 ? SLOTS - 1 : at.slot - 1;\n"
     "      mbarrier_wait(&roles->full[slot], at.parity(slot) ^ 1);\n    }\n"
     f"    {_at('last', _PRODUCER)}\n  }}\n\n  // ---- consumers"),
    ("    wgmma_wait<0>();\n    if (before", f"    wgmma_wait<0>();\n    {_at('products')}\n"
     "    if (before"),
)
"""Of gemm_wgmma.cuh; each text is there once."""


def main(arguments: Sequence[str]) -> int:
    """Returns 1 if a kernel failed, 2 where there is nothing to do."""
    return clocks.tool(
        "moments", arguments,
        lambda p: clocked(p.source, p.stages) if p.barriers and has_product(p.source) else None,
        _told)


def clocked(source: str, stages: int) -> str:
    """A kernel's source with clocks at all moments of its stages.

    Raises:
      MissingText: a place where a clock belongs is not there, or there twice.
    """
    size = len(MOMENTS) * stages
    source = clocks.framed(
        edited(source, _EDITS),
        begin=(f"for (int i = threadIdx.x; i < {size}; i += blockDim.x)\n"
               "    (&jm_clocks[0][0])[i] = 0;\n  if (threadIdx.x == 0) jm_stage = 0;\n"
               f"  __syncthreads();\n  jm_time(0);\n  {_at('opened')}\n  "),
        arrive=_at("arrived"), passed=f"if (threadIdx.x == 0) ++jm_stage; {_at('opened')}",
        end=(f"{_at('arrived')}\n  if (threadIdx.x == 0)\n    for (int i = 0; i < {size}; ++i)\n"
             f"      (&jm_kept[0][0][0])[i * {_BLOCKS} + blockIdx.x] = (&jm_clocks[0][0])[i];\n"
             "  jm_time(1);\n"))
    declared = clocks.WALL + f"""
__device__ int jm_kept[{len(MOMENTS)}][{stages}][{_BLOCKS}];
__shared__ int jm_clocks[{len(MOMENTS)}][{stages}];
__shared__ int jm_stage;
__device__ __forceinline__ void jm_at(int moment, int thread) {{
  int x;
  asm volatile("mov.u32 %0, %%clock;" : "=r"(x));
  if (threadIdx.x == thread) jm_clocks[moment][jm_stage] = x;
}}
"""
    header = source.index(f"// ==== {HEADER} ")
    return source[:header] + declared + source[header:]


def _told(bench: Bench, program: Program) -> list[str]:
    """A line for each stage."""
    kept, walls = list[Any](), list[float]()
    for kernel, us in clocks.runs(bench, program):
        shape = (len(MOMENTS), program.stages, _BLOCKS)
        found = clocks.array(bench, kernel, b"jm_kept", shape, np.int32)
        kept.append(found[:, :, :min(kernel.grid, _BLOCKS)].astype(np.int64))
        walls.append(us)
    order = clocks.names(program)
    return [f"{np.median(walls):9.2f} us with the clocks",
            *(f"{line}  {order[k][:100]}" for k, line in enumerate(lines(kept, walls)))]


def lines(kept: Sequence[Any], walls: Sequence[float]) -> list[str]:
    """For people, of each stage: microseconds, moments, wait.

    Args:
      kept: of each run, [moment, stage, block] in cycles of a clock that wraps, 0 for none.
      walls: microseconds of each run.
    """
    def us(later: Any, earlier: Any) -> Any:
        return ((later - earlier) & 0xffffffff) / mhz

    mhz, out = 1.0, list[str]()
    last = kept[0].shape[1] - 1
    mhz = float(np.median([us(c[_ARRIVED, last, 0], c[_OPENED, 0, 0]) / wall
                           for c, wall in zip(kept, walls, strict=True)]))
    for k in range(last + 1):
        told: list[str] = []
        for m, name in enumerate(MOMENTS[:_OPENED]):
            since = [us(c[m, k], c[_OPENED, k])[c[m, k] != 0] for c in kept]
            if all(x.size for x in since):
                mean, most = (float(np.median([f(x) for x in since])) for f in (np.mean, np.max))
                told.append(f"{name} {mean:.2f} {most:.2f}")
        ends = [c[_OPENED, k + 1] if k < last else c[_ARRIVED, k] for c in kept]
        whole = np.median([us(x, c[_OPENED, k])[0] for x, c in zip(ends, kept, strict=True)])
        wait = np.median([us(x, c[_ARRIVED, k]).min() for x, c in zip(ends, kept, strict=True)])
        out.append(f"{whole:9.2f} us  {'  '.join(told)}  wait {wait:.2f}")
    return out


if __name__ == "__main__":
    app.run(main, flags_parser=flags_parser("python -m benchmarks.moments"))
