"""How long each stage of a kernel takes: clocks read at its grid barriers.

    python -m benchmarks.prepare --cache_dir=/tmp/kept --models=bert_base --batch=1
    python -m benchmarks.stages /tmp/kept               compiles; where there is a GPU, runs, too

The kernel's own source with two reads of the SM's clock around each grid barrier, by one thread of
each block. For each stage: microseconds from barrier to barrier (of block 0, barrier included), the
share of them that blocks are busy on average, and what runs there. The reads cost some 20 ns a
stage. The inputs are random numbers.
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
from absl import app, flags

from benchmarks import ahead
from benchmarks.beside import launch_of, problem_of
from examples.cli import flags_parser
from jaxmono.codegen.nvrtc import compile_cuda
from jaxmono.codegen.program import Program
from jaxmono.tuning.gpu_worker import Bench, CudaError, Kernel, MachineError

_RUNS = flags.DEFINE_integer("runs", 9, "Launches; the median of each stage counts.", lower_bound=1)

_BLOCKS, _STAGES = 264, 2048
"""That there is room for."""
_FOLDER = "marked"
_MARKS = f"""
__device__ long long jm_marks[2][{_STAGES}][{_BLOCKS}];
__device__ unsigned long long jm_wall[2];  // nanoseconds at the begin and the end of block 0
__device__ __forceinline__ void jm_time(int which) {{
  if (threadIdx.x == 0 && blockIdx.x == 0)
    asm volatile("mov.u64 %0, %globaltimer;" : "=l"(jm_wall[which]));
}}
__device__ __forceinline__ void jm_mark(int which, unsigned stage) {{
  if (threadIdx.x == 0 && stage < {_STAGES} && blockIdx.x < {_BLOCKS})
    jm_marks[which][stage][blockIdx.x] = clock64();
}}
"""


def main(arguments: Sequence[str]) -> int:
    """Returns 1 if a kernel failed, 2 where there is nothing to do."""
    if len(arguments) != 2 or not (Path(arguments[1]) / ahead.INDEX).is_file():
        sys.stderr.write("python -m benchmarks.stages: give one folder that benchmarks.prepare has "
                         f"made, with {ahead.INDEX}\n")
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
    """The kernels of a folder with clocks, by case; compiled once."""
    (folder / _FOLDER).mkdir(exist_ok=True)
    found: dict[str, Program] = {}
    for case, files in ahead.read(folder).items():
        for k, file in enumerate(files):
            kept = folder / _FOLDER / Path(file).name
            if not kept.exists():
                program = Program.from_bytes((folder / file).read_bytes())
                if not program.barriers:
                    continue
                source = marked(program.source)
                binary = compile_cuda(source, program.arch, split=True).cubin
                kept.write_bytes(replace(program, source=source, binary=binary).to_bytes())
            name = f"{case} kernel {k + 1}" if len(files) > 1 else case
            found[name] = Program.from_bytes(kept.read_bytes())
    return found


def marked(source: str) -> str:
    """A kernel's source with clocks at its grid barriers, and one at the end of each block."""
    return framed(source, _MARKS, begin="unsigned jm_stage = 0;\n  jm_time(0);\n"
                  "  jm_mark(1, jm_stage++);\n  ", arrive="jm_mark(0, jm_stage);",
                  passed="jm_mark(1, jm_stage++);",
                  end="jm_mark(0, jm_stage);\njm_time(1);\n")


def framed(source: str, head: str, *, begin: str, arrive: str, passed: str, end: str) -> str:
    """A kernel's source with statements before and behind its grid barriers, at the begin (all
    threads) and at the end (those that compute); ``head`` comes before the kernel."""
    source = re.sub(r"^( *)(const uint32_t \w+ = grid_arrive\()", rf"\1{arrive}\n\1\2",
                    source, flags=re.M)
    source = re.sub(r"^( *)(grid_wait\(&barrier_state, \w+\);)", rf"\1\2\n\1{passed}",
                    source, flags=re.M)
    source = re.sub(r"^( *)(grid_barrier\(&barrier_state\);)",
                    rf"\1{arrive}\n\1\2\n\1{passed}", source, flags=re.M)
    kernel = source.index('extern "C" __global__')
    before, body = source[:kernel], source[kernel:]
    at = body.index("using namespace jaxmono;")
    body = body[:at] + begin + body[at:]
    # The threads that compute end the kernel: in the last branch, where there are producers.
    ends = [m.start() for m in re.finditer(r"^( *)\}$", body, flags=re.M)]
    last = ends[-2] if "registers_increase" in body else ends[-1]
    return before + head + body[:last] + end + body[last:]


def _told(bench: Bench, program: Program) -> list[str]:
    """A line for each stage."""
    bench.problem(*problem_of([program]))
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(program.binary)
        file.flush()
        bench.load(launch_of(0, program, Path(file.name)))
    kernel = bench.kernels[0]
    blocks, marks, walls = min(kernel.grid, _BLOCKS), list[Any](), list[float]()
    for turn in range(_RUNS.value):
        bench.launch(kernel, turn)
        bench.check(bench.d.cuStreamSynchronize(bench.stream))
        host = _read(bench, kernel, b"jm_marks", (2, _STAGES, _BLOCKS))
        begin, end = _read(bench, kernel, b"jm_wall", (2,))
        marks.append(host[:, :program.stages + 1, :blocks])
        walls.append(float(end - begin) / 1e3)
    n = program.stages
    # Cycles are those of the clock as it was: under load it is below what the device names.
    cycles = [float(m[0, n, 0] - m[1, 0, 0]) for m in marks]
    mhz = float(np.median(np.array(cycles) / np.array(walls)))
    arrived, passed = np.array(marks).transpose(1, 0, 2, 3) / mhz  # [run, stage, block]
    busy = np.median((arrived[:, 1:n + 1] - passed[:, :n]).mean(2), 0)
    last = (arrived[:, n] - passed[:, n - 1]).max(1)
    us = np.median(np.concatenate(
        [np.diff(passed[:, :n, 0], axis=1), last[:, None]], 1), 0)
    names = re.findall(r"^ *// (stage [^:\n]*: .*)$", program.source, flags=re.M)
    lines = [f"{us.sum():9.2f} us in {n} stages at {mhz:.0f} MHz"]
    order = labels(names, n)
    return lines + [f"{us[k]:9.2f} us  {busy[k] / us[k]:4.0%}  {order[k][:150]}" for k in range(n)]


def _read(bench: Bench, kernel: Kernel, name: bytes, shape: tuple[int, ...]) -> Any:
    """A global array of a kernel."""
    host = np.empty(shape, np.int64)
    at, _ = bench.check(bench.d.cuModuleGetGlobal(kernel.module, name))
    bench.check(bench.d.cuMemcpyDtoH(host.ctypes.data, at, host.nbytes))
    return host


def labels(comments: Sequence[str], stages: int) -> list[str]:
    """The generated comment of every stage; those of a loop's trips in turn."""
    out = [""] * stages
    # Loops first: counted on, one's stages lie behind its end, too, and those have their own.
    for text in sorted(comments, key=lambda text: "* trip" not in text):
        told = re.match(r"stage (\d+)(?: \+ (\d+) \* trip)?: (.*)", text)
        if told is None:
            continue
        first, period = int(told[1]), int(told[2] or 0)
        for at in range(first, stages, period) if period else (first,):
            out[at] = f"{at}: {told[3]}"
    return out


if __name__ == "__main__":
    app.run(main, flags_parser=flags_parser("python -m benchmarks.stages"))
