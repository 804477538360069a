"""Which loops have one block: their stages are so small that the grid's barriers would be most of
the time."""

from __future__ import annotations

from jaxmono.codegen.schedule import KernelSchedule
from jaxmono.codegen.sig_code import code_for
from jaxmono.fusion.plan import Plan

FEW_TASKS = 4
"""Of each stage of a trip, up to which one block has them all, one behind the other. A barrier of
the grid takes 1 us of an H200, and what comes across it from another block some more."""
FEW_BEFORE = 64
"""Likewise, of each stage in front of the loop, which runs once."""


def in_one_block(plan: Plan, schedule: KernelSchedule) -> bool:
    """Whether the kernel of a plan has one block, whose threads meet in ``syncthreads``."""
    if (repeat := plan.repeat) is None:
        return False
    chosen = {s.key: (code_for(s), s, schedule.sigs[s.key]) for s in plan.sigs}
    tasks = {key: code.tasks(sig, s, schedule.threads) for key, (code, sig, s) in chosen.items()}
    return not any(code.counters(sig, s) or code.mail(sig, s) for code, sig, s in chosen.values()) \
        and all(sum(tasks[g.sig.key] for g in stage.groups)
                <= (FEW_BEFORE if number < repeat.start else FEW_TASKS)
                for number, stage in enumerate(plan.stages))
