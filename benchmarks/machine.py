"""Where and with what a run was measured, and how fast this GPU is."""

from __future__ import annotations

import datetime
import importlib.metadata
import os
import platform
import statistics
import subprocess
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp

from benchmarks import load
from benchmarks.throttle import Nvml
from benchmarks.workloads.workload import DTYPES

ROOT = Path(__file__).resolve().parent.parent
_PACKAGES = ("jax", "jaxlib", "jax-cuda13-plugin", "flax", "numpy", "cuda-core", "cuda-bindings",
             "nvidia-cuda-nvrtc", "torch", "triton", "transformers", "torchvision", "timm")
_READ_BYTES = 1 << 31
_SIDE = 8192


@dataclass(frozen=True)
class Speed:
    """What this GPU reaches: bytes/s read from device memory, flop/s of a product by dtype."""

    read_bytes_per_s: float
    flops_per_s: dict[str, float]


def speed(dtypes: Sequence[str]) -> Speed:
    """Measures both ceilings on random data: the best of several ways to read (sums along rows and
    over everything, a copy, which reads and writes), and products of matrices of 8192 x 8192."""
    rows = jax.random.normal(jax.random.key(0), (_READ_BYTES // 4 // 8192, 8192), jnp.float32)
    ways: list[tuple[Callable[..., Any], int]] = [
        (lambda a: jnp.sum(a, 1), 1), (lambda a: jnp.max(a, 1), 1), (jnp.sum, 1),
        (lambda a: a + 1, 2)]
    read = max(times * rows.nbytes / _seconds(jax.jit(way), rows) for way, times in ways)
    del rows
    flops = {}
    for name in dict.fromkeys(dtypes):
        matrix = jax.random.normal(jax.random.key(1), (_SIDE, _SIDE), DTYPES[name])
        flops[name] = 2 * _SIDE**3 / _seconds(jax.jit(jnp.matmul), matrix, matrix)
    return Speed(read, flops)


def _seconds(function: Callable[..., Any], *args: Any) -> float:
    """Per call, calls queued back to back; median of some rounds."""
    taken = []
    for turn in range(6):
        start = time.perf_counter()
        out = None
        for _ in range(8):
            out = function(*args)  # the one before is freed as soon as it is done
        jax.block_until_ready(out)
        if turn:
            taken.append((time.perf_counter() - start) / 8)
    return statistics.median(taken)


def dispatch_us(arguments: int) -> float:
    """Host's time per call of a trivial program with that many arguments, queued."""
    args = [jnp.float32(k) for k in range(arguments)]
    function = jax.jit(lambda *a: a[0] + a[-1])
    return _seconds(function, *args) * 1e6


def gpus() -> list[str]:
    """The GPUs that CUDA programs started from here see, as CUDA_VISIBLE_DEVICES names them.

    Asks the driver's own program: a process that has GPUs open should measure on one."""
    given = os.environ.get("CUDA_VISIBLE_DEVICES")
    if given is not None:
        return [name.strip() for name in given.split(",") if name.strip()]
    return [line.strip() for line in _outputs("nvidia-smi", "--query-gpu=index",
                                              "--format=csv,noheader") if line.strip()]


def header(commit: str | None, flags: Sequence[str], nvml: Nvml) -> dict[str, Any]:
    """Everything about a run that its rows do not say."""
    device = jax.devices()[0]
    return stamp() | {
        "gpu": device.device_kind if device.platform == "gpu" else None,
        "platform": device.platform,
        "cores": load.cores(),
        "commit": commit,
        "flags": list(flags),
        "clocks_before": nvml.clocks() or None,
        "throttling": nvml.missing or "read from NVML",
    }


def stamp() -> dict[str, Any]:
    """Date, GPU, driver and versions, asked without touching the GPU."""
    return {
        "date": datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%d %H:%M UTC"),
        "gpu": _output("nvidia-smi", "--query-gpu=name", "--format=csv,noheader"),
        "driver": _output("nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"),
        "python": platform.python_version(),
        "versions": {name: v for name in _PACKAGES if (v := _version(name))},
    }


def commit_of(given: str | None) -> str | None:
    """The commit that is measured: as given, else what git says, "-dirty" where files differ."""
    if given:
        return given
    found = _output("git", "-C", str(ROOT), "rev-parse", "HEAD")
    changed = _output("git", "-C", str(ROOT), "status", "--porcelain", "--untracked-files=no")
    return f"{found}-dirty" if found and changed else found


def _version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def _output(*command: str) -> str | None:
    """First line that a program prints, or None if it cannot be run or prints nothing."""
    return (_outputs(*command) or [""])[0].strip() or None


def _outputs(*command: str) -> list[str]:
    """The lines that a program prints; none if it cannot be run."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=30)
    except (OSError, subprocess.SubprocessError):
        return []
    return done.stdout.splitlines()
