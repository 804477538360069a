"""What floats after growing: inlined into its consumers, or stored by a loop of its own.

An element-wise chain outside every draft is recomputed by whoever needs it, unless that repeats
more work than a stage costs. Each stored value becomes a loop draft (MonoNN's EWS); loops over
equal spaces in one stage that read the same buffers are merged.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Hashable, Mapping, Sequence

from jaxmono.fusion import cost
from jaxmono.fusion.back_to_back import is_pair
from jaxmono.fusion.chains import CAP, SAME_ELEMENT, Chain, chains, deep
from jaxmono.fusion.dots import dot_dims
from jaxmono.fusion.draft import IN_MEMORY, STORED, Draft, State, forward
from jaxmono.fusion.early import TILE, given, is_early, summed
from jaxmono.fusion.indexing import Index, as_map, variables
from jaxmono.fusion.plan import Device
from jaxmono.fusion.stacks import in_turn
from jaxmono.fusion.support import matrix_dtype
from jaxmono.fusion.widened import left_to_products
from jaxmono.hlo import ops
from jaxmono.hlo.ir import Graph, Op, Value
from jaxmono.hlo.types import FOUR_BITS

MAX_INLINE_OPS = 192
"""A longer chain is not copied into several groups, unless it is to be computed again where it is
read (recompute.py): that ends at values that are stored, which chains do not know yet, and is
copied up to `MAX_ALONE`."""

MAX_ALONE = 4096
"""In a program with scans, nor is a longer one computed by a single group. Each level of a scan's
gradient takes several elements of the level before: of 48 x 4 elements one loop was 2.7 MB of text.
"""

COPIED_ROWS = 65
"""Rows of a product from which on its operands have to be copied to shared memory as they are, if
it is to run on warpgroups (codegen/dot_wgmma.py); fewer can be computed on the way."""

COMPUTED_K = 512
"""Elements of a row in front of a pair of products up to which it may be computed on the way: the
other families of codegen (attention.py) have room for no more than some hundred elements more."""

_WAITING = 2.0
"""Of the time that the elements of an operand take to compute, what products of a batch lose that
wait for them. Decays of Mamba-2, exp(a[q] - a[k]) times products, 96 x 256 x 256 of them, took 53
us of an H200 on the way to their products, XLA's whole layer 67. Of others nobody measured it."""

_VECTOR = 4
"""Neighbours that a thread looks up together."""

ONE_ELEMENT = (*SAME_ELEMENT, ops.Constant, ops.Iota, ops.Reshape, ops.Transpose)
"""Of which an element is computed of one element of each operand, wherever that is."""

STENCIL_LOADS = 9
"""Of an element, its factors among them, from which on it is a stencil's: 3 x 3 taps of a depthwise
convolution are 18, those of a pool 9. With such pools on the way to their products Inception-v3 b1
took 364 us on an H100, with loops of their own 320; GoogLeNet b1 176 and 170, b32 726 and 707."""


def materialise(state: State) -> None:
    """Makes a loop draft for every floating value that is to live in a buffer."""
    apart = deep(state.graph, _holders(state))
    made, early = _decided(state, frozenset(), apart)
    if early:  # known when all readers are, whose chains are no longer as long
        made, _ = _decided(state, early, apart)
    state.drafts.extend(made)


def _decided(state: State, early: frozenset[Op], apart: frozenset[Op],
             ) -> tuple[list[Draft], frozenset[Op]]:
    """The loop drafts, which store ``early`` and ``apart`` in any case; and which of theirs are
    early."""
    holders = _holders(state)
    outputs = state.outputs_set()
    behind, light = chains(state.graph, holders)
    copied = chains(state.graph, holders, early | apart)[0] if early or apart else behind
    settled = given(state.graph, holders)
    tables = given(state.graph, holders, inputs=False)
    taps = _taps(state, holders)
    contractions = frozenset(id(d) for d in state.drafts if d.kind in ("dot", "attention"))
    tiles = summed(state.graph, holders)
    evals: dict[Value, int] = {}
    sinks: dict[Value, frozenset[int]] = {}
    slower = _slower(state, holders, behind)
    joins, wanted = _joins(state.graph), set[Value]()
    on_the_way = left_to_products(state.graph, state.device, holders)
    whole = in_turn(state.graph)
    scans = frozenset(map(id, whole.values()))
    turns = frozenset(id(o) for o in whole.values() if isinstance(o, ops.Stored))
    made: list[Draft] = []
    hosts: dict[int, Draft] = {}
    for op in reversed(state.graph.ops):
        if isinstance(op, IN_MEMORY):
            continue
        if op in holders:
            for d in holders[op]:
                _spread_grouped(op, d, evals, sinks)
            continue
        # Of a view: decide at what it looks at.
        worth = op not in state.views and op not in on_the_way and cost.weight(op) > 0 \
            and op.results[0].type.dtype not in FOUR_BITS \
            and not isinstance(op, ops.Pad) and not _is_looked_up(op, state.graph) and (
            op in early or op in apart
            or (not _is_free(op, light) and (
                _repeats(op, evals, sinks, behind, copied, scans, turns, state, holders)
                or is_early(op, sinks, behind, settled, tables, tiles, state.device)))
            or _is_awaited(op, slower, state.device)
            or _is_stencil(op, taps, sinks, contractions))
        parts = _parts(op, behind, slower) if worth and op in joins else None
        if any(r in outputs or r in wanted for r in op.results) or op in state.in_place \
                or isinstance(op, STORED) or (worth and parts is None):
            draft = _loop(state, op)
            host = hosts.setdefault(op.group, draft) if isinstance(op, ops.Stored) and op.group \
                else draft
            if host is draft:
                made.append(draft)
            else:
                _extend(host, draft)
            # What is stored twice is computed once, and the parts of an array are: such loops are
            # merged.
            into = id(whole.get(op, op.operand)) if isinstance(op, ops.Stored) else id(op)
            size = _size(op) // len(op.uses) if _is_stack(op) else _size(op)
            for v in op.uses:
                _need(evals, sinks, v, size, frozenset({into}))
        else:
            wanted.update(parts or ())
            for v in op.uses:
                slower[v] = slower.get(v, 0.0) + max(
                    (slower.get(r, 0.0) for r in op.results), default=0.0)
            times = max((evals.get(r, 0) for r in op.results), default=0)
            into = frozenset[int]().union(*(sinks.get(r, frozenset()) for r in op.results))
            if times:
                alone = contractions.isdisjoint(into)
                for v in op.uses:  # slices of one value take different elements of it
                    share = _share(op, v, times, state.graph) if alone else times
                    _need(evals, sinks, v, share, into,
                          isinstance(op, (ops.Slice, ops.Pad)))
    return made[::-1], frozenset(
        d.anchor for d in made if d.anchor is not None
        and is_early(d.anchor, sinks, behind, settled, tables, tiles, state.device))


def _holders(state: State) -> dict[Op, list[Draft]]:
    out: dict[Op, list[Draft]] = {}
    for d in state.drafts:
        for o in (*d.ops, *d.folded):
            out.setdefault(o, []).append(d)
    return out


def _size(op: Op) -> int:
    if isinstance(op, ops.DynamicUpdateSlice | ops.Accumulate):
        return op.update.type.size
    if isinstance(op, ops.Fourier):  # an element of the argument is read once, of a half twice
        return op.args[0].type.size * (1 + op.half)
    return max((r.type.size for r in op.results), default=0)


def _is_stack(op: Op) -> bool:
    """Whether neighbours are of several operands in turn, as the parts of a complex number are: a
    thread makes all of them, and what they share once (codegen/alternating.py)."""
    return isinstance(op, ops.Concatenate) and len(op.args) in (2, 4) \
        and op.dimension == op.result.type.rank - 1 \
        and all(v.type.dims[-1] == 1 for v in op.args)


def _share(op: Op, v: Value, times: int, graph: Graph) -> int:
    """How many elements of an operand are computed for so many of a result that no product reads:
    each part of what is joined in its place, indices of rows once for a vector's elements.

    Of a part that others read as well the whole is counted, so that it is stored: with a pool made
    again wherever it is joined DenseNet-121 b1 took 21 us more of 384 on an H200.
    """
    if isinstance(op, ops.Concatenate) and len(graph.users.get(v, ())) == 1:
        return times * v.type.size // max(op.result.type.size, 1)
    if isinstance(op, ops.Gather) and v is op.start_indices and op.offset_dims \
            and op.offset_dims[-1] == op.result.type.rank - 1:
        return times // math.gcd(_VECTOR, op.slice_sizes[-1])
    return times


def _need(evals: dict[Value, int], sinks: dict[Value, frozenset[int]], v: Value, times: int,
          into: frozenset[int], elsewhere: bool = False) -> None:
    old = sinks.get(v, frozenset())
    if into <= old and not elsewhere:  # the same group reads it once more: it is at hand there
        evals[v] = max(evals.get(v, 0), times)
    else:
        evals[v] = evals.get(v, 0) + times
    sinks[v] = old | into


def _spread_grouped(op: Op, draft: Draft, evals: dict[Value, int],
                    sinks: dict[Value, frozenset[int]]) -> None:
    into = frozenset({id(draft)})
    if isinstance(op, ops.DotGeneral):
        dims = dot_dims(op)
        _need(evals, sinks, op.lhs, op.lhs.type.size * -(-max(dims.n, 1) // TILE), into)
        _need(evals, sinks, op.rhs, op.rhs.type.size * -(-max(dims.m, 1) // TILE), into)
        return
    times = op.inputs[0].type.size if isinstance(op, ops.Reduce) else _size(op)
    for v in op.uses:
        _need(evals, sinks, v, times, into)


def _taps(state: State, holders: Mapping[Op, Sequence[Draft]],
          ) -> dict[Value, frozenset[Hashable]]:
    """Per floating value: different slices, or slices of slices, that one element of it is computed
    of, not many more than `STENCIL_LOADS`."""
    out: dict[Value, frozenset[Hashable]] = {}
    none = frozenset[Hashable]()
    for op in state.graph.ops:
        if op in holders or isinstance(op, STORED):
            continue
        of = [out.get(v, none) for v in op.uses]
        found = max(of, key=len, default=none)
        if not isinstance(op, ops.Concatenate) and len(found) < STENCIL_LOADS:
            found = none.union(*of)
        if isinstance(op, ops.Slice):
            found = frozenset((op, x) for x in found) or frozenset([op])
        out.update(dict.fromkeys(op.results, found))
    return out


def _is_stencil(op: Op, taps: Mapping[Value, Collection[Hashable]],
                sinks: Mapping[Value, frozenset[int]], contractions: frozenset[int]) -> bool:
    """Whether a contraction waits for elements that each take many slices, as those of a depthwise
    convolution do.

    A loop that stores them takes neighbours together, which share their loads
    (codegen/stencil_loop.py). On the way to a product they are computed one vector at a time, by
    every tile of columns again: of MobileNetV2 b1 on an H100 (7x7x960) 23 us a stage.
    """
    return any(len(taps.get(r, ())) >= STENCIL_LOADS
               and not contractions.isdisjoint(sinks.get(r, ())) for r in op.results)


def _is_free(op: Op, light: Mapping[Value, int]) -> bool:
    """Whether computing an element of positions alone (a causal mask), or of them and what its row
    shares, costs no more than reading it back would."""
    return all(r in light and light[r] <= 2 * cost.CHEAP for r in op.results)


def _repeats(op: Op, evals: dict[Value, int], sinks: dict[Value, frozenset[int]],
             behind: Mapping[Value, Chain], copied: Mapping[Value, Chain], scans: frozenset[int],
             turns: frozenset[int], state: State, holders: Collection[Op]) -> bool:
    """Whether recomputing ``op`` wherever it is needed costs more than storing it.

    ``copied``: chains that end at what is early; only their ops are copied. Lane operations are
    those of the whole chain, though. Without those of sines and cosines GPT-J and Llama (16 rows)
    would rotate queries and keys on the way to attention: fewer stages, but nobody measured them.
    ``scans``: arrays of which one group makes all parts (`stacks.in_turn`), ``turns`` among them:
    groups of trips.
    """
    device = state.device
    if _is_in_turn(op, evals, sinks, turns):
        return False
    if (own := _weight_in_scans(op, sinks, scans, state, holders)) is not None:
        return _costs_more(op, evals, own, device)
    alone = MAX_ALONE if scans else CAP
    for r in op.results:
        if r.type.rank == 0:
            continue
        extra = (evals.get(r, 0) - r.type.size) * behind[r].weight
        if op not in state.again and cost.lane_us(extra, device) > device.phase_us / 2:
            return True
        most = alone if len(sinks.get(r, ())) < 2 else \
            MAX_ALONE if op in state.again else MAX_INLINE_OPS
        if copied[r].count > most:
            return True
    return False


def _is_in_turn(op: Op, evals: Mapping[Value, int], sinks: Mapping[Value, frozenset[int]],
                turns: frozenset[int]) -> bool:
    """Whether one group of trips alone needs ``op``, each element once: a loop of its own would
    compute no less, however long the chain is."""
    return all(r in sinks and len(sinks[r]) == 1 and sinks[r] <= turns
               and (r.type.size == 1 or evals[r] <= r.type.size) for r in op.results)


def _weight_in_scans(op: Op, sinks: Mapping[Value, frozenset[int]], scans: frozenset[int],
                     state: State, holders: Collection[Op]) -> int | None:
    """Lane operations of an element from which only ``scans`` are computed: parts of arrays that
    one group makes, in order (hlo/passes/rules/blocked_scan.py). None where others read it, or
    where it is computed of several elements: of a gradient's levels there are exponentially many.

    What stands behind a broadcast is stored, as it is needed often.
    """
    if not all(sinks.get(r) and sinks[r] <= scans for r in op.results):
        return None
    todo, inside = [op], {op: None}
    while todo:
        for v in todo.pop().uses:
            o = state.graph.producer.get(v)
            if o is None or o in inside or o in holders \
                    or isinstance(o, (ops.BroadcastInDim, *STORED)):
                continue
            if not isinstance(o, ONE_ELEMENT):
                return None
            inside[o] = None
            todo.append(o)
    return sum(map(cost.weight, inside))


def _costs_more(op: Op, evals: Mapping[Value, int], weight: int, device: Device) -> bool:
    """Whether a scan that makes its elements again takes longer than one that reads them.

    They are bound by memory: Mamba's decays (an exponential each) and inputs, [b, t, width, 16],
    are made twice, in place of 400 MB that would be written and then read twice.
    """
    return any(cost.lane_us((evals.get(r, 0) - r.type.size) * weight, device)
               > cost.stored_us(r.type.nbytes, device) for r in op.results)


def _slower(state: State, holders: Mapping[Op, Sequence[Draft]], behind: Mapping[Value, Chain],
            ) -> dict[Value, float]:
    """By operand: microseconds that products take longer where it is computed on the way to them:
    they are not made by warpgroups then, and the threads that wait for elements compute nothing
    else meanwhile.

    Llama-1B's gate * up in front of a layer's last product, 128 rows: on an H200 that stage took
    29 us on the tensor cores of a warp; the bare product, which warpgroups take because its
    operands lie in memory, 17 us as a kernel of its own. Pairs of products copy their weights, and
    long rows, whatever it costs (codegen/back_to_back.py).
    """
    out: dict[Value, float] = {}
    for op in state.graph.ops if state.device.wgmma else ():
        if not isinstance(op, ops.DotGeneral):
            continue
        pair = next((d for d in holders.get(op, ()) if is_pair(d)), None)
        if pair is not None:
            made = {r for o in pair.ops for r in o.results}
            rows = max(op.inputs, key=lambda v: v.type.size)
            short = op is pair.first and dot_dims(op).k <= COMPUTED_K
            out.update((v, math.inf) for v in op.uses if v not in made and not (
                short and v is rows))
        alone = any(d.kind == "dot" for d in holders.get(op, ()))
        if alone and dot_dims(op).m >= COPIED_ROWS:
            lost = cost.dot_flops(op) / state.device.matrix_flops_per_us \
                if matrix_dtype(op) is not None else cost.exact_lost_us(op, state.device)
            for v in dict.fromkeys((op.lhs, op.rhs)):
                work = v.type.size * behind[v].weight if v in behind and op.lhs_batch else 0
                out[v] = out.get(v, 0.0) + lost + _WAITING * cost.lane_us(work, state.device)
    return out


def _is_awaited(op: Op, slower: Mapping[Value, float], device: Device) -> bool:
    """Whether products that would wait for ``op`` gain more than a stage and its bytes cost."""
    return any(slower.get(r, 0.0) > cost.stored_us(r.type.nbytes, device) for r in op.results)


def _is_looked_up(op: Op, graph: Graph) -> bool:
    """Whether each batch of products looks up its matrix: the experts' weights that a tile of rows
    needs are read where they lie."""
    if not isinstance(op, ops.Gather) or op.start_index_map != (0,) \
            or op.collapsed_slice_dims != (0,) or op.operand_batching_dims \
            or op.slice_sizes[1:] != op.operand.type.dims[1:] or op.start_indices.type.rank != 2 \
            or op.index_vector_dim != 1:
        return False
    users = graph.users.get(op.result, ())
    return bool(users) and all(
        isinstance(u, ops.DotGeneral) and (u.lhs is op.result) != (u.rhs is op.result)
        and (u.lhs_batch if u.lhs is op.result else u.rhs_batch) == (0,) for u in users)


def _parts(op: Op, behind: Mapping[Value, Chain], slower: Mapping[Value, float],
           ) -> tuple[Value, ...] | None:
    """What of a concatenation is stored if it is not; None if it better is.

    Where its larger part is in memory, products (``slower``) need not wait for a copy of that: they
    wait for the other parts alone.
    """
    computed = tuple(v for v in dict.fromkeys(op.uses) if v in behind and behind[v].weight)
    small = 2 * sum(v.type.nbytes for v in computed) <= sum(r.type.nbytes for r in op.results)
    if not computed:
        return ()
    return computed if small and any(slower.get(r, 0.0) for r in op.results) else None


def _joins(graph: Graph) -> set[Op]:
    """Concatenations whose parts begin at 16-byte boundaries of a row: loads choose the buffer.
    What only products read they copy in parts of 4 bytes as well:

        concat(encoding[rays,60], hidden[rays,256]) -> dot          rows of 632 bytes, a NeRF's
    """
    users, out, copied = graph.users, set[Op](), set[Op]()
    for op in reversed(graph.ops):
        if not isinstance(op, ops.Concatenate):
            continue
        t = op.result.type
        row = math.prod(t.dims[op.dimension + 1:]) * t.dtype.itemsize
        by = users.get(op.result, ())
        if by and all(isinstance(u, ops.DotGeneral) or u in copied for u in by):
            copied.add(op)
        unit = 4 if op in copied else 16
        if all(v.type.dims[op.dimension] * row % unit == 0 for v in op.args):
            out.add(op)
    return out


def _loop(state: State, op: Op) -> Draft:
    draft = Draft("loop", max((state.pot_of(v) for v in op.uses), default=0) + 1, anchor=op)
    if isinstance(op, ops.Accumulate) or (
            isinstance(op, ops.DynamicUpdateSlice) and op in state.in_place):
        shape = op.update.type.dims
        draft.domain = variables("i", [n for n in shape if n != 1])
        at = forward(op, op.update, _identity(draft, shape))
        assert at is not None
        draft.stored[op.result] = at
    else:
        shape = op.results[0].type.dims
        draft.domain = variables("i", [n for n in shape if n != 1])
        for r in op.results:
            draft.at[r] = _identity(draft, shape)
    draft.own(op)
    return draft


def _extend(host: Draft, other: Draft) -> None:
    """Gives ``host`` what another loop over as many elements stores."""
    assert [x.size for x in host.domain] == [x.size for x in other.domain], "loops of other spaces"
    host.pot = max(host.pot, other.pot)
    for op in other.ops:
        host.own(op)
        host.at.update((r, _identity(host, r.type.dims)) for r in op.results)


def _identity(draft: Draft, shape: tuple[int, ...]) -> tuple[Index, ...]:
    vars = iter(draft.domain)
    return tuple(Index() if n == 1 else as_map((next(vars),))[0] for n in shape)


def copies(state: State) -> list[Draft]:
    """Loop drafts for program outputs that are program inputs, unchanged."""
    made: list[Draft] = []
    for v in dict.fromkeys(state.graph.outputs):
        if v not in state.graph.inputs:
            continue
        shape = v.type.dims
        draft = Draft("loop", 0, domain=variables("i", [n for n in shape if n != 1]))
        draft.at[v] = _identity(draft, shape)
        draft.outputs = (v,)
        made.append(draft)
    return made
