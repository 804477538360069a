"""Compiles device code for the emulator and runs it on NumPy arrays."""

from __future__ import annotations

import ctypes
import tempfile
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from jaxmono.codegen import headers, host_compiler

Array = np.ndarray[Any, Any]


class Emulated:
    """A loaded shared object of the target "interpret"."""

    def __init__(self, path: Path) -> None:
        self._entry = ctypes.CDLL(str(path)).jaxmono_emulate

    def error(self, buffers: Sequence[Array], *, blocks: int = 4, seed: int = 0) -> str:
        """Runs the kernel on the arrays, in place; "" or what the emulator reported."""
        message = ctypes.create_string_buffer(2048)
        pointers = (ctypes.c_void_p * len(buffers))(*(b.ctypes.data for b in buffers))
        code = self._entry(pointers, blocks, ctypes.c_ulonglong(seed), message, len(message))
        assert bool(code) == bool(message.value)
        return message.value.decode()

    def run(self, buffers: Sequence[Array], *, blocks: int = 4, seed: int = 0) -> None:
        assert self.error(buffers, blocks=blocks, seed=seed) == ""


@lru_cache(maxsize=64)
def emulate(source: str) -> Emulated:
    """Bundles, compiles and loads a source that ends with JAXMONO_EMULATE_MAIN."""
    binary, _ = host_compiler.compile_host(headers.bundle(source))
    with tempfile.TemporaryDirectory(prefix="jaxmono-test-") as folder:
        path = Path(folder) / "kernel.so"
        path.write_bytes(binary)
        return Emulated(path)  # the mapping outlives the file
