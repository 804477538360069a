"""How many compilers may run beside each other."""

from __future__ import annotations

import os
import threading
from functools import lru_cache

SHARE = 2
"""Cores for each of a function's kernels that are compiled side by side: a compiler takes one for
most of its time, more for the rest, and up to a gigabyte or two."""
MANY = 8
"""Cores from which on other texts of a kernel are compiled beside it."""


def cores() -> int:
    """CPUs that this process may use."""
    try:
        return len(os.sched_getaffinity(0))
    except AttributeError:  # not on Linux
        return os.cpu_count() or 1


@lru_cache(maxsize=1)
def spare() -> threading.Semaphore:
    """For compilers of what may not be needed: a quarter of the cores, for all kernels together;
    none where there are not `MANY`."""
    return threading.Semaphore(cores() // 4 if cores() >= MANY else 0)
