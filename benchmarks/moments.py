"""What a stage's time goes into: clocks inside products on warpgroups.

    python -m benchmarks.prepare --cache_dir=/tmp/kept --models=bert_base --batch=1
    python -m benchmarks.moments /tmp/kept              compiles; where there is a GPU, runs, too

As benchmarks.stages, with more clocks, in shared memory until the kernel ends (in global memory, 12
of them made BERT-base 10 % slower). For each stage its microseconds, then since the grid barrier
opened, mean and largest of the blocks that have a task:

    ready       the producers have heard of it
    first       the first k tile has landed        (of the block's first task)
    requested   all loads of a task are issued     (of its last one, as the rest)
    last        the last k tile has landed
    products    the last products are done
    arrived     the block is at the next barrier

and how long the last block to arrive waits there. BERT-base b1 on an H200: loads were issued for
2.4 of the 3.3 us between two barriers, 0.2 us for each slot of the ring whatever it held; so small
tiles have two lines of k in a slot now (dot_schedule_wgmma.py). The clocks take some 4 %.
"""

from __future__ import annotations

import re
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from absl import app

from benchmarks import ahead
from benchmarks.ablate import MissingText, has_product
from benchmarks.beside import launch_of, problem_of
from benchmarks.stages import framed, labels
from examples.cli import flags_parser
from jaxmono.codegen.nvrtc import compile_cuda
from jaxmono.codegen.program import Program
from jaxmono.tuning.gpu_worker import Bench, CudaError, Kernel, MachineError

MOMENTS = ("ready", "first", "requested", "last", "products", "arrived")
_STAGES, _BLOCKS, _RUNS = 96, 264, 9
"""Stages and blocks that there is room for; launches, of which the median counts."""
_FOLDER = "moments"
_OPENED = len(MOMENTS)
_BOTH = _OPENED + 1
_CLOCKS = f"""
__device__ int jm_kept[{_BOTH}][{_STAGES}][{_BLOCKS}];
__device__ unsigned long long jm_wall[2];  // nanoseconds at the begin and the end of block 0
__shared__ int jm_clocks[{_BOTH}][{_STAGES}];
__shared__ int jm_stage;
__device__ __forceinline__ void jm_at(int moment, int thread) {{
  int x;
  asm volatile("mov.u32 %0, %%clock;" : "=r"(x));
  if (threadIdx.x == thread && jm_stage < {_STAGES}) jm_clocks[moment][jm_stage] = x;
}}
__device__ __forceinline__ void jm_time(int which) {{
  if (threadIdx.x == 0 && blockIdx.x == 0)
    asm volatile("mov.u64 %0, %globaltimer;" : "=l"(jm_wall[which]));
}}
"""
_CONSUMER, _PRODUCER = 0, 256


def _at(moment: str, thread: int) -> str:
    return f"jm_at({MOMENTS.index(moment)}, {thread});"


_EDITS = (
    ("    if constexpr (!ALONE) ready();\n",
     f"    if constexpr (!ALONE) ready();\n    {_at('ready', _PRODUCER)}\n"),
    ("    int before = -1;", "    mbarrier_wait(&roles->full[at.slot], at.parity());\n"
     f"    {_at('first', _CONSUMER)}\n    int before = -1;"),
    ("  }\n\n  // ---- consumers",
     f"    {_at('requested', _PRODUCER)}\n"
     f"    if (threadIdx.x == {_PRODUCER}) {{\n"
     "      const int slot = at.slot == 0 ? SLOTS - 1 : at.slot - 1;\n"
     f"      mbarrier_wait(&roles->full[slot], at.parity(slot) ^ 1);\n    }}\n"
     f"    {_at('last', _PRODUCER)}\n  }}\n\n  // ---- consumers"),
    ("    wgmma_wait<0>();\n    if (before", f"    wgmma_wait<0>();\n    {_at('products', 0)}\n"
     "    if (before"),
)
"""Of gemm_wgmma.cuh; each text is there once."""
_HEADER = "jaxmono/gemm_wgmma.cuh"


def main(arguments: Sequence[str]) -> int:
    """Returns 1 if a kernel failed, 2 where there is nothing to do."""
    if len(arguments) != 2 or not (Path(arguments[1]) / ahead.INDEX).is_file():
        sys.stderr.write("python -m benchmarks.moments: give one folder that benchmarks.prepare "
                         f"has made, with {ahead.INDEX}\n")
        return 2
    folder, bad = Path(arguments[1]), 0
    programs = compiled(folder)
    try:
        bench = Bench(0)
    except (CudaError, ImportError, RuntimeError) as error:
        sys.stdout.write(f"compiled into {folder / _FOLDER}; not run: {error}\n")
        return 0
    for name, program in programs.items():
        try:
            sys.stdout.write(f"{name}\n" + "".join(f"  {x}\n" for x in _told(bench, program)))
        except (CudaError, MachineError) as error:
            bad += 1
            sys.stdout.write(f"{name}: {error}\n")
        sys.stdout.flush()
    return 1 if bad else 0


def compiled(folder: Path) -> dict[str, Program]:
    """The folder's kernels with products on warpgroups, with clocks, by case; compiled once."""
    (folder / _FOLDER).mkdir(exist_ok=True)
    found: dict[str, Program] = {}
    for case, files in ahead.read(folder).items():
        for k, file in enumerate(files):
            program = Program.from_bytes((folder / file).read_bytes())
            if not program.barriers or not has_product(program.source):
                continue
            source, kept = clocked(program.source), folder / _FOLDER / Path(file).name
            if not kept.exists() or Program.from_bytes(kept.read_bytes()).source != source:
                binary = compile_cuda(source, program.arch, split=True).cubin
                kept.write_bytes(replace(program, source=source, binary=binary).to_bytes())
            name = f"{case} kernel {k + 1}" if len(files) > 1 else case
            found[name] = Program.from_bytes(kept.read_bytes())
    return found


def clocked(source: str) -> str:
    """A kernel's source with clocks at all moments.

    Raises:
      MissingText: a place where a clock belongs is not there, or there twice.
    """
    begin = source.find(f"// ==== {_HEADER} ")
    end = source.find(f"// ==== end of {_HEADER} ")
    if not 0 <= begin < end:
        raise MissingText(f"the kernel has no {_HEADER}")
    header = source[begin:end]
    for text, instead in _EDITS:
        if (n := header.count(text)) != 1:
            raise MissingText(f"{_HEADER} has {n} times, and not once: {text.strip()}")
        header = header.replace(text, instead)
    clear = (f"for (int i = threadIdx.x; i < {_BOTH * _STAGES}; i += blockDim.x) "
             "(&jm_clocks[0][0])[i] = 0;\n  if (threadIdx.x == 0) jm_stage = 0;\n"
             "  __syncthreads();\n  jm_time(0);\n"
             f"  jm_at({_OPENED}, 0);\n  ")
    keep = (f"{_at('arrived', 0)}\n  if (threadIdx.x == 0)\n"
            f"    for (int i = 0; i < {_BOTH * _STAGES}; ++i)\n"
            f"      (&jm_kept[0][0][0])[i * {_BLOCKS} + blockIdx.x] = (&jm_clocks[0][0])[i];\n"
            "  jm_time(1);\n")
    return framed(source[:begin] + _CLOCKS + header + source[end:], "", begin=clear,
                  arrive=_at("arrived", 0),
                  passed=f"if (threadIdx.x == 0) ++jm_stage; jm_at({_OPENED}, 0);", end=keep)


def _told(bench: Bench, program: Program) -> list[str]:
    """A line for each stage."""
    bench.problem(*problem_of([program]))
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(program.binary)
        file.flush()
        bench.load(launch_of(0, program, Path(file.name)))
    kernel, stages = bench.kernels[0], min(program.stages, _STAGES)
    blocks, clocks, walls = min(kernel.grid, _BLOCKS), list[Any](), list[float]()
    for turn in range(_RUNS):
        bench.launch(kernel, turn)
        bench.check(bench.d.cuStreamSynchronize(bench.stream))
        kept = _read(bench, kernel, b"jm_kept", (_BOTH, _STAGES, _BLOCKS), np.int32)
        begin, end = _read(bench, kernel, b"jm_wall", (2,), np.int64)
        clocks.append(kept[:, :stages, :blocks].astype(np.int64))
        walls.append(float(end - begin) / 1e3)
    names = re.findall(r"^ *// (stage [^:\n]*: .*)$", program.source, flags=re.M)
    order = labels(names, program.stages)
    return [f"{np.median(walls):9.2f} us with the clocks",
            *(f"{line}  {order[k][:100]}" for k, line in enumerate(lines(clocks, walls)))]


def lines(clocks: Sequence[Any], walls: Sequence[float]) -> list[str]:
    """For people, of each stage: microseconds, moments, wait.

    Args:
      clocks: of each run, [moment, stage, block] in cycles, 0 for none; the last moment is the
        barrier.
      walls: microseconds of each run.
    """
    arrived, n = MOMENTS.index("arrived"), clocks[0].shape[1]
    cycles = [float((c[arrived, n - 1, 0] - c[_OPENED, 0, 0]) & 0xffffffff) for c in clocks]
    mhz = float(np.median(np.array(cycles) / np.array(walls)))
    out: list[str] = []
    for k in range(n):
        told: list[str] = []
        for m, name in enumerate(MOMENTS):
            since = [((c[m, k] - c[_OPENED, k]) & 0xffffffff)[c[m, k] != 0] / mhz for c in clocks]
            if all(x.size for x in since):
                mean, most = (float(np.median([f(x) for x in since])) for f in (np.mean, np.max))
                told.append(f"{name} {mean:.2f} {most:.2f}")
        last = clocks[0][_OPENED, k + 1:k + 2].size > 0
        until = [(c[_OPENED, k + 1] if last else c[arrived, k]) for c in clocks]
        us = np.median([((x - c[_OPENED, k]) & 0xffffffff)[0] / mhz
                        for x, c in zip(until, clocks, strict=True)])
        wait = np.median([((x - c[arrived, k]) & 0xffffffff).min() / mhz
                          for x, c in zip(until, clocks, strict=True)])
        out.append(f"{us:9.2f} us  {'  '.join(told)}  wait {wait:.2f}")
    return out


def _read(bench: Bench, kernel: Kernel, name: bytes, shape: tuple[int, ...], dtype: Any) -> Any:
    """A global array of a kernel."""
    host = np.empty(shape, dtype)
    at, _ = bench.check(bench.d.cuModuleGetGlobal(kernel.module, name))
    bench.check(bench.d.cuMemcpyDtoH(host.ctypes.data, at, host.nbytes))
    return host


if __name__ == "__main__":
    app.run(main, flags_parser=flags_parser("python -m benchmarks.moments"))
