"""Scans along one dimension in pieces whose elements one thread combines in turn.

    x [n, w]      y = x as [m, c, w]
    stage 1       totals[m, w] = y[:, 0] + y[:, 1] + ... + y[:, c-1]
    stage 2       before = scan(totals), of the pieces before           again in pieces if m > 16
    stage 3       h0 = before + y[:, 0];  h1 = h0 + y[:, 1];  ...       stored as [c, m, w]

"+" is any associative op, of several arrays at once: that of Mamba and other linear recurrences is
(a, b), (c, d) -> (a c, b c + d). Every element is read twice and written once, whatever n is; a
thread has c elements in flight. That is Blelloch's blocked scan (1990, "Prefix sums and their
applications", section 1.2.1). What is written lies piece by piece, as vectors of the dimensions
behind; its readers look through a transposition.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass

from jaxmono.hlo import ops
from jaxmono.hlo.ir import Value
from jaxmono.hlo.rewrite import Builder
from jaxmono.hlo.types import DType, TensorType

PIECE = 16
"""Most elements of a piece: as many vectors of results are in a thread's registers."""

State = Mapping[int, Value]
"""Arrays by the number of the component."""


@dataclass(frozen=True)
class Combine:
    """An associative op of one or more components.

    Attributes:
      left, right: by component, those of the operands that it is computed of.
      apply: (builder, components, left, right) -> these components of the result.
    """

    left: Mapping[int, frozenset[int]]
    right: Mapping[int, frozenset[int]]
    apply: Callable[[Builder, Collection[int], State, State], dict[int, Value]]

    def carried(self, wanted: Collection[int]) -> tuple[int, ...]:
        """The components that have to be carried along to have the wanted ones."""
        found: dict[int, None] = {}
        todo = list(wanted)
        while todo:
            k = todo.pop()
            if k not in found:
                found[k] = None
                todo += self.left[k]
        return tuple(sorted(found))

    def read(self, carried: Collection[int]) -> tuple[int, ...]:
        """The components of elements that these are computed of."""
        return tuple(sorted(set(carried).union(*(self.right[k] for k in carried))))


def blocked_scan(b: Builder, xs: State, d: int, combine: Combine, wanted: Collection[int],
                 stored: DType | None = None, *, back: bool = False,
                 groups: Iterator[int] | None = None) -> dict[int, Value]:
    """What elements up to each place, itself among them, combine to.

    Args:
      xs: arrays of one shape, by component.
      d: the dimension. back: from the last element to the first.
      stored: the type that results are stored in; by default their own.
      groups: numbers of groups that nobody has yet (`ops.Stored.group`), where several components
        are one group's: of complex numbers each is computed of all parts of the one before.
    """
    carried = combine.carried(wanted)
    read = combine.read(carried)
    dims = xs[read[0]].type.dims
    n = dims[d]
    piece = n if n <= PIECE else min(PIECE, 1 << ((n - 1).bit_length() + 1) // 2)
    many = -(-n // piece)
    ys = {k: in_pieces(b, xs[k], d, many, piece, b.constant(0, xs[k].type.dtype), back)
          for k in read}
    part = (*dims[:d], many, *dims[d + 1:])
    order = range(piece - 1, -1, -1) if back else range(piece)
    elements = [{k: _element(b, ys[k], d, j, part) for k in read} for j in order]
    held = {k: elements[0][k] for k in carried}
    if many > 1:
        totals = _totals(b, elements, combine, combine.carried(read),
                         next(groups) if groups is not None and len(carried) > 1 else 0)
        before = blocked_scan(b, totals, d, combine, carried, back=back, groups=groups)
        behind = {k: shifted(b, v, d, b.constant(0, v.type.dtype), back)
                  for k, v in before.items()}
        joined = combine.apply(b, carried, behind, elements[0])
        position = b.iota(part, DType.S32, d)
        edge = b.splat(many - 1 if back else 0, position.type)
        first = b.compare("EQ", position, edge)
        held = {k: b.elementwise("select", first, held[k], joined[k]) for k in carried}
    made = [held]
    for element in elements[1:]:
        held = combine.apply(b, carried, held, element)
        made.append(held)
    if back:
        made.reverse()
    group = next(groups) if groups is not None and len(wanted) > 1 else 0
    return {k: _together(b, [m[k] for m in made], d, dims, stored, back, group) for k in wanted}


def in_pieces(b: Builder, x: Value, d: int, many: int, piece: int, filler: Value,
              back: bool) -> Value:
    """[.., n, ..] as [.., many, piece, ..]; what is missing is at the end, and nothing sees it."""
    dims = x.type.dims
    if lack := many * piece - dims[d]:
        zeros, more = [0] * len(dims), [lack if i == d else 0 for i in range(len(dims))]
        x = b.pad(x, filler, *((more, zeros) if back else (zeros, more)), zeros)
    return b.reshape(x, (*dims[:d], many, piece, *dims[d + 1:]))


def whole(b: Builder, y: Value, d: int, n: int, back: bool) -> Value:
    """[.., n, ..] of [.., many, piece, ..]: `in_pieces` undone."""
    dims = (*y.type.dims[:d], y.type.dims[d] * y.type.dims[d + 1], *y.type.dims[d + 2:])
    x, lack = b.reshape(y, dims), dims[d] - n
    if not lack:
        return x
    start = [lack if back and i == d else 0 for i in range(len(dims))]
    return b.slice(x, start, [a + (n if i == d else m)
                              for i, (a, m) in enumerate(zip(start, dims, strict=True))])


def _element(b: Builder, y: Value, d: int, j: int, part: Sequence[int]) -> Value:
    """The j-th of each piece."""
    dims = y.type.dims
    start = [j if i == d + 1 else 0 for i in range(len(dims))]
    limit = [j + 1 if i == d + 1 else n for i, n in enumerate(dims)]
    return b.reshape(b.slice(y, start, limit, (1,) * len(dims)), tuple(part))


def _totals(b: Builder, elements: Sequence[State], combine: Combine,
            wanted: Sequence[int], group: int) -> dict[int, Value]:
    """What all elements of a piece combine to, stored by one group if it can be."""
    held = {k: elements[0][k] for k in wanted}
    for element in elements[1:]:
        held = combine.apply(b, wanted, held, element)
    if len({v.type for v in held.values()}) > 1 or not _is_piece(held[wanted[0]]):
        return {k: b.emit1(ops.Stored, v.type, operand=v) for k, v in held.items()}
    stack = _stacked(b, list(held.values()), group)
    dims = stack.type.dims
    return {k: b.reshape(b.slice(stack, [i, *[0] * (len(dims) - 1)], [i + 1, *dims[1:]],
                                 (1,) * len(dims)), dims[1:])
            for i, k in enumerate(held)}


def shifted(b: Builder, x: Value, d: int, filler: Value, back: bool) -> Value:
    """Each place has what is at the one before; the first, ``filler``."""
    dims = x.type.dims
    start = [int(i == d and back) for i in range(len(dims))]
    limit = [n - int(i == d and not back) for i, n in enumerate(dims)]
    zeros, one = [0] * len(dims), [int(i == d) for i in range(len(dims))]
    return b.pad(b.slice(x, start, limit), filler, *((zeros, one) if back else (one, zeros)),
                 zeros)


def _together(b: Builder, made: Sequence[Value], d: int, dims: Sequence[int],
              stored: DType | None, back: bool, group: int) -> Value:
    """[.., n, ..] of the elements of all pieces, from the first to the last."""
    parts = [b.convert(v, stored or v.type.dtype) for v in made]
    rank = len(dims)
    if _is_piece(parts[0]):
        stack = _stacked(b, parts, group)
    else:  # stored all the same: a reader would compute them in as many branches
        kept = [b.emit1(ops.Stored, v.type, operand=v, in_turn=group > 0, group=group)
                for v in parts]
        stack = b.concatenate([b.reshape(v, (1, *v.type.dims)) for v in kept], 0)
    # [c, .., m, ..] -> [.., m, c, ..]
    turned = b.transpose(stack, (*range(1, d + 2), 0, *range(d + 2, rank + 1)))
    return whole(b, turned, d, dims[d], back)


def _stacked(b: Builder, parts: Sequence[Value], group: int = 0) -> Value:
    kept = tuple(b.emit1(ops.Stored, v.type, operand=v, in_turn=True, group=group) for v in parts)
    t = parts[0].type
    return b.emit1(ops.Stacked, TensorType((len(parts), *t.dims), t.dtype), args=kept)


def _is_piece(v: Value) -> bool:
    """Whether arrays of this type can lie one behind the other."""
    return v.type.nbytes > 0 and v.type.nbytes % ops.PIECE_BYTES == 0
