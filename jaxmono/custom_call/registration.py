"""The native library in this process: loading it, telling XLA of its handlers, trying kernels.

XLA looks handlers up by name when it compiles a module, also a module that another process made,
so `install` runs at import. It needs no backend and starts none.
"""

from __future__ import annotations

import ctypes
import logging
import threading
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import jax

from jaxmono import _compat, custom_call
from jaxmono._errors import CompileError
from jaxmono.codegen.program import Program

_NAME = "_native.so"

_ERROR_BYTES = 4096
_log = logging.getLogger("jaxmono.custom_call")
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


def library_path() -> Path | None:
    """Where the native library is. An editable install keeps it apart from the sources."""
    places = [Path(p) / _NAME for p in custom_call.__path__]
    return next((p for p in places if p.exists()), None)


@cache
def library() -> ctypes.CDLL:
    """The native library.

    Raises:
      CompileError: it was not built or cannot be loaded.
    """
    path = library_path()
    reason = f"{_NAME} is missing"
    if path is not None:
        try:
            return ctypes.CDLL(str(path))
        except OSError as error:
            reason = str(error)
    raise CompileError(f"jaxmono's native library could not be loaded ({reason}); reinstall "
                       f"jaxmono, or run python -m jaxmono.custom_call.build (it needs g++)")


def install() -> None:
    """Registers the handlers as far as it can be done now; the rest when a backend appears.

    A library that cannot be loaded is no error here: who lowers a kernel gets it from `register`.
    """
    with suppress(CompileError):
        register("cpu")
        _compat.on_plugins_discovered(_register_gpu)


def _register_gpu() -> None:
    # JAX calls this while it starts its backends, which must come up whatever happens here.
    if "cuda" in _compat.plugin_names():
        try:
            register("cuda")
        except Exception:
            _log.debug("the GPU handler could not be registered yet", exc_info=True)


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
    def pointer(what: str) -> Any:
        function = getattr(loaded, f"{name}_{what}")
        function.restype = ctypes.c_void_p
        return jax.ffi.pycapsule(function())

    jax.ffi.register_ffi_type(
        f"{name}_state", {"type_id": pointer("type_id"), "type_info": pointer("type_info")},
        platform=platform)
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
    residency = Residency(*found)
    if residency.grid < program.min_blocks:
        raise CompileError(
            f"kernel {program.name}: {program.min_blocks} of its blocks wait for each other, and "
            f"this device runs {residency.grid} at once")
    return residency
