"""Complex numbers as pairs of floats, before any other pass looks at a region.

    z: c64[m,k]                 z: f32[m,k,2]     as it lies in memory
    y = multiply(z, w)          re = reshape(slice(z, [..., 0])), im = reshape(slice(z, [..., 1]))
                          =>    y.re = re * w.re - im * w.im, y.im = re * w.im + im * w.re
    return y                    return concatenate(y.re[..., None], y.im[..., None])

So nothing behind it knows complex numbers: in registers and between stages there are arrays of real
and of imaginary parts. What moves elements, and sums, is done to each part; functions are in
`complex_functions`, products of matrices in `complex_products`, transforms in `fourier`; a loop has
twice as many carries.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from jaxmono.hlo import ops
from jaxmono.hlo.ir import Graph, Op, Value
from jaxmono.hlo.passes import fourier
from jaxmono.hlo.passes.complex_functions import FUNCTIONS, Pair, Parts
from jaxmono.hlo.passes.complex_products import Along, Side, parts_of, product
from jaxmono.hlo.passes.peephole import remapped
from jaxmono.hlo.passes.whole_loop import is_whole
from jaxmono.hlo.types import MAX_RANK, PART, TensorType

_MOVES = (ops.BroadcastInDim, ops.Concatenate, ops.DynamicSlice, ops.DynamicUpdateSlice, ops.Gather,
          ops.Pad, ops.Reshape, ops.Reverse, ops.Slice, ops.Transpose)
_ADDITIVE = ("add", "negate", "select", "subtract")
_OF_BOTH = ("conj", "imag", "real")
"""Kinds that take real numbers as well."""
_COMBINES = (ops.ReduceWindow, ops.Scan, ops.Scatter)
"""Each part by itself, if their bodies are."""
_FLAT = (ops.Case, ops.OptimizationBarrier, ops.Reduce, ops.While)
"""With the parts of each operand one behind the other."""


def complex_parts(graph: Graph, shared_bytes: int = fourier.LEAST_BYTES) -> Graph:
    """The graph on floats; inputs and outputs that are complex have one dimension more, of their
    two parts, and the same bytes. A graph without complex numbers is given back.

    Args:
      shared_bytes: of a block.

    Raises:
      ValueError: an op has a `refusal`.
    """
    if not any(map(_is_complex, (*graph.inputs, *graph.outputs))) and not _any(graph.ops):
        return graph
    return _Split(_Known(shared_bytes=shared_bytes)).lying(graph)


def has_complex(op: Op) -> bool:
    """Whether there are complex numbers among what an op takes, gives and has in its regions, or
    there might be."""
    if isinstance(op, ops.Elementwise) and op.kind in _OF_BOTH:
        return True
    return any(map(_is_complex, (*op.uses, *op.results))) or any(
        any(map(_is_complex, g.inputs)) or _any(g.ops) for g in op.subgraphs)


def in_parts(op: Op) -> tuple[Op, ...]:
    """What `complex_parts` makes of one op, on the same operands where they are real.

    Raises:
      ValueError: as `complex_parts`.
    """
    split = _Split()
    for v in op.uses:
        if _is_complex(v):
            split.pairs[v] = (Value(_part(v.type), v.hint), Value(_part(v.type), v.hint))
    split.visit(op)
    return tuple(split.ops)


def refusal(op: Op) -> str | None:
    """Why an op with complex numbers cannot be one of floats, but for ops in its regions, or
    None."""
    if isinstance(op, ops.Elementwise):
        if op.kind in FUNCTIONS or op.kind in (*_ADDITIVE, "complex"):
            return None
        return f"{op.kind} of complex numbers is not generated yet"
    if isinstance(op, ops.DotGeneral):
        return "dot algorithms of complex numbers are XLA's" if op.algorithm else None
    if isinstance(op, ops.Compare):
        return None if op.direction in ("EQ", "NE") else "complex numbers have no order"
    if isinstance(op, _COMBINES):
        return None if _by_parts(op) else (
            f"{op.opcode} of complex numbers is generated for sums only")
    if isinstance(op, ops.Fft):
        return fourier.refusal(op)
    known = (*_MOVES, *_FLAT, ops.Constant, ops.Convert, ops.Iota)
    return None if isinstance(op, known) else (
        f"{op.opcode} of complex numbers is not generated yet")


def _is_complex(v: Value) -> bool:
    return v.type.dtype.is_complex


def _any(of: Iterable[Op]) -> bool:
    return any(map(has_complex, of))


def _part(type: TensorType) -> TensorType:
    return TensorType(type.shape, PART[type.dtype])


def _by_parts(op: Op) -> bool:
    """Whether an op does the same to real and to imaginary parts, its regions as well."""
    return all(map(_is_complex, op.results)) and all(
        isinstance(o, _MOVES) or (isinstance(o, ops.Elementwise) and o.kind in _ADDITIVE)
        for g in op.subgraphs for o in g.ops)


def _outside(type: TensorType) -> tuple[int, ...]:
    """Flat where there is no room for one dimension more."""
    return type.dims if type.rank < MAX_RANK else (type.size,)


def _lying(values: Iterable[Value]) -> tuple[Value, ...]:
    """New values for complex ones as they lie in memory; the others themselves."""
    return tuple(Value(TensorType((*_outside(v.type), 2), PART[v.type.dtype]), v.hint)
                 if _is_complex(v) else v for v in values)


@dataclass
class _Known:
    """What has become of a graph's values.

    Attributes:
      pairs: complex values' parts.
      same: what stands for floats that were made of complex numbers.
      wholes: arrays that have the parts of a complex value in their last dimension.
      turned: transpositions that are such arrays, of products whose parts lie elsewhere. Where the
        value is a result, its elements are stored there in place of both parts; products read the
        parts.
      nothing: of `Parts`.
      real: complex values of which nobody looks at more than the real part.
      shared_bytes: of a block.
    """

    pairs: dict[Value, Pair] = field(default_factory=dict)
    same: dict[Value, Value] = field(default_factory=dict)
    wholes: dict[Value, Value] = field(default_factory=dict)
    turned: dict[Value, Value] = field(default_factory=dict)
    nothing: set[Value] = field(default_factory=set)
    real: set[Value] = field(default_factory=set)
    shared_bytes: int = fourier.LEAST_BYTES


class _Split(Parts):
    """The ops so far, on parts."""

    def __init__(self, known: _Known | None = None) -> None:
        super().__init__()
        self.known = known or _Known()
        self.pairs, self.same = self.known.pairs, self.known.same
        self.wholes, self.nothing = self.known.wholes, self.known.nothing
        self.real = self.known.real

    # ---- borders -------------------------------------------------------------------------------

    def lying(self, graph: Graph) -> Graph:
        """A graph, or a loop's body, that takes and gives complex values as they lie in memory."""
        inputs = _lying(graph.inputs)
        self._lie(graph.inputs, inputs)
        self.visit_all(graph)
        outputs = self._left(graph.outputs)
        return Graph(inputs, tuple(self.ops), outputs, graph.name)

    def _lie(self, values: Sequence[Value], lying: Sequence[Value]) -> None:
        for v, both in zip(values, lying, strict=True):
            if _is_complex(v):
                self._lies(v, both)

    def _left(self, values: Iterable[Value]) -> tuple[Value, ...]:
        return tuple(self._to_lie(v) if _is_complex(v) else self.same.get(v, v) for v in values)

    def _to_lie(self, v: Value) -> Value:
        """A complex value as it lies in memory."""
        shape = (*_outside(v.type), 2)
        return self.reshape(self.known.turned.get(v) or self._whole(v), shape)

    def _lies(self, v: Value, both: Value) -> None:
        """A complex value is what ``both`` has in its last dimension."""
        re, im = (self.reshape(x, v.type.dims) for x in parts_of(self, both, both.type.rank - 1))
        self.pairs[v] = re, im
        self.wholes[v] = both

    def _whole(self, v: Value) -> Value:
        """The array of a value's parts, which are its last dimension."""
        if (both := self.wholes.get(v)) is None:
            shape = v.type.dims
            both = self.concatenate([self.reshape(x, (*shape, 1)) for x in self.pairs[v]],
                                    len(shape))
        return self.reshape(both, (*v.type.dims, 2))

    # ---- ops -----------------------------------------------------------------------------------

    def visit_all(self, graph: Graph) -> None:
        for op in reversed(graph.ops):
            self.real.update(v for v in op.results if _is_complex(v) and v not in graph.outputs
                             and all(map(self._looks_at_real, graph.users.get(v, ()))))
        for op in graph.ops:
            self.visit(op)

    def _looks_at_real(self, op: Op) -> bool:
        """Whether an op makes nothing of the imaginary parts of its operands that anybody needs."""
        return (isinstance(op, ops.Elementwise) and op.kind == "real") or (
            isinstance(op, _MOVES) and op.result in self.real)

    def visit(self, op: Op) -> None:
        self.loc = op.loc
        if not has_complex(op):
            self.append(remapped(op, self.same))
            return
        if (reason := refusal(op)) is not None:
            raise ValueError(f"{reason} ({op.loc})")
        if isinstance(op, ops.Elementwise):
            self._elementwise(op)
        elif isinstance(op, ops.Constant):
            re, im = (self.constant(x) if x.any() else self.zero(_part(op.result.type))
                      for x in (op.value.real, op.value.imag))
            self._put(op, (re, im))
        elif isinstance(op, ops.Iota):
            re = self.iota(op.result.type.dims, PART[op.result.type.dtype], op.dimension)
            self._put(op, (re, self.zero(re.type)))
        elif isinstance(op, ops.Convert):
            self._convert(op)
        elif isinstance(op, ops.Compare):
            same = [self.compare(op.direction, a, b) for a, b in
                    zip(self.pairs[op.lhs], self.pairs[op.rhs], strict=True)]
            self.same[op.result] = self.elementwise("and" if op.direction == "EQ" else "or", *same)
        elif isinstance(op, ops.DotGeneral):
            self._dot(op)
        elif isinstance(op, ops.Fft):
            self._fft(op)
        elif isinstance(op, _FLAT) and not (isinstance(op, ops.Reduce) and _by_parts(op)):
            self._flat(op)
        else:
            made = [self._each(op, i) for i in (0, 1)]
            for old, pair in zip(op.results, zip(*made, strict=True), strict=True):
                self.pairs[old] = pair
            self._move_whole(op)

    def _move_whole(self, op: Op) -> None:
        """What lies in memory still does when it is only looked at in another order."""
        if not isinstance(op, ops.Reshape | ops.Transpose):
            return
        for known in (self.wholes, self.known.turned):
            if (both := known.get(op.operand)) is None:
                continue
            both = self.reshape(both, (*op.operand.type.dims, 2))
            known[op.result] = self.reshape(both, (*op.result.type.dims, 2)) \
                if isinstance(op, ops.Reshape) else \
                self.transpose(both, (*op.permutation, op.operand.type.rank))

    def _put(self, op: Op, pair: Pair) -> None:
        self.pairs[op.result] = pair

    def _elementwise(self, op: ops.Elementwise) -> None:
        if op.kind in _OF_BOTH and not _is_complex(v := op.args[0]):
            self.same[op.result] = self.splat(0, v.type) if op.kind == "imag" else \
                self.same.get(v, v)
        elif op.kind == "complex":
            re, im = (self.same.get(v, v) for v in op.args)
            self._put(op, (re, im))
        elif op.kind in ("add", "subtract"):
            do = self.add if op.kind == "add" else self.sub
            re, im = (do(*(self.pairs[v][i] for v in op.args)) for i in (0, 1))
            self._put(op, (re, im))
        elif op.kind in FUNCTIONS:
            made = FUNCTIONS[op.kind](self, *(self.pairs[v] for v in op.args))
            if isinstance(made, Value):
                self.same[op.result] = made
            else:
                self._put(op, made)
        else:
            (re,), (im,) = (self._each(op, i) for i in (0, 1))
            self._put(op, (re, im))

    def _convert(self, op: ops.Convert) -> None:
        source, target = op.operand.type.dtype, op.result.type.dtype
        if not target.is_complex:
            self.same[op.result] = self.convert(self.pairs[op.operand][0], target)
        elif source.is_complex:
            re, im = self.pairs[op.operand]
            self._put(op, (self.convert(re, PART[target]), self.convert(im, PART[target])))
        else:
            re = self.convert(self.same.get(op.operand, op.operand), PART[target])
            self._put(op, (re, self.zero(re.type)))

    def _dot(self, op: ops.DotGeneral) -> None:
        made = product(self, op, self._side(op.lhs, op.lhs_batch, op.lhs_contract),
                       self._side(op.rhs, op.rhs_batch, op.rhs_contract),
                       real=op.result in self.real)
        if not isinstance(made, Along):
            self._put(op, made)
        elif made.axis == made.value.type.rank - 1:
            self._lies(op.result, made.value)
        else:
            self._put(op, parts_of(self, made.value, made.axis))
            order = [d for d in range(made.value.type.rank) if d != made.axis]
            self.known.turned[op.result] = self.transpose(made.value, (*order, made.axis))

    def _fft(self, op: ops.Fft) -> None:
        z = op.operand
        made = fourier.transform(self, op, self.pairs[z] if _is_complex(z) else self.same.get(z, z),
                                 real=op.result in self.real,
                                 shared_bytes=self.known.shared_bytes)
        if not isinstance(made, Value):
            self._put(op, made)
        elif _is_complex(op.result):
            self._lies(op.result, made)
        else:
            self.same[op.result] = made

    def _side(self, v: Value, batch: tuple[int, ...], summed: tuple[int, ...]) -> Side:
        re, im = self.pairs[v]
        return Side(re, None if im in self.nothing else im, lambda: self._whole(v), batch, summed,
                    lies=v in self.wholes)

    def _each(self, op: Op, which: int) -> tuple[Value, ...]:
        """The same op on one of the parts, with a region that is of them as well."""
        if isinstance(op, _MOVES) and all(
                self.pairs[v][which] in self.nothing for v in op.uses if _is_complex(v)):
            return (self.zero(_part(op.result.type)),)
        mapping = {**self.same, **{v: self.pairs[v][which] for v in op.uses if _is_complex(v)}}
        changes = {f.name: _retyped(getattr(op, f.name), self.pairs, which)
                   for f in op.declared("region")}
        results = tuple(Value(_part(v.type), v.hint) for v in op.results)
        return self.append(dataclasses.replace(op.clone(mapping), results=results, **changes))

    def _flat(self, op: Op) -> None:
        """With parts one behind the other, of operands and results and of what regions take.

        A loop that a kernel ends with carries them as they lie: what it carries are the results.
        """
        if isinstance(op, ops.While) and is_whole(op):
            self._whole_loop(op)
            return
        changes: dict[str, object] = {
            f.name: tuple(self._flattened(getattr(op, f.name))) for f in op.declared("operands")}
        for f in op.declared("region"):
            changes[f.name] = self._region(getattr(op, f.name))
        for f in op.declared("regions"):
            changes[f.name] = tuple(map(self._region, getattr(op, f.name)))
        results = self._fresh(op.results)
        new = dataclasses.replace(remapped(op, self.same), results=results, **changes)
        self.append(new)

    def _whole_loop(self, op: ops.While) -> None:
        # Which reads nothing but whether the loop goes on.
        cond = Graph(_lying(op.cond.inputs), op.cond.ops, op.cond.outputs, op.cond.name)
        results = _lying(op.results)
        self.append(dataclasses.replace(op, args=self._left(op.args), results=results, cond=cond,
                                        body=_Split(self.known).lying(op.body)))
        self._lie(op.results, results)

    def _flattened(self, values: Iterable[Value]) -> list[Value]:
        return [x for v in values for x in (
            self.pairs[v] if _is_complex(v) else (self.same.get(v, v),))]

    def _fresh(self, values: Iterable[Value]) -> tuple[Value, ...]:
        """What a region takes, or an op gives: new values for the parts of complex ones."""
        out: list[Value] = []
        for v in values:
            if _is_complex(v):
                self.pairs[v] = (Value(_part(v.type), v.hint), Value(_part(v.type), v.hint))
                out += self.pairs[v]
            else:
                out.append(v)
        return tuple(out)

    def _region(self, graph: Graph) -> Graph:
        inside = _Split(self.known)
        inputs = inside._fresh(graph.inputs)
        inside.visit_all(graph)
        return Graph(inputs, tuple(inside.ops), tuple(inside._flattened(graph.outputs)), graph.name)


def _retyped(graph: Graph, pairs: Mapping[Value, Pair], which: int) -> Graph:
    """A region of `_by_parts` on one part."""
    mapping = {v: pairs[v][which] for v in graph.captures if _is_complex(v)}
    inputs = tuple(Value(_part(v.type), v.hint) if _is_complex(v) else v for v in graph.inputs)
    mapping.update(zip(graph.inputs, inputs, strict=True))
    made: list[Op] = []
    for o in graph.ops:
        results = tuple(Value(_part(v.type), v.hint) if _is_complex(v) else Value(v.type, v.hint)
                        for v in o.results)
        made.append(dataclasses.replace(o.clone(mapping), results=results))
        mapping.update(zip(o.results, results, strict=True))
    return Graph(inputs, tuple(made), tuple(mapping.get(v, v) for v in graph.outputs), graph.name)
