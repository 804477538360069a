"""A task's wait for what was copied for it while the block was at another one (doubled.py)."""

from __future__ import annotations

from jaxmono.codegen.writer import Writer


def emit_landed(w: Writer, fetched: str) -> None:
    """All that the thread has requested for this task is there. Behind what was fetched is one
    group of another stage; ``fetched``: the C variable."""
    w.line(f"if ({fetched}) cp_async_wait<1>();")
    w.line("else cp_async_wait<0>();")
