"""A kernel that tells the time on the GPU (device/stopwatch.cuh), for timing what lies between two
launches of it in a stream."""

from __future__ import annotations

import time

from jaxmono.codegen.compile import compile_kernel
from jaxmono.codegen.program import Program
from jaxmono.codegen.target import Target
from jaxmono.hlo.types import DType, TensorType

_NAME = "jaxmono_stopwatch"
_THREADS = 32
_SOURCE = f"""#include "jaxmono/stopwatch.cuh"

namespace jaxmono {{
struct Params {{ void* buf[2]; }};
}}

extern "C" __global__ void __launch_bounds__({_THREADS}, 1)
{_NAME}(const __grid_constant__ jaxmono::Params p) {{
  using namespace jaxmono;
  if (thread_id() == 0)
    stopwatch(static_cast<uint32_t*>(p.buf[1]), *static_cast<const uint32_t*>(p.buf[0]));
}}
"""


def stopwatch(target: Target) -> Program:
    """u32[] nanoseconds to wait -> u32[2], the low and the high word of the time behind that, in
    nanoseconds.

    Raises:
      CompileError: the compiler is missing or refuses the text.
    """
    begin = time.perf_counter()
    binary, source, resources = compile_kernel(_SOURCE, target, _NAME, pointers=2,
                                               threads=_THREADS, shared_bytes=0, split=False)
    return Program(
        name=_NAME, target=target.kind, arch=target.arch, source=source, binary=binary,
        threads=_THREADS, blocks_per_sm=1, max_blocks=1, shared_bytes=0, scratch_bytes=0,
        cooperative=False, inputs=(TensorType((), DType.U32),),
        outputs=(TensorType((2,), DType.U32),), aliases=(), stages=1, barriers=0,
        resources=dict(resources), plan_text="", compile_seconds=time.perf_counter() - begin)
