"""Products of which one gates the other (GEGLU, SwiGLU, GLU): in the epilogue of the second one.

    y = x @ w + b                                   u = x @ w[:, :f] + b[:f]
    u, g = y[:, :f], y[:, f:]                ──►    g = x @ w[:, f:] + b[f:]
    z = u * gelu(g)      a stage of its own         z = u * gelu(g)      in the epilogue of g

`gated` makes two products of one, `waits` lets the second one wait for the first, though it does
not read it. Side by side, both would be written and read again. Stable Diffusion's UNet, 64 x 64,
batch 2: products of 42 MB took 35 us, and what gates them 35. Where tiles of columns of both halves
take less time, they gate themselves, and nothing waits (paired_columns.py).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence

from jaxmono.fusion import paired_columns
from jaxmono.fusion.dots import dot_dims
from jaxmono.fusion.paired_columns import are_alike, halves_of, join_columns, why_apart
from jaxmono.fusion.plan import Device
from jaxmono.hlo import ops
from jaxmono.hlo.ir import Graph, Op, Value
from jaxmono.hlo.passes import dead_code
from jaxmono.hlo.rewrite import Builder, is_splat, replace_values, splat_value
from jaxmono.hlo.types import TensorType

LEAST_BYTES = 4 << 20
"""Of both products: half of it passes memory once less, in a microsecond, and the tiles of a half
still fill the GPU."""
_STEPS = 24
"""Most values between a product and what gates; a GELU by tanh has 10."""
_Step = ops.Elementwise | ops.Convert


def gated(graph: Graph, device: Device) -> tuple[Graph, tuple[str, ...]]:
    """``graph`` with such products in two, or two of them in one where tiles have pairs of columns
    (paired_columns.py), itself if it has none; and of those that have none, why."""
    apart: dict[str, None] = {}

    def refused(o: ops.DotGeneral, columns: int) -> bool:
        reason = _why_apart(graph, o, columns, device)
        if reason and dot_dims(o).m >= paired_columns.MIN_ROWS:
            apart[f"the product of {o.loc} and what it gates are no halves of one tile: "
                  f"{reason}"] = None
        return bool(reason)

    halves: dict[Op, tuple[ops.DotGeneral, Sequence[_Step]]] = {}
    joined: dict[Op, ops.DotGeneral] = {}
    seconds: set[Op] = set()
    for o in graph.ops:
        if isinstance(o, ops.DotGeneral) and o.rhs in graph.inputs:
            steps, read = _steps(graph, o)
            if (both := _both(graph, read)) and refused(o, dot_dims(o).n) and _is_large(o) \
                    and not _summed(graph, both):
                halves |= dict.fromkeys(read, (o, steps))
    for first, second in _gates(graph):
        if not {first, second} & (joined.keys() | seconds) and are_alike(first, second) \
                and first.rhs in graph.inputs and second.rhs in graph.inputs \
                and not refused(first, 2 * dot_dims(first).n):
            joined[first] = second
            seconds.add(second)
    if not halves and not joined:
        return graph, tuple(apart)
    builder, same = Builder(), dict[Value, Value]()
    for o in graph.ops:
        if o in halves and isinstance(o, ops.Slice):
            same[o.result] = _half(graph, builder, *halves[o], o)
        elif isinstance(o, ops.DotGeneral) and o in joined:
            for each in join_columns(o, joined[o]):
                builder.append(each)
        elif o not in seconds:
            builder.append(o)
    made = Graph(graph.inputs, tuple(builder.ops), graph.outputs, graph.name)
    return dead_code(replace_values(made, same)), tuple(apart)


def paired(graph: Graph, device: Device) -> dict[Op, None]:
    """Contractions whose halves meet element by element, in one tile of columns of both."""
    return {o: None for o in graph.ops if isinstance(o, ops.DotGeneral)
            and _are_given(graph, o) and _both(graph, _steps(graph, o)[1])
            and not _why_apart(graph, o, dot_dims(o).n, device)}


def _are_given(graph: Graph, o: ops.DotGeneral) -> bool:
    """Whether weights are an input, or two next to each other, of a half each."""
    made = graph.producer.get(o.rhs)
    if isinstance(made, ops.Concatenate) and made.dimension in dot_dims(o).rhs_free:
        return len(made.args) == 2 and made.args[0].type == made.args[1].type \
            and all(v in graph.inputs for v in made.args)
    return o.rhs in graph.inputs


def _why_apart(graph: Graph, o: ops.DotGeneral, columns: int, device: Device) -> str:
    """As `why_apart`; nor has a convolution pairs, whose image may stay in shared memory."""
    v = o.lhs
    while isinstance(made := graph.producer.get(v), ops.Transpose | ops.Reshape):
        v = made.operand
    return why_apart(o, columns, device) or (
        "its rows are windows, whose image may stay" if isinstance(made, ops.Window) else "")


def _is_large(o: ops.DotGeneral) -> bool:
    dims = dot_dims(o)
    return not o.rhs_batch and len(dims.rhs_free) == 1 \
        and dims.m >= paired_columns.MIN_ROWS and o.result.type.nbytes >= LEAST_BYTES


def _steps(graph: Graph, o: ops.DotGeneral) -> tuple[list[_Step], tuple[ops.Slice, ...]]:
    """What is done to a product element by element, by columns alike, and the halves of what comes
    of it; none where anything else reads it."""
    steps: list[_Step] = []
    v = o.result
    while v not in graph.outputs:
        users = tuple(dict.fromkeys(graph.users.get(v, ())))
        if users and all(isinstance(u, ops.Slice) for u in users):
            return steps, halves_of(graph, v)
        if len(users) != 1 or not isinstance(u := users[0], _Step) or not all(
                x is v or _repeated(graph, x) for x in u.inputs):
            break
        steps.append(u)
        v = u.result
    return steps, ()


def _repeated(graph: Graph, v: Value) -> ops.Constant | ops.BroadcastInDim | None:
    """What makes a value that is the same in all rows: one element, or a vector."""
    o = graph.producer.get(v)
    if isinstance(o, ops.Constant):
        return o if is_splat(o.value) else None
    if isinstance(o, ops.BroadcastInDim) and o.dimensions == (v.type.rank - 1,) \
            and o.operand.type.dims == v.type.dims[-1:] and _is_given(graph, o.operand):
        return o
    return None


def _is_given(graph: Graph, v: Value) -> bool:
    """Whether a vector is an input or a part of one, in another type perhaps."""
    while isinstance(o := graph.producer.get(v), ops.Convert | ops.Reshape | ops.Slice):
        v = o.operand
    return v in graph.inputs


def _both(graph: Graph, read: Iterable[ops.Slice]) -> set[Value]:
    """What is computed element by element of all of these; nothing if there are none."""
    return set.intersection(*(_computed(graph, half.result) for half in read)) if read else set()


def _computed(graph: Graph, v: Value) -> set[Value]:
    """A value and what is computed of it element by element."""
    todo, seen = [v], {v}
    while todo:
        for u in graph.users.get(todo.pop(), ()):
            if isinstance(u, _Step) and u.result not in seen:
                seen.add(u.result)
                todo.append(u.result)
    return seen


def _summed(graph: Graph, computed: Iterable[Value]) -> bool:
    """Whether a reduce reads one of these: a norm makes it itself, of both products, and nothing in
    between is stored."""
    return any(isinstance(u, ops.Reduce) for v in computed for u in graph.users.get(v, ()))


def _half(graph: Graph, builder: Builder, o: ops.DotGeneral, steps: Sequence[_Step],
          half: ops.Slice) -> Value:
    """The slice of a product as a product, and what was done to that."""
    builder.loc = o.loc
    begin, end, dims = half.start_indices[-1], half.limit_indices[-1], half.result.type.dims
    (free,), shape = dot_dims(o).rhs_free, list(o.rhs.type.dims)
    start = [0] * len(shape)
    start[free], shape[free] = begin, end
    v = builder.append(dataclasses.replace(
        o, rhs=builder.slice(o.rhs, start, shape),
        results=(Value(TensorType(dims, o.result.type.dtype), o.result.hint),)))[0]
    same, made = {o.result: v}, v
    for step in steps:
        builder.loc = step.loc
        for x in step.inputs:
            if x in same:
                continue
            of = _repeated(graph, x)
            if isinstance(of, ops.BroadcastInDim):
                same[x] = builder.broadcast_in_dim(
                    builder.slice(of.operand, (begin,), (end,)), dims, of.dimensions)
            elif of is not None:
                same[x] = builder.splat(splat_value(of.value), TensorType(dims, x.type.dtype))
        made = Value(TensorType(dims, step.result.type.dtype), step.result.hint)
        builder.append(dataclasses.replace(step.clone(same), results=(made,)))
        same[step.result] = made
    return made


def waits(graph: Graph) -> dict[Op, tuple[Value, ...]]:
    """Contractions that are gated by what an earlier one of the same rows gives, and by what."""
    return {second: (first.result,) for (first, second), v in _gates(graph).items()
            if 2 * v.type.nbytes >= LEAST_BYTES and not _summed(graph, _computed(graph, v))}


def _gates(graph: Graph) -> dict[tuple[ops.DotGeneral, ops.DotGeneral], Value]:
    """Two contractions of the same rows, in their order, that meet element by element; and
    where."""
    found: dict[tuple[ops.DotGeneral, ops.DotGeneral], Value] = {}
    place = {o: i for i, o in enumerate(graph.ops)}
    for o in graph.ops:
        if isinstance(o, ops.Elementwise) and len(o.args) == 2:
            behind = sorted((dot for v in o.args if (dot := _behind(graph, v)) is not None),
                            key=lambda dot: place[dot])
            if len(behind) == 2 and behind[0] is not behind[1] and behind[0].lhs is behind[1].lhs:
                found[behind[0], behind[1]] = o.result
    return found


def _behind(graph: Graph, v: Value) -> ops.DotGeneral | None:
    """The contraction with many rows that ``v`` is computed of element by element."""
    todo, seen = [v], {v}
    dot: ops.DotGeneral | None = None
    while todo and len(seen) <= _STEPS:
        o = graph.producer.get(todo.pop())
        if isinstance(o, _Step):
            new = {x for x in o.inputs if x not in seen and _repeated(graph, x) is None}
            todo += new
            seen |= new
        elif dot is None and isinstance(o, ops.DotGeneral) \
                and dot_dims(o).m >= paired_columns.MIN_ROWS:
            dot = o
        else:
            return None
    return dot if not todo else None
