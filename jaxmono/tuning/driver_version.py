"""The version of the GPU's driver, which the tuning cache's keys hold."""

from __future__ import annotations

import ctypes
import re
from functools import cache
from pathlib import Path

_FILE = Path("/proc/driver/nvidia/version")


@cache
def driver_version() -> str:
    """``"580.159.04"``; the newest CUDA that the driver knows where its own version is hidden;
    "none" without a driver."""
    try:
        found = re.search(r"Kernel Module\D*?(\d+(?:\.\d+)+)", _FILE.read_text())
        if found:
            return found[1]
    except OSError:
        pass  # no such file inside some containers
    try:
        number = ctypes.c_int()
        if ctypes.CDLL("libcuda.so.1").cuDriverGetVersion(ctypes.byref(number)) == 0:
            return f"CUDA {number.value // 1000}.{number.value % 1000 // 10}"
    except (OSError, AttributeError):
        pass  # no driver at all
    return "none"
