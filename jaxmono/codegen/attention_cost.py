"""How long tiles of an attention take that go through their keys once: a model of clocks.

    tile of rows -> the chunks of keys that its mask leaves -> clocks (each family its own)
    tasks, longest first -> the blocks that run them -> microseconds
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import NamedTuple, TypeAlias

import numpy as np

from jaxmono.codegen.attention import AttentionCode, AttentionSchedule
from jaxmono.codegen.attention_groups import grouped, largest_group
from jaxmono.codegen.attention_logits import softmax_of
from jaxmono.fusion.key_range import Numbers, at_rows, find_key_range
from jaxmono.fusion.plan import AttentionForm, Device, Sig
from jaxmono.fusion.softmax import scaled_scores
from jaxmono.hlo.ir import Graph

CLOCKS_PER_US = 1700
LOAD = 32
"""Bytes a clock that a multiprocessor gets out of L2 while all do (measured: 36 in products)."""
GLOBAL = 18
"""The same of global memory, reads and writes."""


class Keys(NamedTuple):
    """What of the keys counts: first and last key of every row, both inclusive."""

    begin: Numbers
    end: Numbers
    varied: bool
    """Whether rows differ; then tasks go longest first, and back and forth over the blocks."""
    simple: bool
    """Whether the logits are multiples of the scores, and the probabilities nothing but theirs."""
    mask: str
    """What masks them: "" nothing or one bound by position, "range" other bounds of a row's keys,
    "any" anything else."""

    def chunks(self, s: AttentionSchedule) -> Numbers:
        """How many chunks every tile of rows goes through."""
        rows = self.begin.size
        edge = (0, -rows % s.bq)
        begin = np.pad(self.begin, edge, mode="edge").reshape(-1, s.bq).min(1)
        end = np.pad(self.end, edge, mode="edge").reshape(-1, s.bq).max(1)
        return np.ceil((end // s.chunk - begin // s.chunk + 1) / s.split)


Model: TypeAlias = Callable[[AttentionForm, AttentionSchedule, Device, int, Keys], float]
"""Microseconds of all tasks of a form; the number is that of its groups in a stage."""


def keys_of(body: Graph, form: AttentionForm) -> Keys:
    """The keys that rows see, as far as positions tell: lengths in memory may be any."""
    softmax = softmax_of(body, form)
    assert softmax is not None
    found = find_key_range(body, softmax, form.n)
    rows, last = form.m.size, form.n.size - 1
    begin, end = np.zeros(rows, np.int64), np.full(rows, last, np.int64)
    for x in found.bounds if found is not None else ():
        if x.value is None and x.index.is_static:
            limit = at_rows(x.index, form.m)
            begin, end = (begin, np.minimum(end, limit)) if x.upper \
                else (np.maximum(begin, limit), end)
    empty = begin > end
    begin, end = np.where(empty, 0, begin), np.where(empty, last, end)
    scaled = None if softmax.factors else scaled_scores(body, form.first, softmax, form.n)
    mask = "any"
    if scaled is not None and scaled.keep is None:
        mask = ""
    elif found is not None and found.whole:
        memory = any(x.value is not None for x in found.bounds)
        mask = "range" if len(found.bounds) > 1 or memory else ""
    return Keys(begin, end, found is not None, scaled is not None, mask)


def total_us(form: AttentionForm, s: AttentionSchedule, device: Device, siblings: int, keys: Keys,
             clocks: Callable[[Numbers], Numbers], start: float) -> float:
    """Microseconds of all tasks. ``clocks``: by a tile's chunks; ``start``: of a block."""
    each = clocks(keys.chunks(s))
    copies = form.batch.size * siblings * s.split
    tasks, blocks = each.size * copies, device.sm_count
    if tasks <= blocks:
        return (start + float(each.max())) / CLOCKS_PER_US
    if np.ptp(each) == 0:
        return (start + math.ceil(tasks / blocks) * float(each[0])) / CLOCKS_PER_US
    if tasks > 32 * blocks:
        return (start + float(each.sum()) * copies / blocks + float(each.max()) / 2) / CLOCKS_PER_US
    ordered = np.repeat(np.sort(each)[::-1], copies)
    task = np.arange(tasks)
    loads = np.bincount(task % blocks, ordered[snake(task, tasks, blocks)], blocks)
    return (start + float(loads.max())) / CLOCKS_PER_US


def snake(task: Numbers, tasks: int, blocks: int) -> Numbers:
    """`snake` of device/task_order.cuh."""
    rounds, at = task // blocks, task % blocks
    extra = tasks % blocks
    forth = np.where(rounds * blocks + blocks > tasks, at, (at + blocks - extra) % blocks)
    count = np.minimum(blocks, tasks - rounds * blocks)
    return rounds * blocks + np.where(rounds % 2, count - 1 - forth, forth)


def cheapest(sig: Sig, device: Device, siblings: int, model_us: Model,
             candidates: Callable[[AttentionForm], Iterable[AttentionSchedule]],
             order: Callable[[AttentionSchedule], tuple[int, ...]],
             ) -> tuple[float, AttentionSchedule] | None:
    """A family's fastest schedule with its microseconds; None if the chain is no softmax, or the
    family has no candidate.

    Args:
      model_us: of a form, which may be a grouped one. candidates: legal schedules of such a form.
      order: decides between schedules that the model takes for equally fast.
    """
    form = sig.form
    assert isinstance(form, AttentionForm)
    if softmax_of(sig.body, form) is None:
        return None
    found: list[tuple[float, AttentionSchedule]] = []
    for group in groups(sig):
        one = grouped(form, group)
        keys = keys_of(sig.body, one)
        found += [(model_us(one, s, device, siblings, keys), replace(s, group=group))
                  for s in candidates(one)]
    return min(found, key=lambda x: (round(x[0], 2), *order(x[1])), default=None)


def groups(sig: Sig) -> tuple[int, ...]:
    """The groups of query heads to choose from."""
    code = AttentionCode.of(sig, AttentionSchedule(16, 16, 2, 1, "flash"))
    most = largest_group(code.form, (code.k, code.v))
    return (1, most) if most > 1 else (1,)
