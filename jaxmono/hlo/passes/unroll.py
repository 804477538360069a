"""Loops of a constant trip count, trip by trip.

    i, h, ys = 0, h0, empty
    while i < 3:                            i1 = stored(i0 + 1)     h1 = stored(f(h0, piece(x, 0)))
      h = f(h, x[i])               ──►      i2 = stored(i1 + 1)     h2 = stored(f(h1, piece(x, 1)))
      ys[i] = h                                                     h3 = stored(f(h2, piece(x, 2)))
      i = i + 1                             ys = stacked(h1, h2, h3)

What one trip hands to the next lies in memory, its number as well: so the trips stay alike, and
the planner finds a loop of stages in them again (fusion/roll.py). What they write to places of
their own lies there, one piece behind the other; pieces that begin at no multiple of 16 bytes are
put together behind the last trip. What they read of such places is a piece of an array as well, and
then nobody needs their numbers. A loop of a few steps on each element by itself (a solver, say)
is one chain of ops instead; of many, chains of some trips each (in_turn.py).
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from dataclasses import replace

from jaxmono.hlo import ops
from jaxmono.hlo.ir import Graph, Op, Value
from jaxmono.hlo.passes.counted import Counted, all_collected, collected, counted, sliced
from jaxmono.hlo.passes.dead_code import dead_code
from jaxmono.hlo.passes.in_turn import NONE, Turn, turn
from jaxmono.hlo.passes.on_the_way import on_the_way, source
from jaxmono.hlo.passes.pipeline import in_loop
from jaxmono.hlo.passes.rules.top_k import expanded
from jaxmono.hlo.rewrite import Builder, copy_ops
from jaxmono.hlo.types import FOUR_BITS, DType, TensorType

MAX_OPS = 40960
"""Of all trips of a loop. The user waits for the planner, which takes 7 seconds of a slow core for
the 35000 ops of an LSTM's 1000 trips. Trips that XLA runs have a launch each at least."""
MAX_INNER = 2048
"""Of all trips of a loop inside of another one, which are written one behind the other."""
MAX_WAITS = 512
"""Products and reductions of all trips of a loop with others inside: each may be a stage, which is
written out where inner loops divide the trips in many alike. 16 tokens through 12 layers, 2336 of
them, were 17000 lines, for which NVRTC took 40 s; XLA runs the outer loop, in which a kernel runs
the layers."""
MAX_PIECES = 256
"""Of what trips write to places of their own and is put together behind the last one: code chooses
among the pieces, for each element."""
MAX_COPIED = 4 << 20
"""Bytes of an array that is stored for trips to read it piece by piece: 2 us in one stage. Of
larger ones each trip computes what it needs, at a place that its number tells; of transposed ones
as well (CRNN b8 on an H200: 231 us so, 299 with a copy), but where products beside trips in turn
read them."""
SMALL = 16 * 1024
"""Elements of a value that goes from trip to trip without a grid barrier, in words with flags
(fusion/flags.py), which cannot lie with others: an RNN of one row and 256 states took 1.7 us a trip
on an H200 so, and 2.2 where the next trip reads the piece."""
MAX_WEIGHTS = 1 << 16
"""Bytes of a part of an array that a product may take in each trip where it is computed on the way
there, which suits what a recurrent network reads, and not a layer's weights."""
MAX_CHAIN = 128
"""Element-wise ops of all trips that are one chain."""
_GROWS = (ops.While, ops.Sort, ops.Scan, ops.ReduceWindow)
"""Ops of which others are made before a loop is taken apart."""
_WAITS = (ops.DotGeneral, ops.RaggedDot, ops.Convolution, ops.Reduce, ops.ReduceWindow,
          ops.Scan)
_POINTWISE = (ops.Elementwise, ops.Compare, ops.Convert, ops.Constant, ops.BroadcastInDim)
_MOVES = (ops.Reshape, ops.Transpose, ops.BroadcastInDim, ops.Convert)


def refusal(loop: ops.While, producer: Mapping[Value, Op]) -> str | None:
    """Why a loop is not unrolled; None if it is. (Its ops may have reasons of their own.)"""
    found = counted(loop, producer)
    if isinstance(found, str):
        return found
    known = {**producer, **loop.body.producer}
    if (reason := next(filter(None, (refused_inside(o, known) for o in loop.body.ops)), None)):
        return reason
    if (reason := _too_many(found, loop.body, known)):
        return reason
    nested = any(isinstance(o, ops.While) for o in loop.body.ops)
    if any(isinstance(o, _GROWS) for o in loop.body.ops):
        # As it is asked about again: by what it is then.
        loop = in_loop(loop, producer)
        found, known = counted(loop, producer), {**producer, **loop.body.producer}
        if isinstance(found, str) or (reason := _too_many(found, loop.body, known)):
            return found if isinstance(found, str) else reason
        if nested and (reason := _waits_often(found, loop.body)):
            return reason
    pieces = found.trips * sum(collected(loop, found, i) is not None
                               and not _lie_together(v.type, found)
                               for i, v in enumerate(loop.args))
    if pieces > MAX_PIECES:
        return f"its {found.trips} trips write {pieces} pieces of arrays that begin at no " \
            f"multiple of {ops.PIECE_BYTES} bytes; a kernel takes up to {MAX_PIECES}"
    if any(_made_weights(loop, found, o, producer) for o in loop.body.ops):
        return "a product in it takes other weights in each trip, and they lie in no array that " \
            "the program is given"
    return None


def _too_many(found: Counted, body: Graph, known: Mapping[Value, Op]) -> str | None:
    count = found.trips * sum(_size(o, known) for o in body.ops)
    return None if count <= MAX_OPS else \
        f"its {found.trips} trips are {count} ops; a kernel takes loops of up to {MAX_OPS}"


def _waits_often(found: Counted, body: Graph) -> str | None:
    count = found.trips * sum(isinstance(o, _WAITS) for o in body.ops)
    return None if count <= MAX_WAITS else \
        f"its {found.trips} trips, with those of loops in it, are {count} products and " \
        f"reductions; a kernel takes up to {MAX_WAITS} where there are such loops"


def refused_inside(op: Op, producer: Mapping[Value, Op]) -> str | None:
    """Why a loop in a loop's body is not taken apart (inner_loops.py)."""
    if not isinstance(op, ops.While):
        return None
    if isinstance(found := counted(op, producer), str):
        return found
    count = _size(op, producer)
    return None if count <= MAX_INNER else f"the {found.trips} trips of a loop in it are " \
        f"{count} ops; a kernel takes loops of up to {MAX_INNER} in others"


def _size(op: Op, producer: Mapping[Value, Op]) -> int:
    """In ops, once it is simplified."""
    if isinstance(op, ops.TopK):
        return expanded(op)
    if isinstance(op, ops.While):
        found, known = counted(op, producer), {**producer, **op.body.producer}
        trips = found.trips if isinstance(found, Counted) else 1
        return trips * sum(_size(o, known) for o in op.body.ops)
    if isinstance(op, ops.Case):
        return sum(_size(o, producer) for g in op.branches for o in g.ops)
    return not isinstance(op, ops.Constant)


def _made_weights(loop: ops.While, found: Counted, op: Op, producer: Mapping[Value, Op]) -> bool:
    """Whether a contraction reads much that is elsewhere in each trip, at no place that is known
    (layers in a loop have their weights in arrays that the program is given)."""
    if not isinstance(op, ops.DotGeneral | ops.Convolution):
        return False
    body = loop.body
    for v in op.inputs:
        made = body.producer.get(v)
        while isinstance(made, _MOVES):
            made = body.producer.get(made.inputs[0])
        if not isinstance(made, ops.DynamicSlice) or v.type.nbytes <= MAX_WEIGHTS:
            continue
        whole = _without_reshapes(body.producer, made.operand)
        if whole in body.inputs and body.outputs[i := body.inputs.index(whole)] is whole:
            whole = _without_reshapes(producer, loop.args[i])
        if whole in producer or whole in body.producer or whole in body.inputs \
                or not _is_piece(made.result.type) or not sliced(loop, found, made):
            return True
    return False


def _lie_together(t: TensorType, found: Counted) -> bool:
    """Whether the pieces that trips write of an array can lie there, each from its trip on."""
    return _is_piece(t, found.trips)


def _is_piece(t: TensorType, count: int = 1) -> bool:
    """Whether arrays of so much can lie one behind the other; ``count``: of which ``t`` is made."""
    bits = t.size // count * t.dtype.bits
    return bits > 0 and bits % (8 * ops.PIECE_BYTES) == 0


def unroll(graph: Graph) -> Graph:
    """Takes all `counted` loops apart; those with a `refusal` are in no kernel's graph."""
    if not any(isinstance(o, ops.While) for o in graph.ops):
        return graph
    walk, mapping = Builder(), dict[Value, Value]()
    groups = itertools.count(1 + ops.most_groups(graph))
    for o in graph.ops:
        loop = o.clone(mapping)
        found = counted(loop, graph.producer) if isinstance(loop, ops.While) else ""
        if isinstance(loop, ops.While) and isinstance(found, Counted):
            walk.loc = o.loc
            mapping.update(zip(o.results, _Trips(walk, loop, found, groups).emit(), strict=True))
        else:
            walk.append(loop)
    outputs = tuple(mapping.get(v, v) for v in graph.outputs)
    return _own_places(dead_code(Graph(graph.inputs, tuple(walk.ops), outputs, graph.name)))


def told(graph: Graph) -> tuple[str, ...]:
    """How many trips of its loops a stage takes, each one line for the user."""
    out: list[str] = []
    for o in graph.ops:
        found = counted(o, graph.producer) if isinstance(o, ops.While) else ""
        if not isinstance(o, ops.While) or not isinstance(found, Counted) \
                or _is_chain(o.body, found.trips):
            continue
        several = turn(o, found, all_collected(o, found))
        out.append(f"each of the {found.trips} trips of the loop at {o.loc} has stages of its own: "
                   f"{several}" if isinstance(several, str) else
                   f"{several.trips} of {found.trips} trips of the loop at {o.loc} are a stage")
    return tuple(out)


class _Trips:
    """The trips of one loop."""

    def __init__(self, walk: Builder, loop: ops.While, found: Counted,
                 groups: Iterator[int]) -> None:
        self.walk, self.body, self.found, self.groups = walk, loop.body, found, groups
        self.chain = _is_chain(loop.body, found.trips)
        self.collected = all_collected(loop, found)
        several = NONE if self.chain else turn(loop, found, self.collected)
        self.turn = several if isinstance(several, Turn) else NONE
        self.group = 0  # the number of what a turn of several trips makes
        self.pieces: dict[int, list[Value]] = {i: [] for i in self.collected}
        made = {r for o in walk.ops for r in o.results}
        begin = self._rounded if 1 < self.turn.trips >= found.trips / 2 else self._keep
        self.state = [v if i in self.collected or v not in made
                      or loop.body.outputs[i] is loop.body.inputs[i] else begin(v)
                      for i, v in enumerate(loop.args)]
        self.computed: dict[Value, Value] = {}  # of the body's inputs, what products compute
        self.on_the_way = on_the_way(loop.body)
        self.places = {o: places for o in loop.body.ops if isinstance(o, ops.DynamicSlice)
                       and _is_piece(o.result.type) and (places := sliced(loop, found, o))}
        # Of what is made element by element a thread reads wherever it lies. Products that read at
        # places of their own would be functions of their own, each: 100 trips of Mamba's state
        # space (batch 2) were 16000 lines, for which NVRTC took 70 s.
        self.read_apart = {loop.body.producer.get(source(loop.body, v))
                           for o in self.turn.apart for v in o.uses}
        self.first = loop.args
        self.products: dict[Op, Value] = {}  # of what all trips read, by an op of the body
        self.whole: dict[Value, Value] = {}  # arrays in memory, of which trips read pieces
        self.once = _same_in_all_trips(loop.body)
        self.stored_once: dict[Op, Value] = {}
        self.producer, self.known = dict[Value, Op](), 0  # of the ops so far

    def emit(self) -> list[Value]:
        """All trips; returns what the loop does."""
        for number in range(self.found.trips):
            self._trip(number)
        for i, c in self.collected.items():
            self.state[i] = self._together(self.body.inputs[i].type,
                                           [self.pieces[i][t] for t in c.order])
        return self.state

    def _trip(self, number: int) -> None:
        body, found = self.body, self.found
        turn = self.turn
        if turn.trips > 1 and number % turn.trips == 0:
            self.group = next(self.groups)
        goes_on = (number + 1) % turn.trips != 0 and number + 1 < found.trips
        same = [i for i, n in found.starts.items() if n == found.starts[found.index]
                and body.inputs[i].type == body.inputs[found.index].type]
        mapping = dict(zip(body.inputs, self.state, strict=True))
        mapping.update((body.inputs[i], self.state[found.index]) for i in same)
        left_out = {c.update for c in self.collected.values()}
        # What lies in memory: of values that are made in this trip, and of what it begins with.
        known = dict[Value, Value]()
        stored = {v: self._known(known, mapping[v]) for v in turn.kept if v in mapping}
        for o in body.ops:
            if o in left_out:
                continue
            if isinstance(o, ops.DynamicSlice) and o in self.places and (
                    part := self._piece(mapping.get(o.operand, o.operand), self.places[o][number],
                                        o.result.type, o in self.read_apart)) is not None:
                mapping[o.result] = part
                continue
            if o in self.stored_once:
                mapping[o.result] = self.stored_once[o]
                continue
            given = mapping
            if isinstance(o, ops.DotGeneral):
                if (part := self._one_of(o, number)) is not None:
                    mapping[o.result] = part
                    continue
                given = {**mapping, **{v: self._moved(v) for v in o.inputs
                                       if source(body, v) in self.computed}}
            if o in turn.apart:
                given = {**given, **stored}
            (made,) = copy_ops([o], given)
            mapping.update(zip(o.results, made.results, strict=True))
            self.walk.append(made)
            if o in self.once:
                self.stored_once[o] = made.results[0]
            stored.update((r, self._known(known, mapping[r])) for r in o.results if r in turn.kept)
        self.computed = {body.inputs[i]: mapping.get(body.outputs[i], body.outputs[i])
                         for i in self.on_the_way}
        self._hand_on(mapping, known, goes_on)

    def _hand_on(self, mapping: Mapping[Value, Value], known: dict[Value, Value],
                 goes_on: bool) -> None:
        """What a trip leaves in memory, or in the registers of the next one's threads.

        Args:
          mapping: what a trip has made, by the body's values. known: what lies in memory of it, by
            what was made.
          goes_on: whether the next trip belongs to the same turn.
        """
        body, turn = self.body, self.turn
        for i, v in enumerate(body.outputs):
            made = self.collected[i].update.update if i in self.collected else v
            if made is body.inputs[i]:
                continue
            whole = _without_reshapes(body.producer, made)
            if turn.makes(made) and not turn.makes(whole):
                whole = made
            kept = mapping.get(whole, whole)
            if goes_on and i not in self.collected:
                if whole in body.producer:
                    kept = self._rounded(kept)
            elif whole in body.producer or self._in_registers(kept):
                # What several carried values have in common lies there once.
                kept = self._known(known, kept, body.producer.get(whole) in turn.apart)
            kept = self.walk.reshape(kept, made.type.shape)
            if i in self.collected:
                self.pieces[i].append(kept)
            else:
                self.state[i] = kept

    def _piece(self, v: Value, index: int, t: TensorType, turned: bool) -> Value | None:
        """A place of ``v``, read where it lies; None where ``v`` lies nowhere and is large, or
        lies in another order (unless ``turned``: it is copied then)."""
        self._made(v)
        v = _without_reshapes(self.producer, v)
        made = self.producer.get(v)
        if isinstance(made, ops.Stacked) and made.args[0].type.size == t.size:
            return self.walk.reshape(made.args[index], t.shape)
        if made is not None and not isinstance(made, ops.Stored | ops.Stacked):
            if (isinstance(made, ops.Constant) or (isinstance(made, ops.Transpose) and not turned)
                    or v.type.nbytes > MAX_COPIED or v.type.dtype in FOUR_BITS):
                return None
            if v not in self.whole:
                self.whole[v] = self.walk.emit1(ops.Stored, v.type, operand=v)
            v = self.whole[v]
        return self.walk.emit1(ops.Piece, t, operand=v, index=index)

    def _one_of(self, o: ops.DotGeneral, number: int) -> Value | None:
        """A product of what a trip reads with what all trips have: a piece of one product.

            dot(x[i] [b,k], w [k,n])  ──►  piece(stored(dot(x [t*b,k], w)), i)
        """
        read = self.body.producer.get(_without_reshapes(self.body.producer, o.lhs))
        if not isinstance(read, ops.DynamicSlice) or o.lhs_batch \
                or sorted(self.places.get(read, ())) != list(range(read.operand.type.dims[0])) \
                or not self._is_constant(read.operand) or not self._is_constant(o.rhs):
            return None
        *rows, k = o.lhs.type.dims
        if o.lhs_contract != (len(rows),) or read.result.type.dims[-1] != k \
                or not _is_piece(o.result.type) or len(o.rhs_contract) != 1:
            return None
        if o not in self.products:
            b, given = self.walk, dict(zip(self.body.inputs, self.first, strict=True))
            whole, w = (given.get(v, v) for v in (read.operand, o.rhs))
            x = b.reshape(whole, (whole.type.size // k, k))
            made = b.dot_general(x, w, batch=((), ()), contract=((1,), o.rhs_contract),
                                 dtype=o.result.type.dtype, precision=o.precision,
                                 algorithm=o.algorithm)
            self.products[o] = b.emit1(ops.Stored, made.type, operand=made)
        return self.walk.emit1(ops.Piece, o.result.type, operand=self.products[o],
                               index=self.places[read][number])

    def _is_constant(self, v: Value) -> bool:
        """Whether a value of the body is the same in all trips, and known before them."""
        if v in self.body.inputs:
            i = self.body.inputs.index(v)
            return self.body.outputs[i] is v
        return v not in self.body.producer

    def _moved(self, v: Value) -> Value:
        """``v``, a moved copy of a state that products compute."""
        if (o := self.body.producer.get(v)) is None:
            return self.computed[v]
        made = o.clone({o.inputs[0]: self._moved(o.inputs[0])}, fresh_results=True)
        return self.walk.append(made)[0]

    def _together(self, t: TensorType, pieces: list[Value]) -> Value:
        if self.chain or not _lie_together(t, self.found):
            return self._keep(self.walk.concatenate(pieces, 0))
        return self.walk.emit1(ops.Stacked, t, args=tuple(pieces))

    def _rounded(self, v: Value) -> Value:
        """A value that goes on in registers has the bits that memory would have."""
        if v.type.dtype not in (DType.BF16, DType.F16):
            return v
        return self.walk.convert(self.walk.convert(v, DType.F32), v.type.dtype)

    def _known(self, known: dict[Value, Value], v: Value, apart: bool = False) -> Value:
        """A value in memory; what a thread has in turn is stored by it."""
        if v not in known:
            own = self.turn.makes(v) and not apart
            known[v] = self._keep(v, self.group if own else 0) \
                if not own or self._in_registers(v) else v
        return known[v]

    def _in_registers(self, v: Value) -> bool:
        """Whether a value that a trip hands on as it is has been made in this turn."""
        return self.turn.trips > 1 and not isinstance(self._made(v), ops.Stored | None)

    def _made(self, v: Value) -> Op | None:
        self.producer.update((r, o) for o in self.walk.ops[self.known:] for r in o.results)
        self.known = len(self.walk.ops)
        return self.producer.get(v)

    def _keep(self, v: Value, group: int = 0) -> Value:
        return v if self.chain else self.walk.emit1(ops.Stored, v.type, operand=v,
                                                    in_turn=group > 0, group=group)


def _same_in_all_trips(body: Graph) -> set[Op]:
    """What a body stores of what no trip changes: the first trip does it for all."""
    changing = {v for i, v in enumerate(body.inputs) if body.outputs[i] is not v}
    out = set[Op]()
    for o in body.ops:
        if not changing.isdisjoint(o.uses):
            changing.update(o.results)
        elif isinstance(o, ops.Stored) and not o.is_one_of_its_kind:
            out.add(o)
    return out


def _own_places(graph: Graph) -> Graph:
    """What is `Stacked` and has to lie elsewhere as well is stored twice by whoever makes it if it
    is small, else copied. A small result of the graph is copied behind the last trip.

        y = f(h0)                               h1 = stored(y)      with flags
        h1 = stored(y)                   ──►    p1 = stored(y)
        h2 = stored(f(h1))                      h2 = stored(f(h1))
        stacked(h1, h2), h2                     stacked(p1, p2), stored(h2)
    """
    def group_of(v: Value) -> int:
        made = graph.producer.get(v)
        return made.group if isinstance(made, ops.Stored) else 0

    # What a turn of several trips makes is copied for the caller: the last turn is like the others.
    walk, seen = Builder(), {v for v in graph.outputs if not group_of(v)}

    def own(v: Value) -> Value:
        v = _without_reshapes(graph.producer, v)
        made = graph.producer.get(v)
        if not isinstance(made, ops.Stored):
            return walk.emit1(ops.Stored, v.type, operand=v)
        if v in seen or (v.type.size <= SMALL and any(not isinstance(u, ops.Stacked)
                                                      for u in graph.users[v])):
            again = v.type.size <= SMALL or made.group > 0
            return walk.emit1(ops.Stored, v.type, operand=made.operand if again else v,
                              in_turn=again and made.in_turn, group=made.group if again else 0)
        seen.add(v)
        return v

    for o in graph.ops:
        walk.loc = o.loc
        if isinstance(o, ops.Stacked):
            o = replace(o, args=tuple(map(own, o.args)))
        walk.append(o)
    outputs = list[Value]()
    for v in graph.outputs:
        made = graph.producer.get(v)
        again = isinstance(made, ops.Stacked) and v in outputs
        handed_on = isinstance(made, ops.Stored) and (
            v.type.size <= SMALL or (made.group > 0 and v in seen))
        outputs.append(walk.emit1(ops.Stored, v.type, operand=v) if again or handed_on else v)
    return Graph(graph.inputs, tuple(walk.ops), tuple(outputs), graph.name)


def _without_reshapes(producer: Mapping[Value, Op], v: Value) -> Value:
    while isinstance(op := producer.get(v), ops.Reshape):
        v = op.operand
    return v


def _is_chain(body: Graph, trips: int) -> bool:
    """Whether a loop does a few steps on each element, or number, by itself."""
    return all(isinstance(o, _POINTWISE) for o in body.ops) and trips * sum(
        not isinstance(o, ops.Constant) for o in body.ops) <= MAX_CHAIN
