"""The ops of a region in the order in which they could be done, where that is to be cut.

    program     gradients of all layers, then all updates        g2  g1  w1 - a * g1  w2 - a * g2
    ready       each update as soon as there is its gradient     g2  w2 - a * g2  g1  w1 - a * g1

An update belongs to the kernel that makes the gradient: in the epilogue of its product. In one
behind it gradients would cross (0.9 GB of BERT-base's training step, written and read).
"""

from __future__ import annotations

from collections.abc import Sequence

from jaxmono.fusion.loops import ONE_ELEMENT
from jaxmono.hlo import ops
from jaxmono.hlo.ir import Graph, Op

_LIGHT = (*ONE_ELEMENT, ops.BroadcastInDim)


def when_ready(graph: Graph, members: Sequence[int]) -> list[int]:
    """Element-wise ops that nothing but results of the program is made of come right behind the
    last other op that they need, or, if they need none, in front of what needs them.

    Args:
      members: positions in ``graph.ops``, ascending.
    """
    place: dict[Op, int] = {}
    own = {graph.ops[i]: i for i in members}
    last = {o for o in own if isinstance(o, _LIGHT)}
    for o in reversed(own):
        if o in last and any(u in own and u not in last for r in o.results
                             for u in graph.users.get(r, ())):
            last.discard(o)
    for o, i in own.items():
        if o not in last:
            place[o] = i
            continue
        before = [place[m] for v in o.inputs
                  if (m := graph.producer.get(v)) in own and m in place]
        if before:
            place[o] = max(before)
    for o in reversed(own):
        if o not in place:
            after = [place[u] for r in o.results for u in graph.users.get(r, ()) if u in own]
            place[o] = min(after, default=own[o])
    return sorted(members, key=lambda i: (place[graph.ops[i]], i))
