"""Arrays that lie together in one buffer, each written by a group of its own.

    ys = stacked(h1, h2, h3)       the groups that make h1, h2, h3 write thirds of ys; none copies
"""

from __future__ import annotations

from jaxmono.hlo import ops
from jaxmono.hlo.ir import Graph, Value


def stacks(graph: Graph) -> dict[Value, tuple[Value, ...]]:
    """What each such array consists of, in order."""
    return {o.result: o.args for o in graph.ops if isinstance(o, ops.Stacked)}
