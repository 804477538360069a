"""Contractions whose results are only read in windows: a pooling that nobody stores whole rows for.

    y = relu(dot(x, w) + b)   [n, 2h, 2w, c]       y' = relu(dot(x', w) + b)   four rows of m each
    z = max(y[:, 0::2, 0::2], y[:, 0::2, 1::2], ──► z  = max of the four        the same stage
            y[:, 1::2, 0::2], y[:, 1::2, 1::2])

`order_rows` puts the rows of the left operand that a window has next to each other (an index, not
a copy), so that a tile has whole windows. `place_window` lets the slices, and with them what comes
behind, join the contraction's draft: an element of its domain then takes several neighbouring rows
of m. y is never stored: of VGG-16 b32 that is 392 MB written, read and pooled in five stages.
"""

from __future__ import annotations

import itertools
import math

from jaxmono.fusion.dots import dot_dims
from jaxmono.fusion.draft import JOINABLE, Draft, State, depths
from jaxmono.fusion.indexing import Index, Var
from jaxmono.fusion.sliced import is_read_whole, join_slices, place_in, sliced_draft
from jaxmono.hlo import ops
from jaxmono.hlo.ir import Graph, Op, Value
from jaxmono.hlo.rewrite import Builder

TAPS = (2, 4, 8)
"""Elements of a window: of the 16 rows that a warp has at least, whole windows."""
MIN_ROWS = 64
"""Fewer are streamed past the weights, or multiplied with operands swapped."""


def taps_of(graph: Graph, value: Value) -> tuple[ops.Slice, ...]:
    """What reads ``value``, if that is one slice for every place in windows that cover it (each
    with the window's size as strides); empty if not."""
    users = graph.users.get(value, ())
    slices = tuple(u for u in users if isinstance(u, ops.Slice))
    if not slices or len(slices) != len(users) or value in graph.outputs:
        return ()
    window, shape = slices[0].strides, value.type.dims
    if len(slices) != math.prod(window) or any(n % s for n, s in zip(shape, window, strict=True)):
        return ()
    places = set(itertools.product(*map(range, window)))
    quotient = tuple(n // s for n, s in zip(shape, window, strict=True))
    whole = all(o.strides == window and o.result.type.dims == quotient for o in slices)
    return slices if whole and {o.start_indices for o in slices} == places else ()


# ---- rows in the order of windows --------------------------------------------------------------


def order_rows(graph: Graph) -> Graph:
    """``graph`` with the rows of such contractions in the order of their windows; itself if it has
    none."""
    windows: dict[Op, tuple[int, ...]] = {}
    depth = depths(graph)
    for value in dict.fromkeys(o.operand for o in graph.ops if isinstance(o, ops.Slice)):
        slices = taps_of(graph, value)
        if len(slices) not in TAPS or not _meet(graph, slices):
            continue
        dot, dims = _contraction(graph, value, depth)
        if dot is not None and _takes(dot, window := _permuted(slices[0].strides, dims)) \
                and _between(graph, dot, value, depth):
            windows[dot] = window
    if not windows:
        return graph
    out: list[Op] = []
    for o in graph.ops:
        if isinstance(o, ops.DotGeneral) and o in windows:
            out.extend(_ordered(o, windows[o]))
        else:
            out.append(o)
    return Graph(graph.inputs, tuple(out), graph.outputs, graph.name)


def _contraction(graph: Graph, value: Value, depth: dict[Value, int],
                 ) -> tuple[ops.DotGeneral | None, tuple[int, ...]]:
    """The contraction that ``value`` is an element-wise function of, and which dimension of its
    result each dimension of ``value`` is."""
    dims = tuple(range(value.type.rank))
    while True:
        o = graph.producer.get(value)
        if isinstance(o, ops.DotGeneral):
            return o, dims
        if isinstance(o, ops.Transpose):
            dims = tuple(o.permutation[d] for d in dims)
        elif not isinstance(o, (ops.Elementwise, ops.Convert)):
            return None, dims
        shape = o.results[0].type.rank
        above = [v for v in o.inputs if depth.get(v, 0) == depth[value] and v.type.rank == shape]
        if not above:
            return None, dims
        value = above[0]


def _between(graph: Graph, dot: ops.DotGeneral, value: Value, depth: dict[Value, int]) -> bool:
    """Whether what is made of the contraction before ``value`` is read on the way to it only."""
    inside, todo = {value: None}, [value]
    while todo:
        o = graph.producer[todo.pop()]
        if o is dot:
            continue
        for v in o.inputs:
            if depth.get(v, 0) == depth[value] and v not in inside:
                inside[v] = None
                todo.append(v)
    return all(v not in graph.outputs and all(r in inside for u in graph.users.get(v, ())
                                              for r in u.results)
               for v in inside if v is not value)


def _permuted(window: tuple[int, ...], dims: tuple[int, ...]) -> tuple[int, ...]:
    out = [1] * len(window)
    for size, d in zip(window, dims, strict=True):
        out[d] = size
    return tuple(out)


def _takes(dot: ops.DotGeneral, window: tuple[int, ...]) -> bool:
    """Whether the windows are of rows only."""
    rows = len(dot_dims(dot).lhs_free)
    return not dot.lhs_batch and dot_dims(dot).m >= MIN_ROWS and math.prod(window[rows:]) == 1


def _ordered(o: ops.DotGeneral, window: tuple[int, ...]) -> list[Op]:
    """[n, 2h, 2w, k] -> [n, h, w, 2, 2, k], and its result back again."""
    b, free, shape = Builder(o.loc), dot_dims(o).lhs_free, o.lhs.type.dims
    size = dict(zip(free, window[:len(free)], strict=True))
    split: list[int] = []  # of the operand, each windowed dimension in two
    at: dict[int, int] = {}
    for d, n in enumerate(shape):
        at[d] = len(split)
        split += [n // size[d], size[d]] if size.get(d, 1) > 1 else [n]
    inner = [at[d] + 1 for d in free if size[d] > 1]
    order = [*(at[d] for d in free), *inner, *(at[d] for d in o.lhs_contract)]
    lhs = b.transpose(b.reshape(o.lhs, split), order)
    rows = len(free) + len(inner)
    contract = tuple(range(rows, len(order)))
    made = b.dot_general(lhs, o.rhs, batch=((), o.rhs_batch), contract=(contract, o.rhs_contract),
                         dtype=o.result.type.dtype, precision=o.precision, algorithm=o.algorithm)
    back: list[int] = []
    place = iter(range(len(free), rows))
    for i, d in enumerate(free):
        back += [i, next(place)] if size[d] > 1 else [i]
    back += range(rows, made.type.rank)
    together = b.transpose(made, back)
    b.append(ops.Reshape(results=o.results, loc=o.loc, operand=together))
    return b.ops


# ---- windows in a contraction's draft ----------------------------------------------------------


def place_window(state: State, op: Op) -> bool:
    """Lets all slices of what ``op`` slices join the contraction's draft that made it; False if
    that cannot be. From then on nothing else of the draft has a place."""
    found = None if "window_rows" in state.without else sliced_draft(state, op)
    if found is None:
        return False
    draft, value = found
    slices = taps_of(state.graph, value)
    if not slices or not _meet(state.graph, slices):
        return False
    b, m, n = draft.domain
    taps = len(slices)
    rows = Var("g", m.size // taps)
    places = [tuple(i.substitute({m: Index.of(rows) * taps + t}) for i in draft.at[value])
              for t in range(taps)]
    index = place_in(slices, places) if rows.size * taps == m.size else None
    reason = _refusal(state, draft, value, taps)
    if reason or index is None:
        state.refused[f"the windows of {op.loc} are not pooled where they are computed: "
                      f"{reason or 'they are not of neighbouring rows'}"] = None
        return False
    draft.taps = taps
    join_slices(state, draft, slices, index, (b, rows, n))
    return True


def _refusal(state: State, draft: Draft, value: Value, taps: int) -> str:
    """Why a contraction's results are stored before they are pooled; empty if they need not be."""
    if taps not in TAPS:
        return f"they have {taps} elements; a warp has whole windows of {', '.join(map(str, TAPS))}"
    if draft.domain[1].size < MIN_ROWS:
        return f"{draft.domain[1].size} rows are few; other kernels of products are faster there"
    if is_read_whole(state, draft, value):
        return "the contraction's results are also read, or written, as they are"
    return ""


def _meet(graph: Graph, slices: tuple[ops.Slice, ...]) -> bool:
    """Whether element-wise ops make values of all slices at once, at most half as many, and nothing
    else reads what is made of some of them."""
    made = {o.result: frozenset([o]) for o in slices}
    whole = 0
    for o in graph.ops:
        some = [made[v] for v in o.inputs if len(made.get(v, slices)) < len(slices)]
        if not some or o in slices:
            continue
        if not isinstance(o, JOINABLE):
            return False
        made[o.result] = frozenset().union(*some)
        whole += len(made[o.result]) == len(slices)
    partly = (v for v, of in made.items() if len(of) < len(slices))
    return 0 < 2 * whole <= len(slices) and not any(v in graph.outputs for v in partly)
