"""What the driver plans and compiles for: the facts of the local device and its target."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from jaxmono.fusion.plan import Device


@dataclass(frozen=True)
class Facts:
    """Attributes:
      device: what planning needs.
      target: what codegen needs.
      arch: architecture of the binary, e.g. ``sm_90a``.
      compiler: version and flags of what makes the binary.
    """

    device: Device
    target: Any
    arch: str
    compiler: str


def facts_for(platform: str, *, interpret: bool) -> Facts:
    return Facts(Device(), None, "none", "none")
