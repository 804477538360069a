"""What a kernel is assembled of: distinct Sigs, their calls in a stage, runs of stages."""

from __future__ import annotations

import math
from collections.abc import Hashable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from jaxmono.codegen import dot_gemv, dot_wgmma_shared
from jaxmono.codegen.attention import AttentionSchedule
from jaxmono.codegen.dot import DotCode
from jaxmono.codegen.dot_schedule import DotSchedule
from jaxmono.codegen.sig_code import SigCode
from jaxmono.codegen.writer import Writer
from jaxmono.fusion.plan import Plan, Sig
from jaxmono.hlo.ops import PIECE_BYTES

UNIT = 256
"""Workspaces begin at multiples of it."""
STEP = PIECE_BYTES
"""Offsets are counted in these bytes in reference tables (device/kernel.cuh)."""
_OWN_MAIL_BYTES = 1 << 20
"""Of all mailboxes of a Sig, up to which each group has its own."""


def has_own_mail(plan: Plan, sig: Sig, words: int) -> bool:
    """Whether each group of a Sig has a mailbox of so many words for itself, so that no barrier has
    to be between two stages for its sake; else those of the next stage use them again."""
    return 4 * words * sum(g.sig.key == sig.key for g in plan.groups) <= _OWN_MAIL_BYTES


@dataclass(frozen=True)
class Unit:
    """A distinct Sig with its code and schedule."""

    sig: Sig
    name: str
    code: SigCode
    schedule: Any
    tasks: int
    workspace: int
    """Bytes of global scratch per group, a multiple of `UNIT`."""
    counters: int
    mail: int
    """Words in its mailbox per group."""
    slots: int
    """Most groups of this Sig in one stage: each has counters of its own."""
    mailboxes: int
    """Of all groups of this Sig (`has_own_mail`), or as many as ``slots``."""
    alone: bool
    """No group of it reads and writes the same memory."""
    read_only: tuple[bool, ...]
    prefetch: Writer | None
    """Body of its prefetch function, where it has one."""
    load: Writer | None
    """Body of its load function for the producer warps, where it has one."""
    shared: int
    """Bytes of shared memory of a task."""
    doubled: bool = False
    """Whether its tasks use one half of shared memory or the other (doubled.py)."""
    flagged: tuple[bool, ...] = ()
    """Of its params and results, in order, which have flags; empty where none has."""

    @property
    def waits(self) -> bool:
        """Whether lanes wait for words of other blocks, each for those that it needs."""
        return any(self.flagged[:len(self.sig.body.inputs)]) or self.mail > 0

    @cached_property
    def ring(self) -> Hashable:
        """Equal for Units whose tasks use shared memory alike: the producers may run ahead from one
        to the next."""
        if self.load is None or not isinstance(self.schedule, DotSchedule):
            return self.name
        return self.schedule, dot_wgmma_shared.layout(DotCode.of(self.sig, self.schedule))

    @cached_property
    def frame(self) -> Hashable | None:
        """The slots of its ring and the bytes of each, where nothing that stays lies below them: in
        such a ring the tasks of another Unit may go on. None elsewhere."""
        if self.load is None or not isinstance(self.schedule, DotSchedule) \
                or self.schedule.family not in ("wgmma", dot_wgmma_shared.IMAGE) \
                or self.schedule.resident:
            return None
        panel, slot = dot_wgmma_shared.layout(DotCode.of(self.sig, self.schedule))
        if self.schedule.family == dot_wgmma_shared.IMAGE:  # has barriers, too
            return self.schedule, slot, panel
        return None if panel else (self.schedule.stages, slot)

    @property
    def sums(self) -> int:
        """Of a thread that multiplies on warpgroups; 0 elsewhere."""
        if self.load is None or not isinstance(self.schedule, DotSchedule):
            return 0
        return self.schedule.bm * self.schedule.bn // dot_wgmma_shared.finishing(self.schedule)

    @property
    def streams(self) -> bool:
        """Whether a task has more weights than its ring holds (gemv)."""
        s = self.schedule
        if not isinstance(s, DotSchedule) or s.family != "gemv":
            return False
        return dot_gemv.shape(DotCode.of(self.sig, s), 32 * math.prod(s.warps)).steps > s.stages

    @property
    def resident(self) -> bool:
        """Whether a block keeps weights from one task to the next."""
        return (isinstance(self.schedule, (DotSchedule, AttentionSchedule))
                and self.schedule.resident)


@dataclass(frozen=True)
class Call:
    """The call of one Sig in one stage, for all its groups and trips.

    ``table``: the references of params and results, a row per trip and group.
    """

    unit: Unit
    name: str
    groups: int
    trips: int
    table: list[list[tuple[int, int]]]
    workspace_at: int
    mailboxes: tuple[int, int] = (0, 0)
    """That of the first group, and how many further on that of the next trip is."""

    @property
    def tasks(self) -> int:
        return self.groups * self.unit.tasks

    @property
    def label(self) -> str:
        many = f"{self.groups} x " if self.groups > 1 else ""
        return f"{many}{self.unit.name} ({self.unit.tasks} tasks)"


@dataclass(frozen=True)
class Span:
    """A periodic run of stages (or one stage): the calls of each stage of a period."""

    start: int
    period: int
    trips: int
    calls: tuple[tuple[Call, ...], ...]
