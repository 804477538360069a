"""Operands of contractions in the order that the generator likes: what was computed last, left.

    dot(w, x) -> transpose(dot(x, w))        w: weights or an earlier value, x: later

Rows of a tile are then rows of the activations: a norm can be folded into them, probabilities
are the left operand of the second contraction of attention, and results are written with their
features next to each other. The transpose is only an index for whoever reads the result.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator

from jaxmono.fusion.dots import dot_dims
from jaxmono.fusion.draft import depths
from jaxmono.fusion.support import converts_stored, plain_algorithm
from jaxmono.fusion.widened import stored_conversion
from jaxmono.hlo import ops
from jaxmono.hlo.ir import Graph, Op, Value
from jaxmono.hlo.types import TensorType

FEW_ROWS = 8
"""Rows of activations for which weights are streamed (codegen/dot_gemv.py)."""


def orient(graph: Graph) -> Graph:
    """``graph`` with contractions swapped; itself if none needs it."""
    depth = depths(graph)
    weights = set(graph.inputs)
    out: list[Op] = []
    changed = False
    for o in graph.ops:
        if (isinstance(o, ops.Transpose) or converts_stored(o)) and o.uses[0] in weights:
            weights.update(o.results)
        if isinstance(o, ops.DotGeneral) and (
                _backwards(graph, o, depth, weights) or _turned(graph, o, depth)) \
                and plain_algorithm(o.algorithm, o.lhs.type.dtype):
            out.extend(_swapped(o))
            changed = True
        else:
            out.append(o)
    return Graph(graph.inputs, tuple(out), graph.outputs, graph.name) if changed else graph


def _backwards(graph: Graph, o: ops.DotGeneral, depth: dict[Value, int],
               weights: set[Value]) -> bool:
    """Whether the right operand is the later one, and what it keeps are rows; of equals the one
    with few rows, if the other one is a matrix that is an input (``w @ x``), or beside weights that
    are stored in another type, which products convert where they are right; the smaller of two.

    The gradient of weights, x^T dy, keeps the features of both: swapped it would be written, with
    the update behind it, column by column. (Stages with such products were 14 of the 30 ms of
    wav2vec2's training step on an H200.) Nor products of a batch that are read as they lie: what
    the chunks of a text find in a state space, [chunk, place, (head, feature)].
    """
    left, right = depth.get(o.lhs, 0), depth.get(o.rhs, 0)
    rows = o.rhs.type.rank - 1 in o.rhs_contract
    dims = dot_dims(o)
    if left != right:
        straight = o.lhs_batch and len(o.lhs_contract) == 1 and min(dims.m, dims.n) > 1 \
            and _read_straight(graph, o.result)
        return left < right and rows and not straight
    if rows and stored_conversion(graph, o.lhs) is not None:
        return dims.n < dims.m or stored_conversion(graph, o.rhs) is None
    return o.lhs in weights and len(dims.lhs_free) == 1 and dims.n <= FEW_ROWS < dims.m


def _turned(graph: Graph, o: ops.DotGeneral, depth: dict[Value, int]) -> bool:
    """Whether all that read products of a batch want what the later, left operand keeps next to
    each other: the gradient of attention's values, which is made as [.., features, keys], what a
    Mixer's tokens give, hidden[batch, features, n] times weights[n, tokens], or, of equals, what
    all experts make of some rows, which einsum writes as [experts, features, rows]. (Of 8 for 256
    rows the first stage took 95 us of an H200.)

    Written so, with 149 keys, its readers had no 16 bytes of a row next to each other: a layer of
    wav2vec2's training step spent 240 of its 680 us in two stages of such products.
    """
    last, free = o.result.type.rank - 1, len(dot_dims(o).lhs_free)
    kept = len(o.lhs_batch) + free - 1
    left, right = depth.get(o.lhs, 0), depth.get(o.rhs, 0)
    experts = left == right and free > 1 and o.rhs_contract == (o.rhs.type.rank - 1,)
    return len(o.lhs_batch) <= kept < last and (left > right or experts) and kept > 0 \
        and _read_turned(graph, o.result, kept)


def _read_turned(graph: Graph, v: Value, last: int) -> bool:
    """Whether all that read ``v``, and what it becomes element by element, want ``last`` last."""
    return all(graph.users.get(x) and x not in graph.outputs and all(
        isinstance(u, ops.Transpose) and u.permutation[-1] == last for u in readers)
        for x, readers in _becomes(graph, v, _by_element))


def _read_straight(graph: Graph, v: Value) -> bool:
    """Whether ``v``, and what it becomes op by op, is a result, or is read along its rows."""
    def along(x: Value, u: Op) -> bool:
        last = x.type.rank - 1
        return (isinstance(u, ops.Reduce) and last in u.dimensions) or (
            isinstance(u, ops.DotGeneral) and u.lhs is x and not u.lhs_batch
            and u.lhs_contract == (last,))

    def goes_on(x: Value, u: Op) -> bool:
        return _by_element(x, u) or (isinstance(u, ops.Reshape) and u.result.type.rank > 0
                                     and u.result.type.dims[-1] % x.type.dims[-1] == 0)

    return all(along(x, u) for x, readers in _becomes(graph, v, goes_on) for u in readers)


def _by_element(x: Value, u: Op) -> bool:
    del x
    return isinstance(u, ops.Elementwise | ops.Convert)


def _becomes(graph: Graph, v: Value, goes_on: Callable[[Value, Op], bool],
             ) -> Iterator[tuple[Value, list[Op]]]:
    """``v`` and what it becomes, each once, with those of its readers that make nothing of it that
    counts as it (``goes_on``)."""
    work, seen = [v], set[Value]()
    while work:
        x = work.pop()
        if x in seen:
            continue
        seen.add(x)
        readers = graph.users.get(x, ())
        work += [r for u in readers if goes_on(x, u) for r in u.results]
        yield x, [u for u in readers if not goes_on(x, u)]


def _swapped(o: ops.DotGeneral) -> tuple[Op, ...]:
    dims = dot_dims(o)
    nb, nl, nr = len(o.lhs_batch), len(dims.lhs_free), len(dims.rhs_free)
    shape = o.result.type.shape
    made = Value(TensorType((*shape[:nb], *shape[nb + nl:], *shape[nb:nb + nl]),
                            o.result.type.dtype), o.result.hint)
    dot = dataclasses.replace(
        o, results=(made,), lhs=o.rhs, rhs=o.lhs, lhs_batch=o.rhs_batch, rhs_batch=o.lhs_batch,
        lhs_contract=o.rhs_contract, rhs_contract=o.lhs_contract,
        precision=(o.precision[1], o.precision[0]))
    if 0 in (nl, nr):  # one side has no dimensions of its own: nothing moves
        return (dataclasses.replace(dot, results=o.results),)
    back = (*range(nb), *range(nb + nr, nb + nr + nl), *range(nb, nb + nr))
    return dot, ops.Transpose(results=o.results, loc=o.loc, operand=made, permutation=back)
