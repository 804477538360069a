"""A child process that compiles kernels: ``python -P -m jaxmono.tuning.compile_worker``.

    {"source": path, "arch": "sm_90a", "name": n, "cubin": path}
        -> {"resources": {...}} or {"error": text}
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from jaxmono._errors import JaxmonoError
from jaxmono.codegen.compile import compile_kernel
from jaxmono.codegen.target import cuda_target


def answer(request: dict[str, Any]) -> dict[str, Any]:
    """Compiles one kernel."""
    try:
        binary, _, resources = compile_kernel(
            Path(request["source"]).read_text(), cuda_target(request["arch"]), request["name"],
            pointers=0, threads=0, shared_bytes=0, split=False)  # there are as many as CPUs
    except JaxmonoError as error:
        return {"error": str(error)}
    Path(request["cubin"]).write_bytes(binary)
    return {"resources": resources}


def main() -> None:
    out = sys.stdout
    sys.stdout = sys.stderr  # what a library prints is no answer
    for line in sys.stdin:
        out.write(json.dumps(answer(json.loads(line))) + "\n")
        out.flush()


if __name__ == "__main__":
    main()
