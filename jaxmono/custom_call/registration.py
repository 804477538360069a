"""The native library in this process: loading it, telling XLA of its handlers, trying kernels.

XLA looks handlers up by name when it compiles a module, also a module that another process made,
so `install` runs at import. It needs no backend and starts none.
"""

from __future__ import annotations

import ctypes
import threading
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import jax

from jaxmono import _compat
from jaxmono._errors import CompileError
from jaxmono.codegen.program import Program

LIBRARY = Path(__file__).with_name("_native.so")

_ERROR_BYTES = 4096
_lock = threading.Lock()
_registered: set[str] = set()


@dataclass(frozen=True)
class Residency:
    """What a device said of a kernel.

    Attributes:
      multiprocessors: of the device.
      blocks_per_multiprocessor: that are resident at once, by the driver's occupancy.
      grid: blocks that a launch uses.
    """

    multiprocessors: int
    blocks_per_multiprocessor: int
    grid: int


@cache
def library() -> ctypes.CDLL:
    """The native library.

    Raises:
      CompileError: it was not built or cannot be loaded.
    """
    try:
        return ctypes.CDLL(str(LIBRARY))
    except OSError as error:
        raise CompileError(
            f"the native library {LIBRARY} could not be loaded ({error}); reinstall jaxmono, or "
            f"run python -m jaxmono.custom_call.build (it needs g++)") from error


def install() -> None:
    """Registers the handlers as far as it can be done now; the rest when a backend appears.

    A missing library is no error here: whoever lowers a kernel gets it from `register`.
    """
    if LIBRARY.exists():
        register("cpu")
        _compat.on_plugins_discovered(_register_gpu)


def _register_gpu() -> None:
    if any(name in _compat.plugin_names() for name in ("cuda", "gpu")):
        register("cuda")


def register(platform: str) -> None:
    """Registers the handler of a platform ("cpu" or "cuda"); a second call does nothing.

    Raises:
      CompileError: the native library cannot be loaded.
    """
    with _lock:
        if platform in _registered:
            return
        loaded = library()
        if platform == "cpu":
            _compat.accept_cpu_types()
            _register(loaded, "jaxmono_interpret", "cpu", ("instantiate", "execute"))
        else:
            _register(loaded, "jaxmono_cuda", "CUDA", ("instantiate", "initialize", "execute"))
        _registered.add(platform)


def _register(loaded: ctypes.CDLL, name: str, platform: str, stages: tuple[str, ...]) -> None:
    # The state type first: XLA refuses a handler whose state type it does not know.
    pointers: dict[str, Any] = {}
    for what in ("type_id", "type_info"):
        function = getattr(loaded, f"{name}_{what}")
        function.restype = ctypes.c_void_p
        pointers[what] = jax.ffi.pycapsule(function())
    jax.ffi.register_ffi_type(f"{name}_state", pointers, platform=platform)
    handlers = {s: jax.ffi.pycapsule(getattr(loaded, f"{name}_{s}")) for s in stages}
    jax.ffi.register_ffi_target(name, handlers, platform=platform, api_version=1)


def probe(program: Program) -> Residency | None:
    """Loads a kernel as its handler will and unloads it, while XLA can still take its place.

    Returns:
      What the GPU says of it; None for the interpreter, and where there is no GPU (a lowering
      for another machine).

    Raises:
      CompileError: it cannot be loaded or launched; names the kernel and the reason.
    """
    loaded = library()
    error = ctypes.create_string_buffer(_ERROR_BYTES)
    if program.target == "interpret":
        failed = loaded.jaxmono_interpret_probe(
            program.binary, ctypes.c_int64(len(program.binary)), program.name.encode(), error,
            _ERROR_BYTES)
        if failed:
            raise CompileError(error.value.decode(errors="replace"))
        return None
    ordinal = _compat.local_gpu_ordinal()
    if ordinal is None:
        return None
    found = (ctypes.c_int * 3)()
    failed = loaded.jaxmono_cuda_probe(
        program.binary, ctypes.c_int64(len(program.binary)), program.name.encode(),
        program.arch.encode(), program.threads, program.blocks_per_sm, program.max_blocks,
        program.shared_bytes, int(program.cooperative), ordinal, found, error, _ERROR_BYTES)
    if failed:
        raise CompileError(error.value.decode(errors="replace"))
    return Residency(*found)
