"""Kernels in the emulator that end the process at an access that a GPU would refuse."""

from __future__ import annotations

from jaxmono.codegen import host_compiler

_FLAGS = ("-fsanitize=alignment", "-fsanitize-undefined-trap-on-error")


def trap_misaligned() -> None:
    """Vectors are aligned to their bytes on a GPU; a CPU reads them anywhere."""
    if not set(_FLAGS) <= set(host_compiler._FLAGS):
        host_compiler._FLAGS = (*host_compiler._FLAGS, *_FLAGS)
