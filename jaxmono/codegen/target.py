"""Targets: the facts of an architecture that generating and scheduling need, as data."""

from __future__ import annotations

from dataclasses import dataclass

from jaxmono.codegen.errors import CodegenError
from jaxmono.codegen.host_compiler import host_arch


@dataclass(frozen=True)
class Target:
    """What a kernel is generated for.

    Attributes:
      kind: "cuda" or "interpret".
      arch: for the compiler, e.g. "sm_90a"; the host's for "interpret".
      threads: of a block, by default.
      shared_bytes: most dynamic shared memory of a block (opt-in).
      wgmma: has Hopper's warpgroup products; kernels may have producer warps.
      overlaps: a kernel can wait for the one in front of it in its stream (`griddepcontrol`).
    """

    kind: str
    arch: str
    threads: int
    shared_bytes: int
    wgmma: bool = False
    overlaps: bool = False


_KB = 1024
# arch: shared bytes of a block. CUDA C++ Programming Guide, "Compute Capabilities"; a block may use
# 1 KB less than its SM has. Older ones lack cp.async and bf16, which the device headers use.
_ARCHITECTURES = {
    "sm_80": 163 * _KB,
    "sm_86": 99 * _KB,
    "sm_87": 163 * _KB,
    "sm_89": 99 * _KB,
    "sm_90": 227 * _KB,
    "sm_90a": 227 * _KB,
    "sm_100": 227 * _KB,
    "sm_100a": 227 * _KB,
    "sm_103": 227 * _KB,
    "sm_120": 99 * _KB,
}


def cuda_target(arch: str) -> Target:
    """The target of an architecture name.

    Raises:
      CodegenError: for one that is not in the table.
    """
    if arch not in _ARCHITECTURES:
        raise CodegenError(f"no facts about architecture {arch!r}; known: "
                           f"{', '.join(_ARCHITECTURES)}")
    return Target("cuda", arch, 256, _ARCHITECTURES[arch], wgmma=arch == "sm_90a",
                  overlaps=int(arch[3:].rstrip("a")) >= 90)


def arch_of(major: int, minor: int) -> str:
    """The architecture to compile for on a device of that compute capability.

    The one with architecture-specific instructions where there is one; for a device that is newer
    than the table, the newest known of its generation.
    """
    exact = f"sm_{major}{minor}"
    for name in (f"{exact}a", exact):
        if name in _ARCHITECTURES:
            return name
    older = [a for a in _ARCHITECTURES if a.startswith(f"sm_{major}") and a[-1] != "a"
             and len(a) == len(exact) and a < exact]
    if not older:
        raise CodegenError(f"compute capability {major}.{minor} is not supported; 8.0 or newer is")
    return older[-1]


def interpret_target() -> Target:
    """The SIMT emulator on the host; its blocks are small, since threads cost time there."""
    return Target("interpret", host_arch(), 128, 227 * _KB)
