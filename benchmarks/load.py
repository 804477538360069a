"""Other processes that keep a share of the CPU's cores busy."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager

# It ends by itself when its parent is gone, however that ended.
_SPIN = """
import os
parent = os.getppid()
while os.getppid() == parent:
    for _ in range(10**6):
        pass
"""


def cores() -> int:
    """Those that this process may use."""
    return len(os.sched_getaffinity(0))


@contextmanager
def busy(share: float) -> Iterator[int]:
    """Keeps round(share * cores) cores busy, one process each; yields that number."""
    count = round(share * cores())
    processes = [subprocess.Popen([sys.executable, "-S", "-c", _SPIN]) for _ in range(count)]
    try:
        time.sleep(0.2 if count else 0)
        yield count
    finally:
        for process in processes:
            process.kill()
        for process in processes:
            process.wait()
