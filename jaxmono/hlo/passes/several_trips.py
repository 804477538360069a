"""Several trips of a loop each time that it is asked whether to go on.

    while p(s):                    g = p(s)
      s = f(s)                     while g:
                     ──►             for _ in range(8):
                                       s = select(g, f(s), s)
                                       g = g and p(s)

Nobody knows how often such a loop runs, so XLA asks from the host, and launches what a trip is,
trip by trip. A kernel of several trips changes nothing from the last one on. Who asks is also who
stops: what XLA thinks of ``p``, a bit more or less, has no say, or both could wait for ever. Of a
loop under `jax.vmap` the trip itself leaves alone what is done, and nobody asks in between:

    while any(p(s)):                   q = p(s);  g = any(q)
      s = select(p(s), f(s), s)        while g:
                               ──►       for _ in range(8):
                                           s = select(q, f(s), s)
                                           q = q and p(s)
                                         g = any(q)
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from jaxmono.hlo import ops
from jaxmono.hlo.fingerprint import fingerprint
from jaxmono.hlo.ir import Graph, Op, Value
from jaxmono.hlo.passes.dead_code import dead_code
from jaxmono.hlo.rewrite import Builder, binary_kind, copy_ops, is_splat
from jaxmono.hlo.types import DType, TensorType

_COUNT = TensorType((), DType.S32)
_MOVES = (ops.BroadcastInDim, ops.Reshape)


@dataclass(frozen=True)
class Asked:
    """What a loop asks, as values of its condition that it carries from now on.

    Attributes:
      carried: the answer, behind what it is an ``any`` of where the body leaves alone what is done.
      known: values of the body that are the same as ``carried[0]`` then.
    """

    carried: tuple[Value, ...]
    known: frozenset[Value] = frozenset()

    @property
    def settles(self) -> bool:
        """Whether a trip changes nothing where nothing goes on."""
        return len(self.carried) > 1


def asked(loop: ops.While) -> Asked:
    """What ``loop`` carries besides, to be asked by its own trips."""
    body, cond = loop.body, loop.cond
    (answer,) = cond.outputs
    whether = cond.producer.get(answer)
    if not isinstance(whether, ops.Reduce) or len(whether.args) != 1 \
            or binary_kind(whether.body) != "or":
        return Asked((answer,))
    each, known = whether.args[0], dict[Value, bool]()
    alone = _alone(cond, each)
    for v, old in zip(body.outputs, body.inputs, strict=True):
        if v is old:
            continue
        made = body.producer.get(v)
        if not isinstance(made, ops.Elementwise) or made.kind != "select" \
                or made.args[2] is not old:
            return Asked((answer,))
        p = made.args[0]
        while isinstance(o := body.producer.get(p), _MOVES):
            p = o.operand
        if p not in known:
            known[p] = p in body.producer and p.type == each.type \
                and _equal(_alone(body, p), alone)
        if not known[p]:
            return Asked((answer,))
    return Asked((each, answer), frozenset(known))


def _alone(graph: Graph, v: Value) -> Graph:
    return dead_code(Graph(graph.inputs, graph.ops, (v,)))


def _equal(a: Graph, b: Graph) -> bool:
    """Whether graphs compute the same of the same inputs."""
    return a.captures == b.captures and fingerprint(a) == fingerprint(b)


def all_trips(loop: ops.While, inputs: tuple[Value, ...], producer: Mapping[Value, Op],
              ) -> Graph:
    """The loop itself, which carries whether it goes on, as a graph of its own.

        s, g = while (s, g) { s = f(s);  g = p(s) }        g is true at first

    Args:
      inputs: what the loop carries, then the answer of its condition.
      producer: of the graph that the loop is in: constants are taken along.

    Returns:
      A graph of what changes, in front, and of all else that the loop reads; its outputs are the
      next values of what changes.
    """
    body, (*carried, goes_on) = loop.body, inputs
    changes = [i for i, v in enumerate(body.outputs) if v is not body.inputs[i]]
    b, mapping = Builder(loop.loc), dict[Value, Value]()
    inside = tuple(Value(v.type) for v in (*(carried[i] for i in changes), goes_on))
    mapping.update((body.inputs[i], v) for i, v in zip(changes, inside[:-1], strict=True))
    same = [i for i in range(len(carried)) if i not in changes]
    known = [(body.inputs[i], loop.args[i], carried[i]) for i in same]
    known += [(v, v, v) for v in dict.fromkeys((*body.captures, *loop.cond.captures))]
    for v, source, otherwise in known:
        made = producer.get(source)
        if isinstance(made, ops.Constant) and is_splat(made.value):
            (mapping[v],) = b.append(made.clone({}, fresh_results=True))
        else:
            mapping[v] = otherwise
    for o in copy_ops(body.ops, mapping):
        b.append(o)
    out = [mapping.get(v, v) for v in body.outputs]
    mapping.update(zip(loop.cond.inputs, out, strict=True))
    for o in copy_ops(loop.cond.ops, mapping):
        b.append(o)
    (answer,) = loop.cond.outputs
    outputs = (*(out[i] for i in changes), mapping.get(answer, answer))
    trip = dead_code(Graph(inside, tuple(b.ops), outputs, body.name))
    asks = tuple(Value(v.type) for v in inside)
    begin = (*(carried[i] for i in changes), goes_on)
    whole = ops.While(results=tuple(Value(v.type) for v in begin), args=begin, body=trip,
                      cond=Graph(asks, (), asks[-1:]), loc=loop.loc)
    rest = (v for v in trip.captures if v not in begin)
    return Graph((*begin, *rest), (whole,), whole.results, body.name)


def several_trips(loop: ops.While, what: Asked, inputs: tuple[Value, ...], trips: int) -> Graph:
    """What ``trips`` trips of a loop do, or the rest of them, as a loop that is counted.

    Args:
      inputs: what the loop carries, then ``what.carried``.

    Returns:
      A graph of ``inputs`` that captures what the loop does, and hands on as much.
    """
    b = Builder(loop.loc)
    zero = b.constant(0, DType.S32)
    begin = inputs[:-1] if what.settles else inputs
    counter, *state = [Value(t) for t in (_COUNT, *(v.type for v in begin))]
    out = b.emit(ops.While, [v.type for v in (counter, *state)], args=(zero, *begin),
                 cond=_fewer_than(trips, (counter, *state)),
                 body=_trip(loop, what, counter, state))[1:]
    if what.settles:
        reduce = loop.cond.producer[what.carried[1]]
        mapping = {what.carried[0]: out[-1]}
        copied = copy_ops([o for o in loop.cond.ops if isinstance(o, ops.Constant)], mapping)
        (last,) = copy_ops([reduce], mapping)
        for o in (*copied, last):
            b.append(o)
        out = (*out, *last.results)
    same = {i for i, v in enumerate(loop.body.outputs) if v is loop.body.inputs[i]}
    outputs = (inputs[i] if i in same else v for i, v in enumerate(out))
    return dead_code(Graph(inputs, tuple(b.ops), tuple(outputs), loop.body.name))


def _fewer_than(trips: int, state: tuple[Value, ...]) -> Graph:
    b, inputs = Builder(), tuple(Value(v.type) for v in state)
    less = b.compare("LT", inputs[0], b.constant(trips, DType.S32))
    return Graph(inputs, tuple(b.ops), (less,))


def _trip(loop: ops.While, what: Asked, counter: Value, state: list[Value]) -> Graph:
    b, body, (*carried, goes_on) = Builder(loop.loc), loop.body, state
    mapping: dict[Value, Value] = dict(zip(body.inputs, carried, strict=True))
    mapping.update(dict.fromkeys(what.known, goes_on))
    for o in copy_ops([o for o in body.ops if what.known.isdisjoint(o.results)], mapping):
        b.append(o)
    made_by = {r: o for o in b.ops for r in o.results}
    out = [new if new is old or what.settles else _if(b, goes_on, new, old, made_by)
           for old, new in zip(carried, (mapping.get(v, v) for v in body.outputs), strict=True)]
    mapping = dict(zip(loop.cond.inputs, out, strict=True))
    for o in copy_ops(loop.cond.ops, mapping):
        b.append(o)
    still = mapping.get(what.carried[0], what.carried[0])
    more = b.elementwise("and", goes_on, still)
    number = b.elementwise("add", counter, b.constant(1, DType.S32))
    return dead_code(Graph((counter, *state), tuple(b.ops), (number, *out, more), body.name))


def _if(b: Builder, goes_on: Value, new: Value, old: Value, made_by: Mapping[Value, Op]) -> Value:
    """``new``, or what was there; of an array that a trip writes a part of, that part is chosen."""
    update = made_by.get(new)
    if isinstance(update, ops.DynamicUpdateSlice) and update.operand is old:
        part = update.update
        was = b.emit1(ops.DynamicSlice, part.type, operand=old,
                      start_indices=update.start_indices, slice_sizes=part.type.dims)
        now = b.elementwise("select", goes_on, part, was, type=part.type)
        return b.emit1(ops.DynamicUpdateSlice, new.type, operand=old, update=now,
                       start_indices=update.start_indices)
    return b.elementwise("select", goes_on, new, old, type=new.type)
