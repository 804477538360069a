"""Hands what a lowering made (plans, programs, reports) to the ``lower`` or ``explain`` around it.

JAX runs lowering rules deep inside its own calls and has no way to return more than a module, so
the driver records each outcome here and the stage that started the lowering reads it. Under a
plain call nobody collects.
"""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from jaxmono._driver import Outcome


@dataclass
class Collector:
    """Attributes:
      plan_only: do not generate or compile; leave the program to XLA after planning.
      outcomes: one per jaxmono call site, in lowering order.
      notes: on functions that were not even made into a call.
    """

    plan_only: bool = False
    outcomes: list[Outcome] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


_active: ContextVar[Collector | None] = ContextVar("jaxmono_collector", default=None)


def active() -> Collector | None:
    """The collector of the lowering in progress, if any."""
    return _active.get()


@contextmanager
def collecting(*, plan_only: bool = False) -> Generator[Collector]:
    """Collects the outcomes of lowerings in the body."""
    collector = Collector(plan_only)
    token = _active.set(collector)
    try:
        yield collector
    finally:
        _active.reset(token)
