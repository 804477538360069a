"""The cache key of a kernel: content only, so that any process on any machine may share it."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import asdict
from functools import lru_cache
from importlib import resources
from importlib.resources.abc import Traversable

from jaxmono._device import Facts
from jaxmono.codegen.host_compiler import host_compiler_version
from jaxmono.codegen.nvrtc import nvrtc_version
from jaxmono.codegen.target import Target
from jaxmono.hlo.fingerprint import fingerprint
from jaxmono.hlo.ir import Graph

_ROOMS = ("hlo", "fusion", "codegen")
"""The rooms whose sources decide what is generated for a Graph."""


@lru_cache(maxsize=1)
def generator_version() -> str:
    """Hash of the sources of `_ROOMS`, Python and device headers: any edit makes new keys."""
    sha = hashlib.sha256()
    for room in _ROOMS:
        for name, data in sorted(_sources(resources.files("jaxmono") / room, room)):
            sha.update(f"{name}:{len(data)}\n".encode())
            sha.update(data)
    return sha.hexdigest()


def _sources(folder: Traversable, path: str) -> Iterable[tuple[str, bytes]]:
    for entry in folder.iterdir():
        name = f"{path}/{entry.name}"
        if entry.is_dir():
            yield from _sources(entry, name)
        elif entry.name.endswith((".py", ".cuh", ".h", ".cc")):
            yield name, entry.read_bytes()


def compiler_version(target: Target) -> str:
    """Version and flags of the compiler for a target.

    Raises:
      CompileError: there is none.
    """
    return nvrtc_version() if target.kind == "cuda" else host_compiler_version()


def tuned_key(key: str, changed: Mapping[str, str]) -> str:
    """The key of a kernel some of whose schedules are not the analytic ones.

    Args:
      key: `cache_key`. changed: texts of those schedules, by the key of their Sig.
    """
    if not changed:
        return key
    return hashlib.sha256(json.dumps([key, sorted(changed.items())]).encode()).hexdigest()


def cache_key(graph: Graph, facts: Facts, *, name: str, mode: str, compiler: str,
              without: Collection[str] = (), aliases: Sequence[tuple[int, int]] = ()) -> str:
    """The key of the kernel for a simplified Graph: 64 hex digits.

    Args:
      graph: counts by `fingerprint`.
      facts: the target's architecture and every device fact that planning uses, SM count among
        them.
      name: of the kernel, which profilers show.
      mode: of `jaxmono.jit`.
      compiler: `compiler_version` of what makes the binary.
      without, aliases: of `jaxmono._build.Job`.
    """
    fields = {
        "graph": fingerprint(graph), "name": name, "mode": mode, "target": asdict(facts.target),
        "compiler": compiler, "device": asdict(facts.device),
        "generator": generator_version(), "without": sorted(without), "aliases": sorted(aliases),
    }
    return hashlib.sha256(json.dumps(fields, sort_keys=True).encode()).hexdigest()
