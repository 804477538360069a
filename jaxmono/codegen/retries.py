"""Other texts of a kernel, where ptxas has too few registers for the first.

    products of f32 wait for those of the tile before (`in_turn`), where there are such
    of the better: what threads find again in each stage is kept, or the other way round
    of the better, if it spills: producers that need few predicates

What these are is in `KernelSchedule`. The best is taken, of two alike the first. A text takes ptxas
as long as the one before it (the backward kernel of wav2vec2's training step 29 s), but they do not
depend on each other: with some cores all start at once, and nobody waits for what turns out not to
be needed.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace

from jaxmono import _logging
from jaxmono._errors import CompileError
from jaxmono.codegen.dot_wgmma import TF32
from jaxmono.codegen.schedule import KernelSchedule

_log = _logging.get("codegen")
_CORES = 8
"""From which on texts are compiled side by side: each takes one core for most of its time, and up
to some gigabytes."""


@dataclass(frozen=True)
class Made:
    """A text of the kernel, compiled."""

    schedule: KernelSchedule
    binary: bytes
    source: str
    resources: Mapping[str, int]

    @property
    def spilled(self) -> int:
        return self.resources.get("spill_stores", 0)

    @property
    def faults(self) -> tuple[int, int]:
        """The worst first: a text of ViT-B/16 b16 whose products wait for each other took 10 % more
        time."""
        return self.resources.get("serialized", 0), self.spilled


Compiler = Callable[[KernelSchedule], Callable[[], Made]]
"""Writes a text, and returns what compiles it, in any thread."""


def improved(made: Made, wide_tiles: bool, text: Compiler) -> Made:
    """``made``, or a better text of the same kernel. ``wide_tiles``: as ``made`` has taken it."""
    in_turn = replace(made.schedule, in_turn=True) if any(
        getattr(s, "family", "") == TF32 for s in made.schedule.sigs.values()) else None

    def flipped(s: KernelSchedule) -> KernelSchedule:
        return replace(s, wide_tiles=not wide_tiles)

    def lean(s: KernelSchedule) -> KernelSchedule:
        return replace(s, lean_producers=True)

    def best(made: Made, found: Callable[[KernelSchedule], Made | None]) -> Made:
        if in_turn is not None:
            # wav2vec2's training step: forward serialized, and not so; backward 480 bytes, and 136.
            made = _better(made, found(in_turn))
        if any(made.faults):
            # By a few bytes ptxas may have the registers for the other text (CLIP b16: 8, and 0).
            made = _better(made, found(flipped(made.schedule)))
        if made.spilled:
            # What is left may be the word of predicates that producers share with all functions
            # (the third kernel of wav2vec2's training step: 80 bytes, with wide tiles 156, so 0).
            made = _better(made, found(lean(made.schedule)))
        return made

    if (os.cpu_count() or 1) < _CORES:
        return best(made, lambda s: _asked(text(s)))
    bases = [made.schedule, *([in_turn] if in_turn is not None else [])]
    all_texts = [*bases[1:], *(t for s in bases for t in (flipped(s), lean(s), lean(flipped(s))))]
    pool = ThreadPoolExecutor(len(all_texts))
    try:
        begun = [(s, pool.submit(_asked, text(s))) for s in all_texts]
        return best(made, lambda wanted: next(f for s, f in begun if s == wanted).result())
    finally:
        pool.shutdown(wait=False, cancel_futures=True)


def _better(made: Made, other: Made | None) -> Made:
    return other if other is not None and other.faults < made.faults else made


def _asked(compiled: Callable[[], Made]) -> Made | None:
    """None where the compiler refuses the text: there is another one."""
    try:
        return compiled()
    except CompileError as error:
        _log.info("another text of a kernel is not taken: %s", error)
        return None
