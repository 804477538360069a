"""How near kernels are to reading what they are given: kernels that do nothing else, beside them.

    python -m benchmarks.prepare --cache_dir=/tmp/kept --models=gemm_table    here
    python -m benchmarks.reading /tmp/kept                                    here: compiles
    python -m benchmarks.beside /tmp/kept /tmp/kept-reads                     on the GPU

Writes FOLDER-reads, with an index as benchmarks.prepare writes it. Each multiprocessor has a share
of every input, which the copy engine brings to shared memory by pieces of 16 KiB, 13 of them on
their way; outputs stay as they were, and `benchmarks.beside` tells so. A floor of bytes over
bandwidth is that of long reads; a launch of its own takes longer (2 us or so on an H200, of which
1 is until the first bytes are there), which such kernels have as well.

For sm_90 and later, and cases of one kernel.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from absl import app

from benchmarks import ahead
from examples.cli import flags_parser
from jaxmono._errors import CompileError
from jaxmono.codegen.nvrtc import compile_cuda
from jaxmono.codegen.program import Program, ProgramFormatError

PIECE, SLOTS = 16384, 13
MULTIPROCESSORS = 132

_TEXT = """
typedef unsigned int u32;
typedef unsigned long long u64;

__device__ u32 shared_address(const void* p) {
  return static_cast<u32>(__cvta_generic_to_shared(p));
}

__device__ void wait(u32 barrier, u32 parity) {
  u32 done = 0;
  while (!done)
    asm volatile("{\\n.reg .pred p;\\n"
                 "mbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2;\\n"
                 "selp.u32 %0, 1, 0, p;\\n}" : "=r"(done) : "r"(barrier), "r"(parity) : "memory");
}

struct Params { void* buf[@BUFFERS@]; };

extern "C" __global__ void __launch_bounds__(32, 1) @NAME@(const __grid_constant__ Params p) {
  extern __shared__ __align__(128) unsigned char slots[];
  __shared__ __align__(8) u64 barriers[@SLOTS@];
  constexpr u64 SIZES[] = {@SIZES@};
  if (threadIdx.x != 0) return;
  for (int s = 0; s < @SLOTS@; ++s)
    asm volatile("mbarrier.init.shared.b64 [%0], 1;" :: "r"(shared_address(&barriers[s])));
  asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
  u32 asked = 0;
  for (int i = 0; i < @INPUTS@; ++i) {
    const u64 pieces = SIZES[i] / 16, share = (pieces + gridDim.x - 1) / gridDim.x;
    const u64 first = share * blockIdx.x, end = first + share < pieces ? first + share : pieces;
    for (u64 at = first; at < end; at += @PIECE@ / 16, ++asked) {
      const u32 slot = asked % @SLOTS@, barrier = shared_address(&barriers[slot]);
      if (asked >= @SLOTS@) wait(barrier, (asked / @SLOTS@ - 1) & 1);
      const u32 size = static_cast<u32>(end - at < @PIECE@ / 16 ? end - at : @PIECE@ / 16) * 16;
      asm volatile("mbarrier.arrive.expect_tx.shared.b64 _, [%0], %1;" :: "r"(barrier), "r"(size)
                   : "memory");
      asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes "
                   "[%0], [%1], %2, [%3];"
                   :: "r"(shared_address(slots + slot * @PIECE@)),
                      "l"(static_cast<const char*>(p.buf[i]) + at * 16), "r"(size), "r"(barrier)
                   : "memory");
    }
  }
  for (u32 i = asked > @SLOTS@ ? asked - @SLOTS@ : 0; i < asked; ++i)
    wait(shared_address(&barriers[i % @SLOTS@]), (i / @SLOTS@) & 1);
}
"""


def main(arguments: Sequence[str]) -> int:
    """Returns 1 if a kernel could not be made, 2 for arguments that make no sense."""
    if len(arguments) != 2 or not (Path(arguments[1]) / ahead.INDEX).is_file():
        sys.stderr.write(f"python -m benchmarks.reading: give one folder that benchmarks.prepare "
                         f"has made, with {ahead.INDEX}\n")
        return 2
    try:
        reading(Path(arguments[1]).resolve())
    except (CompileError, ProgramFormatError) as error:
        sys.stderr.write(f"python -m benchmarks.reading: {error}\n")
        return 1
    return 0


def reading(folder: Path) -> Path:
    """Compiles what only reads, of each case of one kernel; returns the new folder.

    Raises:
      CompileError: NVRTC is not there, or refuses a kernel.
    """
    out = folder.with_name(f"{folder.name}-reads")
    cases = {case: files for case, files in ahead.read(folder).items() if len(files) == 1}
    for case, (file,) in cases.items():
        start = time.perf_counter()
        program = Program.from_bytes((folder / file).read_bytes())
        source = text(program)
        made = replace(program, source=source, threads=32, blocks_per_sm=1, cooperative=False,
                       max_blocks=MULTIPROCESSORS, min_blocks=1, shared_bytes=PIECE * SLOTS,
                       overlaps=False, binary=compile_cuda(source, program.arch, split=True).cubin)
        (out / file).parent.mkdir(parents=True, exist_ok=True)
        (out / file).write_bytes(made.to_bytes())
        sys.stdout.write(f"{case}: {time.perf_counter() - start:.1f} s\n")
        sys.stdout.flush()
    ahead.write(out, cases)
    about = json.loads((folder / ahead.MADE).read_text(encoding="utf-8"))
    (out / ahead.MADE).write_text(json.dumps({**about, "without": ["anything but reads"]}),
                                  encoding="utf-8")
    return out


def text(program: Program) -> str:
    """What reads a kernel's inputs, but for their last bytes if these are no multiple of 16."""
    sizes = [t.nbytes for t in program.inputs]
    fields = {"BUFFERS": program.buffers, "NAME": program.name, "SLOTS": SLOTS, "PIECE": PIECE,
              "INPUTS": len(sizes), "SIZES": ", ".join(f"{n}ull" for n in sizes)}
    source = _TEXT
    for key, value in fields.items():
        source = source.replace(f"@{key}@", str(value))
    return source


if __name__ == "__main__":
    app.run(main, flags_parser=flags_parser("python -m benchmarks.reading"))
