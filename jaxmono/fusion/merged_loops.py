"""Loops of one stage that are one loop with several outputs."""

from __future__ import annotations

import math
from collections.abc import Mapping

from jaxmono.fusion.draft import Draft
from jaxmono.fusion.loop_chains import MAX_OUTPUTS
from jaxmono.fusion.stacks import in_turn
from jaxmono.hlo import ops
from jaxmono.hlo.ir import Graph, Op, Value


def merge(graph: Graph, groups: list[Draft], level: dict[Draft, int],
          reads: dict[Draft, tuple[Value, ...]]) -> list[Draft]:
    """Joins loops of one level, equal space and common buffers into one with several outputs, and
    the parts of an array that one group makes, however many (`stacks.in_turn`)."""
    out: list[Draft] = []
    parts = in_turn(graph)
    hosts: dict[tuple[int, tuple[int, ...], bool], list[Draft]] = {}
    last: dict[Op, int] = {}  # who reads the array waits for all of its parts
    for d in groups:
        if (whole := _array(parts, d)) is not None:
            last[whole] = max(level[d], last.get(whole, 0))
    for d in groups:
        if (whole := _array(parts, d)) is not None:
            level[d] = last[whole]
        if d.kind != "loop" or d.stored or not d.outputs or isinstance(d.anchor, ops.OF_LINES):
            out.append(d)
            continue
        shape = d.outputs[0].type.dims
        copies = isinstance(d.anchor, ops.Stored) and d.anchor.copy
        slot = hosts.setdefault((level[d], shape, copies), [])
        whole = _array(parts, d)
        host = next((h for h in slot if _worth(h, d, reads) or (
            whole is not None and _array(parts, h) is whole)), None)
        if host is None:
            slot.append(d)
            out.append(d)
        else:
            host.ops.update(d.ops)
            host.at.update(d.at)
            host.outputs += d.outputs
            reads[host] = tuple(dict.fromkeys((*reads[host], *reads[d])))
    return out


def _array(parts: Mapping[Op, Op], d: Draft) -> Op | None:
    return None if d.anchor is None else parts.get(d.anchor)


def _worth(host: Draft, other: Draft, reads: dict[Draft, tuple[Value, ...]]) -> bool:
    if len(host.outputs) >= MAX_OUTPUTS:
        return False
    small = math.prod(v.size for v in host.domain) <= 4096
    return small or bool(set(reads[host]) & set(reads[other]))
