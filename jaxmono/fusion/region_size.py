"""Regions that the compiler would take long for: several kernels in place of one.

    a UNet of 346 contractions, 78 of them different      ──►   11 kernels, one behind the other

NVRTC takes about as long as the text is, and that is as long as the program has different parts:
BERT's twelve layers are written once. Of a region with many, kernels are compiled side by side,
and a second text (codegen/retries.py) is only one of a part. What it costs is a launch, where a
grid barrier would be: nothing that has a kernel for long.

A region is cut into halves of about as much text, and these again: where equal layers are all in
one of them, since what both halves have is compiled twice. Of such cuts the one is taken where the
least is alive. What crosses is divided anew afterwards (region_cut.py).

    forward x 12 | head, backward | backward x 11 | embeddings     BERT-base's training step: 9351
            2789             3950            3499         2891     lines are 13129 in four kernels
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence

from jaxmono.fusion.demand import is_view
from jaxmono.fusion.plan import Device
from jaxmono.fusion.region_order import when_ready
from jaxmono.fusion.region_time import shortest_us
from jaxmono.hlo import ops
from jaxmono.hlo.ir import Graph, Op, Value

_LINES, _LINES_OTHER = 90, 17
"""Of a kernel's text, of each different contraction and of each other op. So counted and in truth:
ResNet-50 b32 3933 and 3930, GoogLeNet b32 9049 and 7496, Inception v3 b32 7397 and 8038,
BERT-base's training step 9351 and 11414, Stable Diffusion's UNet 16171 and 15247, BERT-base b1
1786 and 1544."""
NOTE = "begins where it does because a kernel of this and what is in front of it would take the " \
    "compiler longer than both"
"""Of a kernel that `divided` began."""
MOST_LINES = 3000
"""Of a kernel, about: NVRTC takes 5 s of a core for BERT-base's, 170 for the UNet's."""
LEAST_US = 100.0
"""That a part would take at the GPU's full rates, in truth two to five times as long: a launch more
is less than 1 % of it (ResNet-50 b32 took 971 us of an H200 as one kernel, 972 as two)."""
_ASIDE = 0.25
"""How much longer than `MOST_LINES` a kernel may be."""
_GAIN = 0.9
"""Of a region's lines, which the longer half may have."""
_NEAR = 0.1
"""How much longer than the best one that half may be where less is alive."""
_SIDE_BY_SIDE = 1.15
"""Of a region's time but for what it reads, which its halves may take one behind the other.
Networks beside each other share stages: CLIP's two, whose kernel at batch 1 takes as long as its
stages, stay together; at batch 32, where products take longer, two took 0.97 of the time."""


def divided(graph: Graph, members: Sequence[int], device: Device) -> list[list[int]]:
    """The ops of a region, as one or several regions, each of which reads of earlier ones only.
    ``members``: positions in ``graph.ops``, ascending.
    """
    return [sorted(half) for half in _halves(graph, when_ready(graph, members), device)]


def _halves(graph: Graph, members: list[int], device: Device) -> list[list[int]]:
    at = _cut(graph, members, device)
    return [*_halves(graph, members[:at], device), *_halves(graph, members[at:], device)] \
        if at else [members]


def _cut(graph: Graph, members: Sequence[int], device: Device) -> int:
    """How many of the ops the first half takes; 0 for all of them."""
    own = [graph.ops[i] for i in members]
    lines = _lines(graph, own)
    if lines[-1] < (1 + _ASIDE) * MOST_LINES:
        return 0
    behind, (first, rest) = _lines(graph, own[::-1])[::-1], shortest_us(own, device)
    before, after = shortest_us(own, device, moved=False)
    longer = {at: n for at in range(1, len(own)) if min(first[at], rest[at]) >= LEAST_US
              and before[at] + after[at] <= _SIDE_BY_SIDE * before[-1]
              and (n := max(lines[at - 1], behind[at])) <= _GAIN * lines[-1]}
    if not longer:
        return 0
    most, alive = (1 + _NEAR) * min(longer.values()), _alive(graph, own)
    return min((alive[at], at) for at, n in longer.items() if n <= most)[1]


def _lines(graph: Graph, own: Sequence[Op]) -> list[int]:
    """About, what the text has so far, behind each op; none for an op like an earlier one."""
    seen: set[tuple[object, ...]] = set()
    out, total = [], 0
    for o in own:
        if (kind := _kind(graph, o)) not in seen:
            seen.add(kind)
            total += _of(o)
        out.append(total)
    return out


def _of(o: Op) -> int:
    if isinstance(o, ops.DotGeneral | ops.Convolution):
        return _LINES
    return 0 if is_view(o) or isinstance(o, ops.Constant | ops.Iota) \
        else _LINES_OTHER + sum(_of(x) for g in o.subgraphs for x in g.ops)


def _kind(graph: Graph, o: Op) -> tuple[object, ...]:
    """What an op is, and what its operands are: equal in equal layers."""
    return _alone(o), *(_alone(graph.producer[v]) if v in graph.producer else () for v in o.inputs)


def _alone(o: Op) -> tuple[object, ...]:
    inside = tuple((type(x), getattr(x, "kind", "")) for g in o.subgraphs for x in g.ops)
    strides = str(o.attributes) if isinstance(o, ops.Convolution) else ""
    return (type(o), getattr(o, "kind", ""), inside, strides, tuple(v.type for v in o.inputs),
            tuple(v.type for v in o.results))


def _alive(graph: Graph, own: Sequence[Op]) -> list[int]:
    """Bytes that are made before each op and read by it or behind it."""
    made = {r: at for at, o in enumerate(own) for r in o.results}
    last = {v: at for at, o in enumerate(own) for v in _roots(graph, o) if v in made}
    change = [0] * (len(own) + 1)
    for v, at in last.items():
        change[made[v] + 1] += v.type.nbytes
        change[at + 1] -= v.type.nbytes
    return list(itertools.accumulate(change[:-1]))


def _roots(graph: Graph, o: Op) -> Iterator[Value]:
    """What an op reads, of views what these are of."""
    if is_view(o):
        return
    for v in o.uses:
        while (maker := graph.producer.get(v)) is not None and is_view(maker):
            v = maker.inputs[0]
        if v.type.is_static:
            yield v
