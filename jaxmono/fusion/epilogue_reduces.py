"""Reduces of a contraction's results that begin in its epilogue, on the accumulators.

    y = dot(x, w) * g               [m, n]       y = dot(x, w) * g
    s = reduce_add(y) over m        [n]     ──►  p = reduce_add(y as [m / 16, 16, n])  [m / 16, n]
                                                 s = reduce_add(p) over its rows       [n]

    d = reduce_min(c - dot(x, w))           ──►  p = reduce_min(... as [m, n / 32, 32])
        over n                      [m]          d = reduce_min(p) over its columns    [m]

The first step is a result of the contraction's own group: of `ROWS` rows a warp has all in
registers, of `COLUMNS` columns a few neighbouring lanes. What is only reduced (the nearest of many
rows, a norm's sums of what is not stored) is then never stored: of 8192 x 8192 distances that is
268 MB written and read. What is stored as well (the gradient in front of a bias's, the values
whose batch is normalised) is not read again for this.

Conversions in front of the reduce are made again for it, so that other readers take 16 bits. What
is stored in any case is not read again for a reduce beside other contractions, either: they do not
hide it. (A bias's gradient beside its weights': with 12 such reduces of 14.7 MB the
backward kernel of wav2vec2's training step took 0.7 % less of an H100's time.)

A reduce of columns stays where it is if its group also writes what it computes of them (a
normalisation, a softmax) and a block can keep a row: it reads them in any case, once for both.

Bolt's epilogues have "partial reduction over columns" (section 3.1, of CUTLASS); rows, reduces of
several values, and what is stored for the rest are ours. The order of the sums is fixed.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from jaxmono.fusion import cost
from jaxmono.fusion.cost import CHEAP, weight
from jaxmono.fusion.demand import reduction_index
from jaxmono.fusion.dots import dot_dims, result_index
from jaxmono.fusion.draft import ANCHORS, ENDS, Draft, State, depths
from jaxmono.fusion.indexing import Index, IndexMap, Var, delinearize, linearize
from jaxmono.fusion.rows import kept_shape, reduced_shape
from jaxmono.fusion.split_reduce import in_f32, neutral, rounded, why_ordered
from jaxmono.fusion.walk import Walk, leaves
from jaxmono.hlo import ops
from jaxmono.hlo.ir import Graph, Op, Value
from jaxmono.hlo.passes import dead_code
from jaxmono.hlo.rewrite import Builder, binary_kind
from jaxmono.hlo.types import TensorType

if TYPE_CHECKING:
    from jaxmono.fusion.formulate import Formulation

ROWS, COLUMNS = 16, 32
"""Neighbouring elements that the first step makes one of: the rows that a warp has at least, the
columns of four of its lanes."""
MIN_ROWS = 256
"""Fewer are multiplied by kernels that stream weights past them, or whose blocks share k."""
MIN_BYTES = 1 << 20
"""Of what the reduce would read. Convolutions with their batch's mean and variance on an H100: of
51 MB 0.67 of the time, of 13 MB 0.84, of 6 and 3 MB 0.996 and 0.97."""
KEPT_COLUMNS = 1 << 14
"""Of a row, which a block can keep in registers. Longer ones are read once more for each reduce
that needs another's result: the sum of a softmax that needs the largest."""
MOST = 256
"""Groups of rows that one more step reduces; of more, two: a few multiprocessors read them all.
(Groups of columns are neighbours in memory, of many rows.)"""


After = Mapping[Op, tuple[Value, ...]]
"""Values that come before an op which does not read them."""


@dataclass(frozen=True)
class Begun:
    """A reduce that can begin in the epilogue of ``dot``.

    Attributes:
      over_rows: whether it is over all of m; else over all of n.
      only: whether nothing else reads what is reduced.
      waits: what the reduce also needs that would otherwise be made beside the contraction.
    """

    dot: ops.DotGeneral
    over_rows: bool
    only: bool
    waits: tuple[Value, ...]


def of_contractions(graph: Graph) -> dict[Op, Op]:
    """The reduces of a graph that are of all rows or columns of a contraction, and that."""
    depth = depths(graph)
    return {o: b.dot for o in graph.ops if isinstance(o, ops.Reduce)
            and (b := _begun(graph, o, depth)) is not None}


def begin_reduces(graph: Graph, form: Formulation,
                  again: Callable[[Graph, After, Collection[Op]], Formulation],
                  ) -> tuple[Graph, Formulation, tuple[str, ...]]:
    """``graph`` with such reduces in two steps, and its groups; the given ones if it has none.

    Args:
      form: the groups of ``graph`` as it is. again: makes those of another graph, in which some
        contractions come after other values, and some reduces join them.

    Returns:
      The graph, its groups, and for reduces that stay whole, why.
    """
    chosen, refused = _choose(graph, form)
    while chosen:
        made, firsts = _split(graph, chosen)
        after: dict[Op, tuple[Value, ...]] = {}
        for b in (b for b in chosen.values() if b.waits):
            after[b.dot] = (*after.get(b.dot, ()), *b.waits)
        formed = again(order_after(made, after), after, firsts)
        lost = [o for first, o in firsts.items() if not _is_placed(formed.state, first)]
        if not lost:
            return formed.state.graph, formed, tuple(refused)
        for o in lost:
            refused[f"the reduce of {o.loc} does not begin in the epilogue in front of it: it "
                    "needs what is computed behind that"] = None
            del chosen[o]
    return graph, form, tuple(refused)


# ---- which --------------------------------------------------------------------------------------


def _choose(graph: Graph, form: Formulation) -> tuple[dict[ops.Reduce, Begun], dict[str, None]]:
    depth = depths(form.state.graph, form.state.after)
    found: dict[ops.Reduce, Begun] = {}
    refused: dict[str, None] = {}
    for draft in form.groups:
        if draft.kind != "row":
            continue
        reduces = [o for o in draft.ops if isinstance(o, ops.Reduce)]
        begun = {o: b for o in reduces if (b := _begun(graph, o, depth)) is not None}
        reason = ""
        if begun:
            misfits = (_misfit(o, b, form) for o, b in begun.items())
            reason = _refusal(draft, reduces, begun) or next(filter(None, misfits), "") \
                or _unpaid(form, draft, begun)
        for o, b in begun.items() if reason else ():
            refused[f"the reduce of {o.loc} does not begin in the epilogue of {b.dot.loc}: "
                    f"{reason}"] = None
        if not reason:
            found.update(begun)
    return found, refused


def _begun(graph: Graph, o: ops.Reduce, depth: Mapping[Value, int]) -> Begun | None:
    """How a reduce is one of all rows or all columns of a contraction; None if it is not."""
    inside = {v: None for a in o.args
              for v in leaves(graph, a, lambda p: not isinstance(p, ENDS))}
    sizes = math.prod(reduced_shape(o)), math.prod(kept_shape(o))
    if math.prod(sizes) < MIN_BYTES // 4:
        return None
    dots = {p: None for v in inside if isinstance(p := graph.producer.get(v), ops.DotGeneral)
            and not p.lhs_batch and v.type.size == math.prod(sizes)}
    whole = {over_rows: _whole(graph, o, dots, over_rows) for over_rows in (True, False)}
    for dot in sorted(dots, key=lambda p: -depth[p.result]):
        for over_rows, found in whole.items():
            if dot in found:
                waits = tuple(v for v in inside if v is not dot.result
                              and depth.get(v, 0) >= depth[dot.result]
                              and isinstance(graph.producer.get(v), ANCHORS))
                if any(dot.result in leaves(graph, v, lambda p: True) for v in waits):
                    return None
                return Begun(dot, over_rows, _is_only(graph, dot), waits)
    return None


def _is_only(graph: Graph, dot: ops.DotGeneral) -> bool:
    """Whether what is made of a contraction, element by element, is read by reduces only."""
    sizes = sorted((dot_dims(dot).m, dot_dims(dot).n))
    todo, seen = [dot.result], {dot.result}
    while todo:
        v = todo.pop()
        if v in graph.outputs:
            return False
        for u in graph.users.get(v, ()):
            if isinstance(u, ops.Reduce) and sorted(
                    map(math.prod, (reduced_shape(u), kept_shape(u)))) == sizes:
                continue  # of all rows, or all columns
            if isinstance(u, ANCHORS) or any(r.type.size != v.type.size for r in u.results):
                return False
            todo.extend(r for r in u.results if r not in seen)
            seen.update(u.results)
    return True


def _whole(graph: Graph, o: ops.Reduce, dots: Iterable[ops.DotGeneral],
           over_rows: bool) -> set[ops.DotGeneral]:
    """Those of ``dots`` whose m (or n) the reduce's dimensions are, in their order."""
    over_size, kept_size = math.prod(reduced_shape(o)), math.prod(kept_shape(o))
    rows, columns = (over_size, kept_size) if over_rows else (kept_size, over_size)
    fitting = [p for p in dots if (dot_dims(p).m, dot_dims(p).n) == (rows, columns)]
    if not fitting:
        return set()
    m, n = Index.of(Var("m", rows)), Index.of(Var("n", columns))
    over, kept = (m, n) if over_rows else (n, m)
    at = reduction_index(o, delinearize(kept, kept_shape(o)), delinearize(over, reduced_shape(o)))
    walk = Walk(graph, lambda p: not isinstance(p, ENDS), single={p.result for p in fitting})
    for a in o.args:
        walk.demand(a, at)
    return {p for p in fitting if walk.failed is None
            and walk.only(p.result) == result_index(p, Index(), m, n)}


def _refusal(draft: Draft, reduces: Collection[ops.Reduce],
             begun: Mapping[ops.Reduce, Begun]) -> str:
    """Why the reduces of a group stay there; empty if they need not."""
    if all(not b.over_rows and dot_dims(b.dot).n > KEPT_COLUMNS for b in begun.values()):
        return ""
    if not any(b.over_rows for b in begun.values()):
        if _writes_columns(draft):
            return "its group reads these rows for what else it writes"
        if not all(b.only for b in begun.values()):
            return "what is reduced is stored as well, and its rows are short"
    if len(begun) < len(reduces):
        return "its group also reduces what is no result of that contraction"
    return ""


def _writes_columns(draft: Draft) -> bool:
    return any(x.depends_on(c) for v in draft.outputs if v in draft.at
               for x in draft.at[v] for c in draft.cols)


def _unpaid(form: Formulation, draft: Draft, begun: Mapping[ops.Reduce, Begun]) -> str:
    """Why reading what a group reduces takes too little time to be saved; empty if it does not."""
    if all(b.only for b in begun.values()):
        return ""
    saved = sum(v.type.nbytes for v in form.reads[draft]
                if (maker := form.state.owner_of(v)) is not None
                and any(maker.has(b.dot) for b in begun.values()))
    return "" if saved >= MIN_BYTES else f"{saved >> 10} KiB are read in little time"


def _misfit(o: ops.Reduce, b: Begun, form: Formulation) -> str:
    dims = dot_dims(b.dot)
    if dims.m < MIN_ROWS or dims.n < COLUMNS:
        return f"{dims.m} rows and {dims.n} columns are fewer than {MIN_ROWS} and {COLUMNS}"
    if _loses_parts(b.dot, form):
        return f"an exact product of {dims.k} summed elements takes longer so"
    if not b.only and b.waits:
        return "the contraction would wait for what else is reduced"
    if len(o.args) == 1 and binary_kind(o.body) is not None and neutral(o) is None:
        return why_ordered(o)
    return ""


def _loses_parts(dot: ops.DotGeneral, form: Formulation) -> bool:
    """Whether an exact product, whose tiles of bf16 parts cannot reduce, gains more by these than
    a stage for the reduce and its bytes cost."""
    state = form.state
    return cost.exact_lost_us(dot, state.device) > cost.stored_us(
        dot.result.type.nbytes, state.device) and all(
        _lies_in_memory(state, v) for v in (dot.lhs, dot.rhs))


def _lies_in_memory(state: State, v: Value) -> bool:
    """Whether a value is one that a group stores, an input, or a view of such a one."""
    while (o := state.graph.producer.get(v)) is not None and state.owner_of(v) is None:
        if weight(o) > 0 and not isinstance(o, ops.Pad):
            return False
        if not o.inputs:
            return True
        v = o.inputs[0]
    return True


# ---- in two steps -------------------------------------------------------------------------------


def _split(graph: Graph, chosen: Mapping[ops.Reduce, Begun],
           ) -> tuple[Graph, dict[Op, ops.Reduce]]:
    """The graph with those reduces apart, and of which one each first step is."""
    out: list[Op] = []
    firsts: dict[Op, ops.Reduce] = {}
    copied: dict[Value, Value] = {}
    for o in graph.ops:
        if isinstance(o, ops.Reduce) and o in chosen:
            b = Builder(o.loc)
            args = tuple(_own(b, graph, a, copied) for a in o.args)
            wide = in_f32(b, o, args)
            first = _apart(b, wide, chosen[o].over_rows)
            rounded(b, o, wide)
            firsts[first] = o
            out.extend(b.ops)
        else:
            out.append(o)
    return dead_code(Graph(graph.inputs, tuple(out), graph.outputs, graph.name)), firsts


def _own(b: Builder, graph: Graph, v: Value, copied: dict[Value, Value]) -> Value:
    """``v``, with conversions and other cheap ops of one value in front of it made again. Others
    that read them then take what is stored in fewer bytes (`trim`), as they would without a reduce
    in the epilogue."""
    o = graph.producer.get(v)
    if v in copied or not isinstance(o, ops.Convert | ops.Elementwise) \
            or len(set(o.inputs)) != 1 or weight(o) > CHEAP \
            or v.type.dtype.itemsize < o.inputs[0].type.dtype.itemsize:
        return copied.get(v, v)
    clone = o.clone({o.inputs[0]: _own(b, graph, o.inputs[0], copied)}, fresh_results=True)
    copied[v] = b.append(clone)[0]
    return copied[v]


def _apart(b: Builder, o: ops.Reduce, over_rows: bool) -> Op:
    """Appends ``o`` in steps; returns the first one."""
    start = neutral(o) if len(o.args) == 1 else None
    # Several values at once (an argmax) begin with their own start, which has to be neutral.
    inits = o.inits if start is None else (b.constant(start, o.args[0].type.dtype),)
    over = sorted(o.dimensions)
    rest = [d for d in range(o.args[0].type.rank) if d not in o.dimensions]
    kept, count, size = kept_shape(o), math.prod(reduced_shape(o)), ROWS if over_rows else COLUMNS
    at = 0 if over_rows else len(kept)

    def shaped(*sizes: int) -> tuple[int, ...]:
        return (*sizes, *kept) if over_rows else (*kept, *sizes)

    def step(args: tuple[Value, ...], count: int, size: int) -> tuple[Value, ...]:
        left = shaped(count // size)
        return b.emit(ops.Reduce, [TensorType(left, a.type.dtype) for a in args],
                      args=tuple(b.reshape(a, shaped(count // size, size)) for a in args),
                      inits=inits, body=o.body, dimensions=(at + 1,))

    args = tuple(
        b.reshape(b.transpose(a, [*over, *rest] if over_rows else [*rest, *over]), shaped(count))
        for a in o.args)
    if missing := -count % size:
        none = [0] * (len(kept) + 1)
        high = [missing if d == at else 0 for d in range(len(none))]
        args = tuple(b.pad(a, x, none, high, none) for a, x in zip(args, inits, strict=True))
    args, count = step(args, count + missing, size), (count + missing) // size
    first = b.ops[-1]
    if over_rows and count > MOST and (size := _middle(count)):
        args, count = step(args, count, size), count // size
    b.append(ops.Reduce(results=o.results, loc=o.loc, args=args, inits=o.inits, body=o.body,
                        dimensions=(at,)))
    return first


def _middle(count: int) -> int:
    """Of how many groups a step between makes one: about as many as it leaves; 0 if none fits."""
    near = math.isqrt(count)
    return min((s for s in range(near // 2, 2 * near) if count % s == 0),
               key=lambda s: abs(s - near), default=0)


def order_after(graph: Graph, after: After) -> Graph:
    """``graph`` with its ops in an order in which ``after`` holds as well; as it is, if there is
    none."""
    if not after:
        return graph
    placed: dict[Op, None] = {}
    open_: set[Op] = set()
    for op in graph.ops:
        todo = [op]
        while todo:
            o = todo[-1]
            needs = [p for v in (*o.uses, *after.get(o, ()))
                     if (p := graph.producer.get(v)) is not None and p not in placed]
            if o in placed or not needs:
                placed[todo.pop()] = None
                open_.discard(o)
            elif any(p in open_ for p in needs):
                return graph  # two contractions that would wait for each other
            else:
                open_.add(o)
                todo.extend(needs)
    return Graph(graph.inputs, tuple(placed), graph.outputs, graph.name)


# ---- first steps in a contraction's draft -------------------------------------------------------


def place_in_epilogue(state: State, op: ops.Reduce) -> bool:
    """Lets a first step (``state.begun``) join the draft of the contraction whose elements it
    reduces; False if it is none, or if that cannot be. Nothing else joins through its result."""
    if op in state.banned or op not in state.begun:
        return False
    size = math.prod(reduced_shape(op))
    read = [x for a in op.args for x in _behind_padding(state.graph, a, size)]
    for value, between in read:
        draft = state.owner_of(value)
        if draft is None or draft.kind != "dot" or value not in draft.at \
                or draft.taps > 1 or draft.paired \
                or draft.domain[0].size != 1 or draft.domain[1].size < MIN_ROWS \
                or draft.domain[2].size < COLUMNS:
            continue
        placed = _place(op, _through(between, draft.at[value]), draft.domain)
        if placed is None or not _is_of_draft(state, draft, op, *placed):
            continue
        draft.reduced.update(dict.fromkeys(op.results, placed))
        # With what only the reduce reads of the draft's values.
        for o in (*(o for v, padding in read if v in draft.at for o in padding), op):
            state.claim(draft, o)
        return True
    return False


def _behind_padding(graph: Graph, v: Value, size: int) -> tuple[tuple[Value, tuple[Op, ...]], ...]:
    """``v``, and what it is if `_apart` has padded that to whole groups of ``size`` and reshaped
    it, with the ops that do."""
    shaped = graph.producer.get(v)
    padded = graph.producer.get(shaped.operand) if isinstance(shaped, ops.Reshape) else None
    if not isinstance(shaped, ops.Reshape) or not isinstance(padded, ops.Pad) \
            or any((*padded.low, *padded.interior)):
        return ((v, ()),)
    more = [(n, high) for n, high in
            zip(padded.operand.type.dims, padded.high, strict=True) if high]
    if len(more) != 1 or more[0][1] != -more[0][0] % size:
        return ((v, ()),)
    return (v, ()), (padded.operand, (padded, shaped))


def _through(between: tuple[Op, ...], at: IndexMap) -> IndexMap:
    """Where an element is behind these ops."""
    for o in between:
        if isinstance(o, ops.Reshape):
            at = delinearize(linearize(at, o.operand.type.dims), o.result.type.dims)
    return at


def elements(graph: Graph, op: ops.Reduce, index: IndexMap, group: Var, var: Var,
             ) -> list[tuple[Value, IndexMap]]:
    """What a first step reduces to its element ``index`` (over ``group``), as a function of
    ``var``, of whose elements the groups are: what was there before `_apart` has padded it to whole
    groups and reshaped it."""
    size = math.prod(reduced_shape(op))
    kept = tuple(i.substitute({group: Index.of(var) // size}) for i in index)
    at = reduction_index(op, kept, delinearize(Index.of(var) % size, reduced_shape(op)))
    return [_before(graph, a, at, padded=var.size % size > 0) for a in op.args]


def _before(graph: Graph, v: Value, at: IndexMap, *, padded: bool) -> tuple[Value, IndexMap]:
    shaped = graph.producer.get(v)
    if not isinstance(shaped, ops.Reshape):  # an input, which needs none
        return v, at
    at = delinearize(linearize(at, shaped.result.type.dims), shaped.operand.type.dims)
    if not padded:
        return shaped.operand, at
    pad = graph.producer[shaped.operand]
    assert isinstance(pad, ops.Pad)
    return pad.operand, at


def _is_of_draft(state: State, draft: Draft, op: ops.Reduce, over: tuple[Var, ...],
                 index: IndexMap) -> bool:
    """Whether all that is reduced is known where the draft's elements are, or before."""
    _, m, n = draft.domain
    (group,) = (x for x in over[1:] if x not in (m, n))
    walk = Walk(state.graph, lambda o: not draft.has(o) and not isinstance(o, ENDS))
    for v, at in elements(state.graph, op, index, group, m if n in over else n):
        walk.demand(v, at)
    return walk.failed is None and all(
        tuple(found) == (draft.at[v],) if v in draft.at else state.pot_of(v) < draft.pot
        for v, found in walk.reached.items())


def _place(op: ops.Reduce, at: IndexMap, domain: tuple[Var, ...],
           ) -> tuple[tuple[Var, ...], IndexMap] | None:
    """Over which Vars a first step's results are, and where, if what it reduces is at ``at``."""
    b, m, n = domain
    over = linearize(tuple(i for d, i in enumerate(at) if d in op.dimensions), reduced_shape(op))
    kept = tuple(i for d, i in enumerate(at) if d not in op.dimensions)
    for var, size, name in ((m, ROWS, "p"), (n, COLUMNS, "q")):
        if math.prod(reduced_shape(op)) != size or over != Index.of(var) % size:
            continue
        group = Var(name, math.ceil(var.size / size))
        index, last = (tuple(i.substitute({var: Index.of(group) * size + e}) for i in kept)
                       for e in (0, size - 1))
        if index == last:
            return (b, group, n) if var is m else (b, m, group), index
    return None


def _is_placed(state: State, first: Op) -> bool:
    draft = state.owner.get(first)
    return draft is not None and first.results[0] in draft.reduced
