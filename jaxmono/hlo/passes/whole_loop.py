"""A loop as a graph of its own, which carries whether it goes on.

    while p(s):                    g = p(s)
      s = f(s)            ──►      while g:
                                     s = f(s);  g = p(s)

Nobody knows how often such a loop runs, so XLA asks from the host, trip by trip. In a graph of its
own a kernel asks (fusion/repeat.py). Of a loop under `jax.vmap` a trip leaves alone what is done,
so several may pass, with all that they carry in registers, before anybody asks:

    while any(p(s)):                   q = p(s);  g = any(q)
      s = select(p(s), f(s), s)        while g:
                               ──►       for _ in range(24):
                                           s = select(q, f(s), s);  q = q and p(s)
                                         g = any(q)
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from jaxmono.hlo import ops
from jaxmono.hlo.fingerprint import fingerprint
from jaxmono.hlo.ir import Graph, Op, Value
from jaxmono.hlo.passes.dead_code import dead_code
from jaxmono.hlo.rewrite import Builder, binary_kind, copy_ops, is_splat
from jaxmono.hlo.types import DType

IN_REGISTERS = 24
"""Trips of such a loop at a time."""
_NONE: Mapping[Value, Value] = {}
_MOVES = (ops.BroadcastInDim, ops.Reshape)
_BY_ITSELF = (ops.Elementwise, ops.Compare, ops.Convert, ops.BitcastConvert, ops.Constant,
              ops.BroadcastInDim, ops.Iota, ops.Reshape)


@dataclass(frozen=True)
class Asked:
    """What a loop asks, as values of its condition that it carries from now on.

    Attributes:
      carried: the answer, behind what it is an ``any`` of where several trips may pass; empty
        where it is a value that the loop carries anyway.
      known: values of the body that are the same as ``carried[0]`` then.
    """

    carried: tuple[Value, ...]
    known: frozenset[Value] = frozenset()

    @property
    def rarely(self) -> bool:
        """Whether several trips may pass before anybody asks."""
        return len(self.carried) > 1


def asked(loop: ops.While) -> Asked:
    """What ``loop`` asks."""
    body, cond = loop.body, loop.cond
    if _told(loop) is not None:
        return Asked(())
    answer = Asked(cond.outputs)
    whether = cond.producer.get(cond.outputs[0])
    if not isinstance(whether, ops.Reduce) or len(whether.args) != 1 \
            or binary_kind(whether.body) != "or" \
            or not all(isinstance(o, _BY_ITSELF) for o in body.ops):
        return answer
    each, known = whether.args[0], dict[Value, bool]()
    alone = _alone(cond, each)
    for v, old in zip(body.outputs, body.inputs, strict=True):
        if v is old:
            continue
        made = body.producer.get(v)
        if v.type.dims != each.type.dims or not isinstance(made, ops.Elementwise) \
                or made.kind != "select" or made.args[2] is not old:
            return answer
        p = made.args[0]
        while isinstance(o := body.producer.get(p), _MOVES):
            p = o.operand
        if p not in known:
            known[p] = p in body.producer and p.type == each.type \
                and _equal(_alone(body, p), alone)
        if not known[p]:
            return answer
    return Asked((each, *cond.outputs), frozenset(known))


def _alone(graph: Graph, v: Value) -> Graph:
    return dead_code(Graph(graph.inputs, graph.ops, (v,)))


def _equal(a: Graph, b: Graph) -> bool:
    """Whether graphs compute the same of the same inputs."""
    return a.captures == b.captures and fingerprint(a) == fingerprint(b)


def is_whole(op: Op) -> bool:
    """Whether an op is a loop that carries whether it goes on."""
    return isinstance(op, ops.While) and not op.cond.ops \
        and op.cond.outputs == op.cond.inputs[-1:]


def changing(loop: ops.While) -> list[int]:
    """The places of what a trip changes; behind the others that of the answer, if it is one."""
    found = [i for i, v in enumerate(loop.body.outputs) if v is not loop.body.inputs[i]]
    return sorted(found, key=lambda i: i == _told(loop))


def _told(loop: ops.While) -> int | None:
    """The place of what the condition returns, if a trip changes it."""
    (answer,) = loop.cond.outputs
    if answer not in loop.cond.inputs:
        return None
    i = loop.cond.inputs.index(answer)
    return None if loop.body.outputs[i] is loop.body.inputs[i] else i


def whole_loop(loop: ops.While, what: Asked, first: Sequence[Value],
               producer: Mapping[Value, Op]) -> ops.While:
    """The loop that carries what is `changing`, and then ``what.carried``.

    Args:
      first: what ``what.carried`` is in front of the first trip.
      producer: of the graph that the loop is in: constants are taken along.
    """
    b, changes = Builder(loop.loc), changing(loop)
    args = (*(loop.args[i] for i in changes), *first)
    state = tuple(Value(v.type) for v in args)
    same = _unchanged(b, loop, producer)
    now = dict(zip(changes, state, strict=False))
    if what.rarely:
        now, each = _some_trips(b, loop, what, now, state[-2], same)
        asks = (each, _any(b, loop, each))
    else:
        now = _trip(b, loop, now, same)
        asks = tuple(_asks(b, loop, now, same, what.carried))
    trip = dead_code(Graph(state, tuple(b.ops), (*now.values(), *asks), loop.body.name))
    inside = tuple(Value(v.type) for v in args)
    results = (*(loop.results[i] for i in changes), *(Value(v.type) for v in first))
    return ops.While(results=results, args=args, body=trip, loc=loop.loc,
                     cond=Graph(inside, (), inside[-1:]))


def _unchanged(b: Builder, loop: ops.While, producer: Mapping[Value, Op]) -> dict[Value, Value]:
    """What the loop reads and does not change, by values of its body and condition."""
    changes = set(changing(loop))
    known = {v: v for v in (*loop.body.captures, *loop.cond.captures)}
    for i, v in enumerate(loop.args):
        if i not in changes:
            known |= {loop.body.inputs[i]: v, loop.cond.inputs[i]: v}
    for v, source in known.items():
        made = producer.get(source)
        if isinstance(made, ops.Constant) and is_splat(made.value):
            (known[v],) = b.append(made.clone({}, fresh_results=True))
    return known


def _trip(b: Builder, loop: ops.While, now: Mapping[int, Value], same: Mapping[Value, Value],
          known: Mapping[Value, Value] = _NONE) -> dict[int, Value]:
    """What changes, by its place, behind a trip. known: values of the body that are made."""
    mapping = {**same, **known, **{loop.body.inputs[i]: v for i, v in now.items()}}
    for o in copy_ops([o for o in loop.body.ops if known.keys().isdisjoint(o.results)], mapping):
        b.append(o)
    return {i: mapping.get(loop.body.outputs[i], loop.body.outputs[i]) for i in now}


def _asks(b: Builder, loop: ops.While, now: Mapping[int, Value], same: Mapping[Value, Value],
          wanted: Iterable[Value]) -> list[Value]:
    mapping = {**same, **{loop.cond.inputs[i]: v for i, v in now.items()}}
    for o in copy_ops(loop.cond.ops, mapping):
        b.append(o)
    return [mapping.get(v, v) for v in wanted]


def _any(b: Builder, loop: ops.While, each: Value) -> Value:
    made = loop.cond.producer[loop.cond.outputs[0]]
    assert isinstance(made, ops.Reduce)
    return b.emit1(ops.Reduce, made.result.type, args=(each,),
                   inits=(b.constant(False, DType.PRED),), body=made.body,
                   dimensions=made.dimensions)


def _some_trips(b: Builder, loop: ops.While, what: Asked, now: Mapping[int, Value], each: Value,
                same: Mapping[Value, Value]) -> tuple[dict[int, Value], Value]:
    """`IN_REGISTERS` trips, and who goes on then, as a loop that is counted."""
    begin = (b.constant(0, DType.S32), *now.values(), each)
    counter, *state = inside = tuple(Value(v.type) for v in begin)
    trip = Builder(loop.loc)
    then = _trip(trip, loop, dict(zip(now, state, strict=False)), same,
                 dict.fromkeys(what.known, state[-1]))
    (still,) = _asks(trip, loop, then, same, what.carried[:1])
    number = trip.elementwise("add", counter, trip.constant(1, DType.S32))
    outputs = (number, *then.values(), trip.elementwise("and", state[-1], still))
    count, asks = Builder(), tuple(Value(v.type) for v in begin)
    less = count.compare("LT", asks[0], count.constant(IN_REGISTERS, DType.S32))
    _, *out = b.emit(ops.While, [v.type for v in begin], args=begin,
                     cond=Graph(asks, tuple(count.ops), (less,)),
                     body=dead_code(Graph(inside, tuple(trip.ops), outputs)))
    return dict(zip(now, out, strict=False)), out[-1]
