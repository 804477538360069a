"""Builds the native library with one compiler call, where the package was not installed by pip.

    python -m jaxmono.custom_call.build [output directory]

The result is the same as that of CMakeLists.txt: ``_native.so`` beside this file.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import jax.ffi

HERE = Path(__file__).resolve().parent
SOURCES = ("cuda_driver.cc", "cuda_kernel.cc", "cuda_ffi.cc", "emulator.cc", "interpret_ffi.cc")
FLAGS = ("-std=c++17", "-O2", "-shared", "-fPIC", "-fno-gnu-unique", "-Wall", "-Wextra")


def build(directory: Path = HERE) -> Path:
    """Compiles ``_native.so`` into ``directory`` against the installed jaxlib's FFI headers.

    Raises:
      RuntimeError: there is no C++ compiler, or it failed; carries its message.
    """
    compiler = os.environ.get("CXX") or shutil.which("g++") or shutil.which("c++")
    if compiler is None:
        raise RuntimeError("no C++ compiler was found; install g++, or set CXX to one")
    target = directory / "_native.so"
    with tempfile.TemporaryDirectory(dir=directory) as scratch:
        made = Path(scratch) / target.name
        command = [*compiler.split(), *FLAGS, "-isystem", jax.ffi.include_dir(),
                   *(str(HERE / "native" / s) for s in SOURCES), "-o", str(made), "-ldl"]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            raise RuntimeError(f"{compiler} could not build {target}:\n{done.stderr}")
        os.replace(made, target)  # a process that has the old library mapped keeps it
    return target


def main(arguments: list[str]) -> int:
    """Command line; returns the exit status."""
    try:
        target = build(Path(arguments[0]).resolve() if arguments else HERE)
    except RuntimeError as error:
        sys.stderr.write(f"jaxmono: {error}\n")
        return 1
    sys.stdout.write(f"{target}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
