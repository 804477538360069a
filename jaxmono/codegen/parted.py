"""Lanes of a warp that part where some of them wait for other blocks' words (device/sync.cuh).

Those that had nothing to wait for go on. They come to a barrier of the block by themselves, which
then counts the warp twice, or to a wait of a later trip. So all meet again: here in front of a
barrier in a function, behind every task in `kernel`. The emulator reports a barrier of the block
that a warp may come to in parts.
"""

from __future__ import annotations

from collections.abc import Iterable

from jaxmono.codegen.names import FlaggedName
from jaxmono.codegen.writer import Writer


def meet(w: Writer, waits: bool) -> None:
    """Statement that all lanes of a warp come to, where some may have waited: three instructions
    where they are together."""
    if waits:
        w.line("syncwarp();", "some lanes had nothing to wait for")


def any_waits(pointers: Iterable[str | None]) -> bool:
    """Whether what is read by one of these is waited for."""
    return any(isinstance(p, FlaggedName) for p in pointers)
