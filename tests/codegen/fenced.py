"""Buffers in front of and behind which nothing may be read: who does is killed.

    python fenced.py NAME...    runs programs of test_fences.py so, and tells of each that is right
"""

from __future__ import annotations

import ctypes
import mmap
import sys
from typing import Any

import harness
import numpy as np
from harness_graphs import data

BEHIND = 1 << 20
"""Bytes on either side, more than a program here could be wrong by."""


def fenced(nbytes: int, *, front: bool) -> np.ndarray[Any, Any]:
    """As `harness.buffer`, with a fence right in ``front`` of it, or else not 256 bytes behind."""
    page = mmap.PAGESIZE
    whole = -(-max(nbytes, 1) // page) * page
    raw = np.frombuffer(mmap.mmap(-1, whole + 2 * BEHIND), np.uint8)
    first = raw.ctypes.data
    protect = ctypes.CDLL(None, use_errno=True).mprotect
    for at in (first, first + BEHIND + whole):
        assert protect(ctypes.c_void_p(at), ctypes.c_size_t(BEHIND), 0) == 0
    inside = raw[BEHIND:BEHIND + whole]
    inside[:] = 0xFF
    start = 0 if front else whole - -(-nbytes // 256) * 256
    return inside[start:start + nbytes]


def main(names: list[str]) -> None:
    """Ends by SIGSEGV where a program reads beyond a fence."""
    import test_fences

    for name in names:
        plan = test_fences.planned(name)
        for front in (True, False):
            harness.buffer = lambda nbytes, front=front: fenced(nbytes, front=front)
            given = [data(v, i) for i, v in enumerate(plan.graph.inputs)]
            harness.check(plan.graph, given, plan=plan, rtol=2e-2)
            sys.stdout.write(f"{name} {'front' if front else 'behind'}\n")
            sys.stdout.flush()


if __name__ == "__main__":
    main(sys.argv[1:])
