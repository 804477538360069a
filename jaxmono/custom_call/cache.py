"""The kernel cache on disk: Programs by content key, one file each.

    <JAXMONO_CACHE_DIR>/kernels/<sha256 of the key>.program      (format: codegen/program.py)

Writes are a temporary file and a rename, so a reader in another process sees all of a file or
none. A file's modification time is its last use; above the size cap the oldest go first. Nothing
here makes a program fail: what cannot be read is a miss, what cannot be written is not kept.
"""

from __future__ import annotations

import functools
import hashlib
import logging
import os
import tempfile
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from jaxmono import _config
from jaxmono._errors import warn
from jaxmono.codegen.program import Program, ProgramFormatError

_log = logging.getLogger("jaxmono.cache")
_SUFFIX = ".program"
_TEMPORARY = ".tmp"
_STALE_SECONDS = 3600.0
"""A temporary file this old belongs to a process that died while writing."""


@dataclass(frozen=True)
class Entry:
    """One file: its path, its size in bytes, and when it was last used (seconds since 1970)."""

    path: Path
    bytes: int
    used: float


@dataclass(frozen=True)
class KernelCache:
    """A cache in a directory; safe to use from several processes and threads at once.

    Attributes:
      directory: made when first written to.
      max_bytes: of all entries together.
    """

    directory: Path
    max_bytes: int

    def path(self, key: str) -> Path:
        """Where the Program of a key is, or would be."""
        return self.directory / (hashlib.sha256(key.encode()).hexdigest() + _SUFFIX)

    def get(self, key: str) -> Program | None:
        """The Program of a key, or None. A damaged entry is removed with one warning."""
        path = self.path(key)
        try:
            data = path.read_bytes()
        except FileNotFoundError:
            return None
        except OSError as error:
            _warn_once(f"jaxmono: the kernel cache entry {path} cannot be read "
                       f"({error.strerror}); the kernel is compiled. Check the permissions of "
                       f"{self.directory}, or set JAXMONO_CACHE_DIR")
            return None
        try:
            program = Program.from_bytes(data)
        except ProgramFormatError as error:
            warn(f"jaxmono: the kernel cache entry {path} is unusable ({error}); it is removed "
                 f"and the kernel is compiled again")
            with suppress(OSError):
                path.unlink()
            return None
        with suppress(OSError):  # a read-only cache serves all the same
            os.utime(path)
        _log.debug("hit %s (%s, %d bytes)", path.name, program.name, len(data))
        return program

    def put(self, key: str, program: Program) -> None:
        """Keeps a Program; removes the least recently used ones above the cap."""
        data = program.to_bytes()
        if len(data) > self.max_bytes:
            return
        path = self.path(key)
        try:
            self.directory.mkdir(parents=True, exist_ok=True)
            fd, temporary = tempfile.mkstemp(_TEMPORARY, dir=self.directory)
            try:
                with os.fdopen(fd, "wb") as file:
                    file.write(data)
                os.replace(temporary, path)
            except BaseException:
                with suppress(OSError):
                    os.unlink(temporary)
                raise
        except OSError as error:
            _warn_once(f"jaxmono: the kernel cache {self.directory} cannot be written "
                       f"({error.strerror}); kernels are compiled in every process. Set "
                       f"JAXMONO_CACHE_DIR to a writable directory, or JAXMONO_CACHE=off")
            return
        _log.debug("kept %s (%s, %d bytes)", path.name, program.name, len(data))
        self.evict()

    def entries(self) -> list[Entry]:
        """All entries, the least recently used first."""
        return sorted(self._files(_SUFFIX), key=lambda e: e.used)

    def evict(self) -> None:
        """Removes entries until the rest fits, and what dead processes left behind."""
        entries = self.entries()
        excess = sum(e.bytes for e in entries) - self.max_bytes
        for entry in entries:
            if excess <= 0:
                break
            with suppress(OSError):  # another process may have removed it
                entry.path.unlink()
            excess -= entry.bytes
        for entry in self._files(_TEMPORARY):
            if time.time() - entry.used > _STALE_SECONDS:
                with suppress(OSError):
                    entry.path.unlink()

    def clear(self) -> None:
        """Removes all entries."""
        for entry in self.entries():
            with suppress(OSError):
                entry.path.unlink()

    def _files(self, suffix: str) -> list[Entry]:
        found: list[Entry] = []
        with suppress(OSError), os.scandir(self.directory) as listing:
            for file in listing:
                if file.name.endswith(suffix):
                    with suppress(OSError):
                        status = file.stat()
                        found.append(Entry(Path(file.path), status.st_size, status.st_mtime))
        return found


def current() -> KernelCache | None:
    """The cache that the environment asks for now; None where it is switched off.

    Raises:
      ConfigError: an environment variable is malformed.
    """
    config = _config.read()
    if not config.cache or config.cache_max_bytes == 0:
        return None
    return KernelCache(config.cache_dir / "kernels", config.cache_max_bytes)


def get(key: str) -> Program | None:
    """The Program of a key from the `current` cache, or None."""
    found = current()
    return found.get(key) if found is not None else None


def put(key: str, program: Program) -> None:
    """Keeps a Program in the `current` cache, if there is one."""
    found = current()
    if found is not None:
        found.put(key, program)


@functools.cache
def _warn_once(message: str) -> None:
    warn(message, stacklevel=3)
