"""Kernel text to binary, for either kind of target."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from threading import Event

from jaxmono.codegen.headers import bundle
from jaxmono.codegen.host_compiler import compile_host
from jaxmono.codegen.nvrtc import compile_cuda
from jaxmono.codegen.target import Target


def compile_kernel(source: str, target: Target, name: str, *, pointers: int, threads: int,
                   shared_bytes: int, cache_dir: Path | None = None, split: bool = True,
                   seconds: float | None = None, cancelled: Sequence[Event] = (),
                   ) -> tuple[bytes, str, dict[str, int]]:
    """Compiles a kernel.

    Args:
      source: with ``#include "jaxmono/..."`` lines.
      name: of the ``__global__`` function. pointers: in its ``Params``.
      cache_dir: where the emulator's own object file is kept between processes.
      split, seconds, cancelled: of `compile_cuda`.

    Returns:
      The binary, the self-contained source (headers inserted), and the resource report.
    """
    whole = bundle(source)
    if target.kind == "cuda":
        built = compile_cuda(whole, target.arch, name=f"{name}.cu", split=split,
                             seconds=seconds, cancelled=cancelled)
        resources = {"registers": built.registers, "spill_stores": built.spill_stores,
                     "spill_loads": built.spill_loads, "static_shared": built.static_shared,
                     "serialized": built.serialized}
        return built.cubin, whole, resources
    whole += (f"\nJAXMONO_EMULATE_MAIN({name}, jaxmono::Params, {max(pointers, 1)}, {threads}, "
              f"{shared_bytes})\n")
    binary, _ = compile_host(whole, cache_dir=cache_dir)
    return binary, whole, {}
