"""What benchmarks.stages and benchmarks.moments share: kernels with clocks, compiled and run."""

from __future__ import annotations

import re
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from absl import flags

from benchmarks import ahead
from benchmarks.beside import launch_of, problem_of
from jaxmono.codegen.nvrtc import compile_cuda
from jaxmono.codegen.program import Program
from jaxmono.tuning.gpu_worker import Bench, CudaError, Kernel, MachineError

_RUNS = flags.DEFINE_integer("runs", 9, "Launches; the median of each stage counts.", lower_bound=1)

WALL = """
__device__ unsigned long long jm_wall[2];  // nanoseconds at the begin and the end of block 0
__device__ __forceinline__ void jm_time(int which) {
  if (threadIdx.x == 0 && blockIdx.x == 0)
    asm volatile("mov.u64 %0, %globaltimer;" : "=l"(jm_wall[which]));
}
"""
_OF, _TOLD = r"(?:roles->)?", r"(?:<[\w, ]+>)?"
"""Of a grid barrier in kernels with producers."""
Mark = Callable[[Program], "str | None"]
"""The source of a program with clocks, or None for one that has nothing to tell."""


def tool(name: str, arguments: Sequence[str], mark: Mark,
         told: Callable[[Bench, Program], Sequence[str]]) -> int:
    """The command line ``python -m benchmarks.NAME FOLDER``: compiles into FOLDER/NAME, and tells
    lines where there is a GPU. Returns 1 if a kernel failed, 2 where there is nothing to do."""
    if len(arguments) != 2 or not (Path(arguments[1]) / ahead.INDEX).is_file():
        sys.stderr.write(f"python -m benchmarks.{name}: give one folder that benchmarks.prepare "
                         f"has made, with {ahead.INDEX}\n")
        return 2
    folder, bad = Path(arguments[1]), 0
    programs = compiled(folder, folder / name, mark)
    try:
        bench = Bench(0)
    except (CudaError, ImportError, RuntimeError) as error:
        sys.stdout.write(f"compiled into {folder / name}; not run: {error}\n")
        return 0
    for case, program in programs.items():
        try:
            sys.stdout.write(f"{case}\n" + "".join(f"  {x}\n" for x in told(bench, program)))
        except (CudaError, MachineError) as error:
            bad += 1
            sys.stdout.write(f"{case}: {error}\n")
        sys.stdout.flush()
    return 1 if bad else 0


def compiled(folder: Path, to: Path, mark: Mark) -> dict[str, Program]:
    """The kernels of a folder with clocks, by case; compiled once."""
    to.mkdir(exist_ok=True)
    found: dict[str, Program] = {}
    for case, files in ahead.read(folder).items():
        for k, file in enumerate(files):
            program = Program.from_bytes((folder / file).read_bytes())
            source, kept = mark(program), to / Path(file).name
            if source is None:
                continue
            if not kept.exists() or Program.from_bytes(kept.read_bytes()).source != source:
                binary = compile_cuda(source, program.arch, split=True).cubin
                kept.write_bytes(replace(program, source=source, binary=binary).to_bytes())
            name = f"{case} kernel {k + 1}" if len(files) > 1 else case
            found[name] = Program.from_bytes(kept.read_bytes())
    return found


def framed(source: str, *, begin: str, arrive: str, passed: str, end: str) -> str:
    """A kernel's source with statements before and behind its grid barriers and open borders, at
    the begin (all threads) and at the end (those that compute)."""
    source = re.sub(r"^( *)((?:syncthreads\(\);  )?// open border)$",
                    rf"\1{arrive}\n\1\2\n\1{passed}", source, flags=re.M)
    source = re.sub(rf"^( *)(const uint32_t \w+ = {_OF}grid_arrive{_TOLD}\()", rf"\1{arrive}\n\1\2",
                    source, flags=re.M)
    source = re.sub(rf"^( *)({_OF}grid_wait{_TOLD}\(&barrier_state, \w+\);)",
                    rf"\1\2\n\1{passed}", source, flags=re.M)
    source = re.sub(rf"^( *)({_OF}grid_barrier{_TOLD}\(&barrier_state\);)",
                    rf"\1{arrive}\n\1\2\n\1{passed}", source, flags=re.M)
    kernel = source.index('extern "C" __global__')
    before, body = source[:kernel], source[kernel:]
    at = body.index("using namespace jaxmono;")
    body = body[:at] + begin + body[at:]
    # The threads that compute end the kernel: in the last branch, where there are producers.
    ends = [m.start() for m in re.finditer(r"^( *)\}$", body, flags=re.M)]
    last = ends[-2] if "registers_increase" in body else ends[-1]
    return before + body[:last] + end + body[last:]


def runs(bench: Bench, program: Program) -> Iterator[tuple[Kernel, float]]:
    """Launches it: the kernel, whose arrays may be read (`array`), and block 0's microseconds."""
    bench.problem(*problem_of([program]))
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(program.binary)
        file.flush()
        bench.load(launch_of(0, program, Path(file.name)))
    kernel = bench.kernels[0]
    for turn in range(_RUNS.value):
        bench.launch(kernel, turn)
        bench.check(bench.d.cuStreamSynchronize(bench.stream))
        begin, end = array(bench, kernel, b"jm_wall", (2,), np.int64)
        yield kernel, float(end - begin) / 1e3


def array(bench: Bench, kernel: Kernel, name: bytes, shape: tuple[int, ...], dtype: Any) -> Any:
    """A global array of a kernel."""
    host = np.empty(shape, dtype)
    at, _ = bench.check(bench.d.cuModuleGetGlobal(kernel.module, name))
    bench.check(bench.d.cuMemcpyDtoH(host.ctypes.data, at, host.nbytes))
    return host


def names(program: Program) -> list[str]:
    """What runs in each stage."""
    return labels(re.findall(r"^ *// (stage [^:\n]*: .*)$", program.source, flags=re.M),
                  program.stages)


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
