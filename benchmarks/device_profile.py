"""What a GPU did during some calls, read from a JAX profiler trace."""

from __future__ import annotations

import tempfile
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
from jax.profiler import ProfileData


class NoDeviceTrace(RuntimeError):
    """The trace holds nothing about a GPU."""


@dataclass(frozen=True)
class DeviceProfile:
    """Per call: kernel launches, copies and fills, and microseconds in which a kernel ran.

    ``names`` counts launches per kernel name over the whole trace.
    """

    launches: float
    copies: float
    busy_us: float
    names: Counter[str]


def profile(function: Callable[[], Any], *, calls: int) -> DeviceProfile:
    """Traces ``calls`` calls of a warmed-up function.

    Raises:
      NoDeviceTrace: no GPU events were recorded (no GPU, or no permission to trace it).
    """
    jax.block_until_ready(function())
    with tempfile.TemporaryDirectory() as folder:
        with jax.profiler.trace(folder):
            out = None
            for _ in range(calls):
                out = function()
            jax.block_until_ready(out)
        files = sorted(Path(folder).rglob("*.xplane.pb"))
        if not files:
            raise NoDeviceTrace("the profiler wrote no trace")
        return read(ProfileData.from_file(str(files[-1])), calls=calls)


def read(data: ProfileData, *, calls: int) -> DeviceProfile:
    """The device part of a trace.

    Raises:
      NoDeviceTrace: it has none.
    """
    names: Counter[str] = Counter()
    copies, busy_ns = 0, 0.0
    for plane in data.planes:
        if not plane.name.startswith("/device:GPU"):
            continue
        for line in plane.lines:
            # Other lines of the plane repeat the same time by module and by HLO op.
            if not line.name.startswith("Stream"):
                continue
            for event in line.events:
                if event.name.lower().startswith(("memcpy", "memset")):
                    copies += 1
                else:
                    names[event.name] += 1
                    busy_ns += event.duration_ns
    if not names:
        raise NoDeviceTrace("the trace has no kernels of a GPU stream")
    return DeviceProfile(names.total() / calls, copies / calls, busy_ns / calls / 1e3, names)
