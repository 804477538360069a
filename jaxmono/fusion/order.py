"""Who waits for whom: the dependence graph of groups, its levels, and its cycles."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from jaxmono.fusion.draft import Draft
from jaxmono.hlo.ir import Value


def dependences(groups: Sequence[Draft], reads: Mapping[Draft, Sequence[Value]],
                updates: Mapping[Value, Draft], parts: Mapping[Value, Sequence[Value]],
                ) -> dict[Draft, dict[Draft, None]]:
    """For each group the groups that must be done before it starts.

    Args:
      reads: values that each group reads from buffers.
      updates: old value of a buffer to the group that overwrites it in place; all other
        readers of the old value come first.
      parts: of values that no group writes as they are (`stacks.written_by`).
    """
    # a copy of a program input "writes" what everybody can read from the input
    writer = {v: d for d in groups for v in d.outputs if v not in reads[d]}
    before: dict[Draft, dict[Draft, None]] = {d: {} for d in groups}
    for d in groups:
        for v in reads[d]:
            for part in parts.get(v, (v,)):
                if part in writer and writer[part] is not d:
                    before[d][writer[part]] = None
                if part in updates and updates[part] is not d:
                    before[updates[part]][d] = None
    return before


def levels(groups: Sequence[Draft],
           before: Mapping[Draft, Mapping[Draft, None]]) -> dict[Draft, int] | None:
    """Longest path to each group (MonoNN section 4.4); None if groups wait on each other."""
    after: dict[Draft, list[Draft]] = {d: [] for d in groups}
    missing = {d: len(before[d]) for d in groups}
    for d in groups:
        for p in before[d]:
            after[p].append(d)
    level = {d: 0 for d in groups if not missing[d]}
    ready = list(level)
    done = 0
    while done < len(ready):
        d = ready[done]
        done += 1
        for s in after[d]:
            missing[s] -= 1
            level[s] = max(level.get(s, 0), level[d] + 1)
            if not missing[s]:
                ready.append(s)
    return level if done == len(groups) else None


def raised(groups: Sequence[Draft], before: Mapping[Draft, Mapping[Draft, None]],
           level: Mapping[Draft, int]) -> dict[Draft, int] | None:
    """The least levels, from ``level`` on, at which each group comes after those it waits for; None
    if groups wait on each other."""
    least = levels(groups, before)
    if least is None:
        return None
    out: dict[Draft, int] = {}
    for d in sorted(groups, key=least.__getitem__):
        out[d] = max([level[d], *(out[p] + 1 for p in before[d])])
    return out


def latest(groups: Sequence[Draft], before: Mapping[Draft, Mapping[Draft, None]],
           last: int) -> dict[Draft, int]:
    """The highest levels, up to ``last``, of groups that come after those they wait for."""
    out = dict.fromkeys(groups, last)
    for d in reversed(groups):
        for p in before[d]:
            out[p] = min(out[p], out[d] - 1)
    return out


def cycle(groups: Sequence[Draft],
          before: Mapping[Draft, Mapping[Draft, None]]) -> list[Draft]:
    """Groups that lie on or between cycles."""
    left = dict.fromkeys(groups)
    while True:
        done = [d for d in left if not any(p in left for p in before[d])]
        needed = {p for d in left for p in before[d]}
        done += [d for d in left if d not in needed and d not in done]
        if not done:
            return list(left)
        for d in done:
            del left[d]
