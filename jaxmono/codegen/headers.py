"""The device headers: real ``.cuh`` files, put into one self-contained source per kernel."""

from __future__ import annotations

import hashlib
import re
from functools import lru_cache
from pathlib import Path

from jaxmono._errors import CompileError

DEVICE = Path(__file__).parent / "device"
"""Folder of the device headers; the emulator is in ``emulate/`` below it."""

_INCLUDE = re.compile(r'^[ \t]*#[ \t]*include[ \t]*"jaxmono/([\w/]+\.cuh)"[^\n]*\n?', re.MULTILINE)
_PRAGMA = re.compile(r"^[ \t]*#[ \t]*pragma[ \t]+once[ \t]*\n", re.MULTILINE)


class HeaderError(CompileError):
    """A source includes a device header that does not exist."""


def bundle(source: str) -> str:
    """``source`` with every ``#include "jaxmono/x.cuh"`` replaced by the header's text.

    Each header comes once, where it is needed first, under a banner with its name. Other includes
    stay (the emulator's own, which the host compiler finds by its include path).

    Raises:
      HeaderError: for a name that is no device header.
    """
    seen: set[str] = set()

    def replace(match: re.Match[str]) -> str:
        name = match[1]
        if name in seen:
            return ""
        seen.add(name)
        path = DEVICE / name
        if not path.is_file():
            known = ", ".join(sorted(p.name for p in DEVICE.glob("*.cuh")))
            raise HeaderError(f'#include "jaxmono/{name}": there is no such device header; '
                              f"there are {known}")
        text = _INCLUDE.sub(replace, _PRAGMA.sub("", path.read_text())).rstrip()
        return f"{_banner(f'jaxmono/{name}')}\n{text}\n{_banner(f'end of jaxmono/{name}')}\n"

    return _INCLUDE.sub(replace, source)


def _banner(title: str) -> str:
    return f"// ==== {title} ".ljust(100, "=")


@lru_cache(maxsize=1)
def headers_hash() -> str:
    """SHA-256 (hex) of all device headers and of the emulator: any edit changes it."""
    sha = hashlib.sha256()
    for path in sorted(p for p in DEVICE.rglob("*") if p.suffix in (".cuh", ".h", ".cc")):
        data = path.read_bytes()
        sha.update(f"{path.relative_to(DEVICE).as_posix()}:{len(data)}\n".encode())
        sha.update(data)
    return sha.hexdigest()
