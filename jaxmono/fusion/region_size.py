"""Regions that the compiler would take minutes for: several kernels in place of one.

    a UNet of 346 contractions, 78 of them different      ──►   6 kernels, one behind the other

NVRTC takes about as long as the text is, and that is as long as the program has different parts:
BERT's twelve layers are written once. Of a region with many, kernels are compiled side by side,
and a second text (codegen/retries.py) is only one of a part. What it costs is a launch, where a
grid barrier would be: nothing that has a kernel for long.

A kernel takes its share of the text, in the order of the program, and of what has none further on
as much as there is:

    forward x 12 | head, backward | backward x 11 | updates      BERT-base's step, lines of the text
           2789    2400             2236            2550

Of cuts with that the one is taken where the least is alive. What crosses is divided anew afterwards
(region_cut.py).
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence

from jaxmono.fusion.demand import is_view
from jaxmono.fusion.plan import Device
from jaxmono.fusion.region_time import shortest_us
from jaxmono.hlo import ops
from jaxmono.hlo.ir import Graph, Op, Value

_LINES, _LINES_OTHER = 90, 17
"""Of a kernel's text, of each different contraction and of each other op. So counted and in truth:
ResNet-50 b32 3933 and 3930, GoogLeNet b32 9049 and 7496, Inception v3 b32 7397 and 8038,
BERT-base's training step 9351 and 11414, Stable Diffusion's UNet 16171 and 15247, BERT-base b1
1786 and 1544."""
NOTE = "begins where it does because a kernel of this and what is in front of it would take the " \
    "compiler minutes"
"""Of a kernel that `divided` began."""
MOST_LINES = 2500
"""Of a kernel, about: NVRTC takes 5 s of a core for BERT-base's, 170 for the UNet's."""
LEAST_US = 50.0
"""That a part would take at the GPU's full rates, in truth two to five times as long: a launch more
is less than 2 % of it."""
_ASIDE = 0.25
"""How much longer than its share a kernel may be; of `MOST_LINES`, what it has at least."""
_NEAR = 0.3
"""Of the share, lines that may be left for the next kernels where less is alive."""


def divided(graph: Graph, members: Sequence[int], device: Device) -> list[list[int]]:
    """The ops of a region, as one or several regions, each of which reads of earlier ones only.
    ``members``: positions in ``graph.ops``, ascending.
    """
    parts: list[list[int]] = []
    left = list(members)
    while at := _cut(graph, left, device):
        parts.append(left[:at])
        left = left[at:]
    return [*parts, left]


def _cut(graph: Graph, members: Sequence[int], device: Device) -> int:
    """How many of the ops the first kernel takes; 0 for all of them."""
    own = [graph.ops[i] for i in members]
    lines = _lines(graph, own)
    if lines[-1] < (1 + _ASIDE) * MOST_LINES:
        return 0
    behind, (first, rest) = _lines(graph, own[::-1])[::-1], shortest_us(own, device)
    legal = [at for at in range(1, len(own)) if min(first[at], rest[at]) >= LEAST_US
             and min(lines[at - 1], behind[at]) >= _ASIDE * MOST_LINES]
    if not legal:
        return 0
    share = lines[-1] / math.ceil(lines[-1] / MOST_LINES)
    # One op, a loop, may have more than that.
    most = max((1 + _ASIDE) * share, min(lines[at - 1] for at in legal))
    fit = [at for at in legal if lines[at - 1] <= most]
    least, alive = min(behind[at] for at in fit), _alive(graph, own)
    return min((alive[at], at) for at in fit if behind[at] <= least + _NEAR * share)[1]


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
