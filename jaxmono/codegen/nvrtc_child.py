"""NVRTC, for nvrtc.py in its own process or for this file as a process of its own.

    python -P nvrtc_child.py < request > answer

    request   a line of JSON: path (sys.path), source, name, options
    answer    `MARK`, behind whatever Python has printed when it began; a line of JSON: version,
              status, log, cubin (bytes of it that follow)

A process of its own, because ptxas may abort the one that it runs in. It imports neither jaxmono
nor JAX, which take a second.
"""

from __future__ import annotations

import importlib
import json
import os
import sys
from collections.abc import Sequence
from typing import Any

MARK = b"\0jaxmono's answer\n"


class StatusError(Exception):
    """A call of NVRTC failed otherwise than by refusing a source; its text is the status' name."""


def compile_with(nvrtc: Any, source: str, name: str, options: Sequence[str],
                 ) -> tuple[str, str, bytes]:
    """The status' name, the log and the cubin (empty if the source was refused).

    Args:
      nvrtc: the module of the CUDA bindings.

    Raises:
      StatusError: see there.
    """
    program = checked(nvrtc, nvrtc.nvrtcCreateProgram(source.encode(), name.encode(), 0, [], []))
    try:
        encoded = [o.encode() for o in options]
        (status,) = nvrtc.nvrtcCompileProgram(program, len(encoded), encoded)
        log = bytearray(checked(nvrtc, nvrtc.nvrtcGetProgramLogSize(program)))
        checked(nvrtc, nvrtc.nvrtcGetProgramLog(program, log))
        cubin = bytearray()
        if status == nvrtc.nvrtcResult.NVRTC_SUCCESS:
            cubin = bytearray(checked(nvrtc, nvrtc.nvrtcGetCUBINSize(program)))
            checked(nvrtc, nvrtc.nvrtcGetCUBIN(program, cubin))
    finally:
        nvrtc.nvrtcDestroyProgram(program)
    return status.name, bytes(log).rstrip(b"\0").decode(errors="replace"), bytes(cubin)


def checked(nvrtc: Any, result: tuple[Any, ...]) -> Any:
    """The value of a call of the bindings, ``(status, value)`` or ``(status,)``."""
    status, *values = result
    if status != nvrtc.nvrtcResult.NVRTC_SUCCESS:
        raise StatusError(status.name)
    return values[0] if values else None


def version_of(nvrtc: Any) -> str:
    """``"13.0"``: of the library that the bindings have loaded."""
    status, major, minor = nvrtc.nvrtcVersion()
    checked(nvrtc, (status,))
    return f"{major}.{minor}"


def main() -> None:
    """Answers one request. What libraries print goes to standard error, not into the answer."""
    answer = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    request = json.loads(sys.stdin.buffer.readline())
    sys.path[:] = request["path"]
    nvrtc = importlib.import_module("cuda.bindings.nvrtc")
    try:
        status, log, cubin = compile_with(nvrtc, request["source"], request["name"],
                                          request["options"])
    except StatusError as error:
        status, log, cubin = str(error), "", b""
    head = {"version": version_of(nvrtc), "status": status, "log": log, "cubin": len(cubin)}
    answer.write(MARK + json.dumps(head).encode() + b"\n" + cubin)
    answer.close()


if __name__ == "__main__":
    main()
