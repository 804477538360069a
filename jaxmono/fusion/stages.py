"""Stages from levels: groups of equal longest path run side by side (MonoNN section 4.4).

A group with slack may run anywhere between its predecessors and its successors. It moves to the
stage where it disturbs least: beside work that already takes longer.
"""

from __future__ import annotations

from collections.abc import Mapping

from jaxmono.fusion import cost
from jaxmono.fusion.draft import Draft
from jaxmono.fusion.formulate import Formulation
from jaxmono.fusion.order import latest
from jaxmono.fusion.plan import Device, Sig


def place(form: Formulation, sigs: Mapping[Draft, Sig], device: Device) -> list[list[Draft]]:
    """The groups of each stage, in an order that depends on Sigs and then on the program."""
    stage = _balance(form, sigs, device)
    count = max(stage.values(), default=-1) + 1
    out: list[list[Draft]] = [[] for _ in range(count)]
    for d in form.groups:
        out[stage[d]].append(d)
    first: dict[str, int] = {}
    for groups in out:
        for d in groups:
            first.setdefault(sigs[d].key, len(first))
    return [sorted(groups, key=lambda d: first[sigs[d].key]) for groups in out]


def _balance(form: Formulation, sigs: Mapping[Draft, Sig], device: Device) -> dict[Draft, int]:
    after: dict[Draft, list[Draft]] = {d: [] for d in form.groups}
    for d in form.groups:
        for p in form.before[d]:
            after[p].append(d)
    stage = dict(form.level)
    late = latest(form.groups, form.before, max(stage.values(), default=0))
    time = {d: cost.body_us(sigs[d].body, device, matrix=d.kind in ("dot", "attention"))
            for d in form.groups}
    load = [0.0] * (max(stage.values(), default=-1) + 1)
    for d in form.groups:
        load[stage[d]] += time[d]
    for d in reversed(form.groups):
        low = max((stage[p] + 1 for p in form.before[d]), default=0)
        high = min((stage[s] - 1 for s in after[d]), default=late[d])
        if high <= stage[d] or d.kind in ("dot", "attention"):
            continue
        if form.state.late.intersection(d.ops):  # behind one barrier with all others
            low = high
        # Only cheap groups move: a tie keeps the earliest stage, where most is still free.
        load[stage[d]] -= time[d]
        best = min(range(low, high + 1), key=lambda s: (_crowding(load[s], time[d]), s))
        stage[d] = best
        load[best] += time[d]
    return stage


def _crowding(load: float, time: float) -> float:
    return 0.0 if load >= time else time - load
