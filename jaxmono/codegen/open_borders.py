"""Which borders of a plan need no grid barrier, once its schedules are known (`fusion.flags`).

A family of device functions says for each param and result of a Sig whether it can have flags
(`SigCode.can_flag`). Large mailboxes, counters and workspaces are used again from stage to stage,
so a barrier has to be between two stages that have the same.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from itertools import pairwise
from typing import Any

from jaxmono.codegen.calls import has_own_mail
from jaxmono.codegen.dot_wgmma_shared import IMAGE, REGISTERS, SWAPPED
from jaxmono.codegen.errors import CodegenError
from jaxmono.codegen.one_block import in_one_block
from jaxmono.codegen.schedule import KernelSchedule
from jaxmono.codegen.sig_code import code_for
from jaxmono.fusion.flags import unmet, with_flags
from jaxmono.fusion.plan import LoopForm, Plan, RowForm, Sig
from jaxmono.fusion.verify import verify

MOST_READS = 1 << 19
"""Of flagged values by one group, which go to the L2 each time: 2048 keys that are compared each
with each took 79 us of an H100."""


def open_borders(plan: Plan, schedule: KernelSchedule) -> Plan:
    """The plan with flags for what its schedules allow; itself where nothing is gained, or where
    producer warps run ahead, which know grid barriers only, or in one block."""
    if plan.open or plan.barriers < 2 or in_one_block(plan, schedule) \
            or any(has_producers(s, schedule.sigs) for s in plan.sigs):
        return plan

    def can(sig: Sig, result: bool, number: int) -> bool:
        return (result or _reads(sig) <= MOST_READS) \
            and code_for(sig).can_flag(sig, schedule.sigs[sig.key], result, number)

    pairs = apart(plan, schedule)
    found = with_flags(plan, can, pairs)
    if found.open:
        verify(found)
        if (pair := unmet(found, pairs)) is not None:
            raise CodegenError(f"no barrier is between stages {pair[0]} and {pair[1]}, which use "
                               "the same words of the kernel")
    return found


def _reads(sig: Sig) -> int:
    """Points of a loop or rows, each of which may read a param."""
    form = sig.form
    if isinstance(form, LoopForm):
        return math.prod(v.size for v in form.vars)
    return math.prod(v.size for v in (*form.rows, *form.cols)) if isinstance(form, RowForm) else 0


def apart(plan: Plan, schedule: KernelSchedule) -> set[tuple[int, int]]:
    """Pairs of stages, one behind the other, that use the same words or workspace of the kernel."""
    users: dict[str, list[int]] = {}
    for i, stage in enumerate(plan.stages):
        for sig in {g.sig.key: g.sig for g in stage.groups}.values():
            code, s = code_for(sig), schedule.sigs[sig.key]
            if code.counters(sig, s) or not has_own_mail(plan, sig, code.mail(sig, s)):
                users.setdefault(sig.key, []).append(i)
            if code.workspace_bytes(sig, s) and users.get("", [-1])[-1] != i:
                users.setdefault("", []).append(i)
    return {pair for stages in users.values() for pair in pairwise(stages)}


def has_producers(sig: Sig, sigs: Mapping[str, Any]) -> bool:
    """Whether its schedule has producer warps."""
    return getattr(sigs[sig.key], "family", "") in (
        "wgmma", SWAPPED, IMAGE, *REGISTERS, "back_to_back")
