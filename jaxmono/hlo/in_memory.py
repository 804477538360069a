"""Ops of our own on arrays in memory: what is stored, summed there, made of whole lines, joined."""

from __future__ import annotations

from jaxmono.hlo import ir
from jaxmono.hlo.ir import Graph, Op, Value, op


@op("stored")
class Stored(Op):
    """Identity, jaxmono's own: the operand as an array in memory, not recomputed by its readers.

    ``in_turn``: part of an array whose parts one group makes, each of the one before (a scan's).
    ``group``: if not 0, that group makes all that have the same number, of several arrays and of
    none (trips of a loop). ``own``: memory of an `Accumulate`, which writes over it. ``copy``: of
    what lies in memory already, by a group that makes nothing but copies."""

    operand: Value = ir.operand()
    in_turn: bool = ir.attribute(False)
    group: int = ir.attribute(0)
    own: bool = ir.attribute(False)
    copy: bool = ir.attribute(False)

    @property
    def is_one_of_its_kind(self) -> bool:
        """Whether another op with the same operand is another array."""
        return self.in_turn or self.own or self.copy


def most_groups(graph: Graph) -> int:
    """The largest number of a group (`Stored.group`) so far."""
    return max((o.group for o in graph.ops if isinstance(o, Stored)), default=0)


ACCUMULATED = ("add", "maximum", "minimum")
"""What memory can do by itself."""


@op("accumulate")
class Accumulate(Op):
    """Sums (largest, smallest elements: ``kind``) in the operand's memory, jaxmono's own, in any
    order: ``out[lines[t]] = kind(out[lines[t]], update[t])`` for all t.

    operand: [v, ...], an array that is `Stored` for this op alone. lines: s32[t]; -1: of no line.
    update: [t, ...]."""

    operand: Value = ir.operand()
    lines: Value = ir.operand()
    update: Value = ir.operand()
    kind: str = ir.attribute("add")


@op("prefix")
class Prefix(Op):
    """Cumulative sums (products, largest, smallest elements: ``kind``, one of `hlo.interp.monoids`)
    along the last dimension, jaxmono's own, as an array in memory.

    args: x, and what stands in front of each element's row, spread over it. ``row``: elements of a
    line that are combined, before the next ones begin anew; 0: all. ``back``: from the last element
    to the first. The result may be of a narrower type."""

    args: tuple[Value, ...] = ir.operands()
    kind: str = ir.attribute("add")
    row: int = ir.attribute(0)
    back: bool = ir.attribute(False)


@op("fourier")
class Fourier(Op):
    """Discrete Fourier transforms along dimension ``axis``, jaxmono's own, as an array in memory.

    args: real parts, and imaginary ones, unless they are nothing. The result has ``kept`` elements
    along ``axis``, and one dimension more, of their two parts; ``real``: it has the real ones
    alone. ``back``: with the conjugate roots of one. What comes out is divided by ``divisor``.

    half: args are the first half (n / 2 + 1 elements of n, an even number, along the last
    dimension) of what real numbers are transformed to, which are the result.

    twist: where it is not 0, a step of a transform of that length: element k is multiplied by the
    ``twist``-th root of one to the power of k times the place along the next dimension, and the
    result has that one in front of ``axis``."""

    args: tuple[Value, ...] = ir.operands()
    axis: int = ir.attribute()
    kept: int = ir.attribute()
    back: bool = ir.attribute(False)
    divisor: int = ir.attribute(1)
    twist: int = ir.attribute(0)
    real: bool = ir.attribute(False)
    half: bool = ir.attribute(False)

    @property
    def made(self) -> tuple[int, ...]:
        """Dimensions of the result, but for the one of the parts."""
        dims = list(self.args[0].type.dims)
        dims[self.axis] = self.kept
        if self.twist:
            dims[self.axis:self.axis + 2] = dims[self.axis + 1], dims[self.axis]
        return tuple(dims)


OF_LINES = (Prefix, Fourier)
"""What a loop makes line by line: it stores nothing else."""
PIECE_BYTES = 16
"""Parts of arrays in memory begin at multiples of it: no load has to know that it reads one."""


@op("stacked")
class Stacked(Op):
    """Concatenation along dimension 0, jaxmono's own, of `Stored` arrays that lie one behind the
    other in memory: nothing is copied. Each may be an operand here once, in all the graph."""

    args: tuple[Value, ...] = ir.operands()


@op("piece")
class Piece(Op):
    """The ``index``-th piece of the result's size, jaxmono's own, of a graph's input or an array
    that is `Stored` or `Stacked`: read where it lies, by code that does not differ from that of
    another piece."""

    operand: Value = ir.operand()
    index: int = ir.attribute()
