"""A load behind a test stays behind it. In front of it, it may read beyond its buffer.

The compiler once moved read-only loads of one-task groups out of the loop over tasks, in front of
the test for the buffer's end: its address did not depend on the loop.
"""

from __future__ import annotations

import importlib
from typing import Any

import pytest

from jaxmono.codegen import headers

SOURCE = """
#include "jaxmono/kernel.cuh"
using namespace jaxmono;
extern "C" __global__ void test_kernel(const float* x, float* y, float* z) {
  for (int t = block_id(); t < 100; t += num_blocks()) {
    if (t < 99) {
      z[t] = 1.0f;
    } else {
      const int e = (t - 99) * 2048 + thread_id() * 8;
      if (e >= 256) continue;
      st_global_16(y + e, LOAD(x + e));
    }
  }
}
"""


def ptx(source: str) -> str:
    """PTX of a source for sm_90a."""
    nvrtc: Any = importlib.import_module("cuda.bindings.nvrtc")
    program = nvrtc.nvrtcCreateProgram(source.encode(), b"test.cu", 0, [], [])[1]
    options = [b"--std=c++17", b"--device-as-default-execution-space",
               b"--gpu-architecture=compute_90a"]
    assert int(nvrtc.nvrtcCompileProgram(program, len(options), options)[0]) == 0
    out = bytearray(nvrtc.nvrtcGetPTXSize(program)[1])
    nvrtc.nvrtcGetPTX(program, out)
    return out.decode(errors="replace")


@pytest.mark.parametrize("load", ["load_global_16", "load_global_16_nc", "load_global_16_stream",
                                  "load_global_16_coherent"])
def test_a_load_stays_behind_its_test(load: str) -> None:
    text = ptx(headers.bundle(SOURCE.replace("LOAD", load)))
    lines = [line.strip() for line in text[text.index(".visible .entry"):].splitlines()]
    at = next(i for i, line in enumerate(lines) if line.startswith("ld.") and ".v4" in line)
    loop = next(i for i, line in enumerate(lines) if line.startswith("$L__BB"))
    guard = next(i for i, line in enumerate(lines) if (line.startswith("setp") and ", 255" in line)
                 or (line.startswith("setp") and ", 31" in line))
    assert loop < at, f"{load} in front of the loop:\n{text}"
    assert guard < at, f"{load} in front of the test:\n{text}"
