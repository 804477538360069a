"""Generated source to a shared object for the target ``interpret``, by the host C++ compiler.

    source + emulate/emulate.h --g++--> object
    emulate/runtime.cc         --g++--> object, once per compiler and generator version (cached)
    both                       --link-> ELF shared object that exports jaxmono_emulate

The device headers are more than half of what the compiler reads. When a process has compiled some
kernels of the same headers, they are precompiled for the next ones.
"""

from __future__ import annotations

import hashlib
import os
import platform
import re
import shlex
import shutil
import subprocess
import tempfile
import threading
import time
from collections import Counter, OrderedDict
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path

from jaxmono._errors import CompileError
from jaxmono.codegen.headers import DEVICE, headers_hash

_COMPILERS = ("g++", "clang++", "c++")
# -fno-gnu-unique: otherwise the dynamic linker shares template statics between kernels.
_FLAGS = ("-std=c++17", "-fPIC", "-pthread", "-fno-exceptions", "-fno-rtti", "-fno-math-errno",
          "-fno-trapping-math", "-fno-strict-aliasing", "-fvisibility=hidden", "-w", "-pipe")
# -Og: most kernels run for less time than they compile, 0.17 s where -O1 takes 0.22 (the tests of
# tests/codegen 14 % less, those of small models 4 %).
_OPTIMIZE = ("-Og",)
_EMULATE = "emulate/emulate.h"
_KERNEL_FLAGS = (*_OPTIMIZE, "-include", _EMULATE)
_RUNTIME_FLAGS = ("-O3",)
# Not libstdc++, of which nothing is used: half of the time to link.
_LINK_FLAGS = ("-shared", "-nodefaultlibs", "-Wl,--as-needed", "-lgcc", "-lm", "-lpthread", "-lc")
# Of `headers.bundle`: up to the end of the last header, and what says what a kernel computes.
_LAST_HEADER = re.compile(r"\A.*^// ==== end of jaxmono/[^\n]*\n", re.DOTALL | re.MULTILINE)
_COMMENTS = re.compile(r"\A(?:[ \t]*(?://[^\n]*)?\n)+")
_X86_64_V3 = frozenset({"avx2", "bmi1", "bmi2", "f16c", "fma", "abm", "movbe"})


class MissingCompilerError(CompileError):
    """There is no C++ compiler on this machine, or $CXX does not name one."""


class HostCompileError(CompileError):
    """The host compiler refused a generated kernel; a fault of jaxmono."""


def compile_host(source: str, *, cache_dir: Path | None = None) -> tuple[bytes, float]:
    """Compiles a self-contained source (`headers.bundle`) to an ELF shared object.

    The source ends with ``JAXMONO_EMULATE_MAIN(...)``; see device/emulate/emulate.h.

    Args:
      cache_dir: where the compiled emulator runtime is kept between processes; without it, each
        process compiles it once.

    Returns:
      The shared object, and the seconds it took.

    Raises:
      MissingCompilerError: no compiler.
      HostCompileError: the compiler's first messages.
    """
    start = time.perf_counter()
    command = _compiler()
    with tempfile.TemporaryDirectory(prefix="jaxmono-") as folder:
        work = Path(folder)
        runtime = _runtime(command, cache_dir)
        (work / "runtime.o").write_bytes(runtime)
        text, flags = source, _KERNEL_FLAGS
        if (made := _PRECOMPILED.find(command, source)) is not None:
            text, flags = made
        (work / "kernel.cc").write_text(text)
        _run((*command, *_flags(command), *flags, "-I", str(DEVICE), "kernel.cc", "runtime.o",
              *_linker(), *_LINK_FLAGS, "-o", "kernel.so"), work)
        binary = (work / "kernel.so").read_bytes()
    return binary, time.perf_counter() - start


def host_arch() -> str:
    """What a compiled kernel needs to run: ``x86_64-v3``, or ``x86_64`` on CPUs without AVX2."""
    machine = platform.machine()
    return f"{machine}-v3" if machine == "x86_64" and _has_v3() else machine


def host_compiler_version() -> str:
    """First line of the compiler's ``--version``, and the flags; for cache keys.

    Raises:
      MissingCompilerError: no compiler.
    """
    command = _compiler()
    return " ".join((_version(command), *_flags(command), *_KERNEL_FLAGS))


def _compiler() -> tuple[str, ...]:
    chosen = os.environ.get("CXX", "").strip()
    if chosen:
        command = tuple(shlex.split(chosen))
        if shutil.which(command[0]) is None:
            raise MissingCompilerError(f"CXX={chosen!r}: {command[0]!r} is not found; set CXX to a "
                                       "C++ compiler, or unset it to use g++")
        return command
    for name in _COMPILERS:
        if shutil.which(name) is not None:
            return (name,)
    raise MissingCompilerError(
        "interpret=True compiles kernels with the host C++ compiler, and none of "
        f"{', '.join(_COMPILERS)} is found; install one (Debian and Ubuntu: apt-get install g++; "
        "Fedora: dnf install gcc-c++) or set CXX")


@lru_cache(maxsize=8)
def _version(command: tuple[str, ...]) -> str:
    return _run((*command, "--version"), None).splitlines()[0]


def _flags(command: tuple[str, ...]) -> tuple[str, ...]:
    march = ("-march=x86-64-v3",) if host_arch().endswith("-v3") else ()
    own = () if _is_clang(command) else ("-fno-gnu-unique", "-fno-use-linker-plugin")
    return (*_FLAGS, *march, *own)


@lru_cache(maxsize=1)
def _linker() -> tuple[str, ...]:
    # It takes half of the time of the usual one.
    return ("-fuse-ld=gold",) if shutil.which("ld.gold") else ()


def _is_clang(command: tuple[str, ...]) -> bool:
    return "clang" in _version(command).lower()


@lru_cache(maxsize=1)
def _has_v3() -> bool:
    try:
        text = Path("/proc/cpuinfo").read_text()
    except OSError:
        return False
    flags = next((line for line in text.splitlines() if line.startswith("flags")), "")
    return _X86_64_V3.issubset(flags.split())


class _Precompiled:
    """The headers of the kernels of this process, precompiled by GCC where that pays off."""

    AFTER = 2  # kernels: precompiling takes as long as compiling two, and saves half of the next
    KEPT = 24  # of 10 MB each

    def __init__(self) -> None:
        self._seen: Counter[str] = Counter()
        self._made: OrderedDict[str, Path | None] = OrderedDict()
        self._folder: tempfile.TemporaryDirectory[str] | None = None
        self._lock = threading.Lock()

    def find(self, command: tuple[str, ...], source: str) -> tuple[str, tuple[str, ...]] | None:
        """What is left of the source without its headers, and the flags that include them."""
        if _is_clang(command) or not (end := _LAST_HEADER.search(source)):
            return None
        head, rest = _COMMENTS.sub("", source[:end.end()]), source[end.end():]
        key = hashlib.sha256("\0".join((head, *command, *_flags(command))).encode()).hexdigest()
        with self._lock:
            self._seen[key] += 1
            if key not in self._made and self._seen[key] > self.AFTER:
                self._made[key] = self._make(command, head, key)
                self._drop()
            path = self._made.get(key)
            if path is None:
                return None
            self._made.move_to_end(key)
        return rest, (*_OPTIMIZE, "-include", str(path))

    def _make(self, command: tuple[str, ...], head: str, key: str) -> Path | None:
        if self._folder is None:
            self._folder = tempfile.TemporaryDirectory(prefix="jaxmono-headers-")
        folder = Path(self._folder.name)
        path = folder / f"{key[:32]}.h"
        path.write_text(f'#include "{_EMULATE}"\n{head}')
        try:
            _run((*command, *_flags(command), *_OPTIMIZE, "-I", str(DEVICE), "-x", "c++-header",
                  path.name, "-o", f"{path.name}.gch"), folder)
        except CompileError:
            return None  # compiling the whole source says what is wrong
        return path

    def _drop(self) -> None:
        while len(self._made) > self.KEPT:
            _, path = self._made.popitem(last=False)
            if path is not None:
                # The text stays: a compiler that runs just now may want it.
                path.with_name(f"{path.name}.gch").unlink(missing_ok=True)


_PRECOMPILED = _Precompiled()


def _runtime(command: tuple[str, ...], cache_dir: Path | None) -> bytes:
    """The compiled emulate/runtime.cc."""
    flags = (*_flags(command), *_RUNTIME_FLAGS)
    if cache_dir is None:
        return _runtime_in_process(command, flags)
    key = hashlib.sha256("\0".join((headers_hash(), _version(command), *flags)).encode())
    path = cache_dir / f"emulator-{key.hexdigest()[:32]}.o"
    if path.is_file():
        return path.read_bytes()
    data = _runtime_in_process(command, flags)
    cache_dir.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(dir=cache_dir)
    with os.fdopen(handle, "wb") as file:
        file.write(data)
    Path(name).replace(path)  # atomic: another process sees all of it or nothing
    return data


@lru_cache(maxsize=4)
def _runtime_in_process(command: tuple[str, ...], flags: tuple[str, ...]) -> bytes:
    with tempfile.TemporaryDirectory(prefix="jaxmono-") as folder:
        work = Path(folder)
        _run((*command, *flags, "-I", str(DEVICE), "-c", str(DEVICE / "emulate" / "runtime.cc"),
              "-o", "runtime.o"), work)
        return (work / "runtime.o").read_bytes()


def _run(command: Sequence[str], folder: Path | None) -> str:
    try:
        done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    except OSError as error:
        raise MissingCompilerError(f"{command[0]!r} could not be started ({error}); install g++ or "
                                   "set CXX to a working C++ compiler") from error
    if done.returncode != 0:
        lines = [line for line in done.stderr.splitlines() if "error" in line] or \
            done.stderr.splitlines()
        raise HostCompileError(f"{command[0]} could not compile the kernel "
                               f"(exit status {done.returncode}): " + "\n".join(lines[:8]))
    return done.stdout
