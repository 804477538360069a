"""How many connections a measuring process has to its GPU: CUDA's default, or one.

XLA runs branches of a command buffer side by side, and CUDA spreads them over its connections to
the GPU (hardware queues; 8 by default). Which lie where changes from load to load: the T5-base
decoding step at batch 32 took 730 to 799 us in three processes on one H200, 750 to 824 on another
(whose products are tuned otherwise); with one connection 722 to 727 and 750 to 753; 16 are no
better than 8. With one, branches that need not wait for each other do (CLIP's two towers). So the
passes take turns, and of each system the lowest time is kept. CUDA reads the variable when it
starts: only where passes have processes of their own. jaxmono's kernel is one branch.
"""

from __future__ import annotations

import os
from pathlib import Path

from benchmarks import supervise

VARIABLE = "CUDA_DEVICE_MAX_CONNECTIONS"
ONE = "1"

_GIVEN = VARIABLE in os.environ
"""Whoever starts a run may say how many there are; then no pass changes that."""


def of_pass(number: int | None) -> str | None:
    """The variable's value: one connection in even passes, else (None: torch's part) CUDA's
    default."""
    return ONE if number is not None and number % 2 == 0 else None


def take() -> None:
    """Before CUDA starts: this process gets what the one before it has asked for."""
    file = _file()
    if not _GIVEN and file is not None and file.exists():
        os.environ[VARIABLE] = ONE


def right(number: int | None) -> bool:
    """Whether this process has the connections of a pass."""
    return _GIVEN or os.environ.get(VARIABLE) == of_pass(number)


def ask(number: int | None) -> None:
    """The next process on this GPU shall have those of a pass."""
    if (file := _file()) is None:
        return
    if of_pass(number) == ONE:
        file.touch()
    else:
        file.unlink(missing_ok=True)


def told(*, alternate: bool) -> str:
    """For the header of a run whose passes take turns, or whose do not."""
    if _GIVEN:
        return os.environ[VARIABLE]
    return "CUDA's default in odd passes, 1 in even ones" if alternate else "CUDA's default"


def _file() -> Path | None:
    worker = supervise.number()
    return None if worker is None else supervise.shared() / f"one-connection-{worker}"
