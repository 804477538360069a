"""Cumulative sums, products, maxima: windows that reach back to the first element, and scans.

    scan(x: 1000, add)                =>  reduce_window[1000, padded](x, add)
    reduce_window[1000, padded](x)    =>  y = x: 63 pieces of 16
                                          before = pad(reduce_window[63, padded](reduce[1](y)))
                                          before + reduce_window[16, padded](y)

A place reads 16 elements of its own piece, and the sums of the pieces before, each of which is made
once: 16 + 63 / 16 reads in place of 1000, for two stages more. Sums of pieces that are many are
made in the same way. That is the blocked scan of Blelloch (1990, "Prefix sums and their
applications", section 1.2.1), in which threads read again what they would tell each other. Where
vectors lie along another dimension, a thread combines a piece in turn (blocked_scan.py). Along the
last one the threads of a block do tell each other (`ops.Prefix`), of lines up to `LONGEST`:

    reduce_window[1000, padded](x: [b, 1000], add)   =>  prefix(x)
    reduce_window[1 << 20, padded](x)                =>  prefix[1024](x, before each 1024)
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence

from jaxmono.hlo import ops
from jaxmono.hlo.interp.monoids import MONOIDS
from jaxmono.hlo.ir import Graph, Op, Value
from jaxmono.hlo.passes.peephole import Rule, Scope
from jaxmono.hlo.passes.rules.blocked_scan import (
    PIECE,
    Combine,
    State,
    blocked_scan,
    in_pieces,
    shifted,
    whole,
)
from jaxmono.hlo.passes.rules.reduce_window import (
    MAX_CHAIN,
    cumulative_dimension,
    is_chain,
    lifted,
    neutral,
    reduce_window,
    retyped,
    single,
    sum_dtype,
)
from jaxmono.hlo.rewrite import Builder, binary_body, binary_kind
from jaxmono.hlo.types import DType, TensorType

LONGEST, LEAST = 4096, 1024
"""Elements of a line that one block goes through, 16 a thread; and of the pieces of longer ones,
where those are too few for all multiprocessors."""
FILL = 1 << 20
"""Elements together that keep all busy in pieces of `LONGEST`."""
_IN_BLOCKS = (DType.F32, DType.F64, DType.S32, DType.U32, DType.S64, DType.U64)

VECTOR = 4
"""Elements behind the dimension from which on a thread takes some of these in turn."""

MAX_READS = 1 << 23
"""Of all places together, where a window is no longer than `MAX_CHAIN`: some 2 us of an
H200's loads by their number, what two stages cost; not timed."""


def refusal(op: ops.Scan) -> str:
    """Why a scan stays with XLA; empty if it is expanded."""
    if _kind(op):
        return ""
    return "a scan whose body is more than one associative op is not generated"


def scan(op: ops.Scan, scope: Scope) -> Sequence[Value] | None:
    """A cumulative op as a window over all elements before."""
    kind = _kind(op)
    if not kind:
        return None
    (x,), (init,), d = op.args, op.inits, op.dimension
    dims, dtype = x.type.dims, x.type.dtype
    element = scope.element(init)
    start = scope.constant(neutral(kind, dtype) if element is None else element, dtype)
    made = _window(x, start, binary_body(kind, dtype), d, op.is_reverse, scope)
    if element is None:
        rest = tuple(i for i in range(len(dims)) if i != d)
        made = scope.elementwise(kind, scope.broadcast_in_dim(init, dims, rest), made)
    at = 0 if op.is_reverse else dims[d] - 1
    last = scope.slice(made, [at if i == d else 0 for i in range(len(dims))],
                       [at + 1 if i == d else m for i, m in enumerate(dims)])
    return [made, scope.reshape(last, init.type.dims)]


def pieces(op: ops.ReduceWindow, scope: Scope) -> Sequence[Value] | None:
    """A cumulative window by pieces, where it is long or read by many."""
    d = cumulative_dimension(op)
    if d is None:
        return None
    n, dims = op.window_dimensions[d], op.args[0].type.dims
    if not single(op):
        return None if is_chain(op) else _in_turn(op, d, scope)
    few = n * op.args[0].type.size <= MAX_READS
    if math.prod(dims[d + 1:]) == 1 and (sum_dtype(op) or op.args[0].type.dtype) in _IN_BLOCKS:
        return None if n <= 2 * PIECE and few else _in_blocks(op, d, scope)
    if n <= 2 * PIECE or (n <= MAX_CHAIN and few):
        return None
    return _in_turn(op, d, scope) if math.prod(dims[d + 1:]) >= VECTOR else _windows(op, d, scope)


def _in_turn(op: ops.ReduceWindow, d: int, scope: Scope) -> list[Value]:
    """By threads that combine a piece's elements in turn; vectors of what lies behind."""
    wide = sum_dtype(op)
    body = op.body if wide is None else retyped(op.body, wide)
    xs, inits = ([v if wide is None else scope.convert(v, wide) for v in values]
                 for values in (op.args, op.inits))
    all_ = frozenset(range(len(xs)))

    def apply(b: Builder, wanted: Collection[int], left: State, right: State) -> dict[int, Value]:
        shape = right[0].type.dims
        made = lifted(b, body, [side[k] for side in (left, right) for k in sorted(all_)], shape)
        return {k: made[k] for k in wanted}

    # Most begin with what changes nothing: what is stored is the result then.
    start, kind = scope.element(op.inits[0]), single(op)
    bare = bool(kind) and start is not None and bool(
        start == neutral(kind, op.args[0].type.dtype))
    uses = dict.fromkeys(all_, all_)
    made = blocked_scan(scope, dict(enumerate(xs)), d, Combine(uses, uses, apply), sorted(all_),
                        op.results[0].type.dtype if bare else None, back=op.padding[d][1] > 0)
    out = list(made.values())
    if not bare:
        dims = xs[0].type.dims
        out = lifted(scope, body, [*(scope.broadcast_in_dim(v, dims, ()) for v in inits), *out],
                     dims)
    return [scope.convert(v, r.type.dtype) for v, r in zip(out, op.results, strict=True)]


def _windows(op: ops.ReduceWindow, d: int, scope: Scope) -> list[Value]:
    """By a window for each place of a piece: neighbours are vectors."""
    n, dims = op.window_dimensions[d], op.args[0].type.dims
    back, kind = op.padding[d][1] > 0, single(op)
    wide = sum_dtype(op)
    body = op.body if wide is None else retyped(op.body, wide)
    x = op.args[0] if wide is None else scope.convert(op.args[0], wide)
    init = op.inits[0] if wide is None else scope.convert(op.inits[0], wide)
    nothing = scope.constant(neutral(kind, x.type.dtype), x.type.dtype)
    many = -(-n // PIECE)
    y = in_pieces(scope, x, d, many, PIECE, nothing, back)
    totals = scope.reduce(y, nothing, kind, [d + 1])
    sums = _window(totals, nothing, body, d, back, scope)
    if many > PIECE:  # a place would read those of all pieces before
        sums = scope.emit1(ops.Stored, sums.type, operand=sums)
    before = shifted(scope, sums, d, nothing, back)
    own = _window(y, init, body, d + 1, back, scope)
    spread = scope.broadcast_in_dim(before, y.type.dims,
                                    tuple(i + (i > d) for i in range(len(dims))))
    made = whole(scope, scope.elementwise(kind, spread, own), d, n, back)
    return [scope.convert(made, op.results[0].type.dtype)]


def _in_blocks(op: ops.ReduceWindow, d: int, scope: Scope) -> list[Value]:
    """By blocks of threads that have a line, or pieces of it."""
    n, dims, result = op.window_dimensions[d], op.args[0].type.dims, op.results[0].type
    back, kind = op.padding[d][1] > 0, single(op)
    wide = sum_dtype(op) or op.args[0].type.dtype
    x, init = (scope.convert(v, wide) for v in (op.args[0], op.inits[0]))
    nothing = scope.constant(neutral(kind, wide), wide)
    start = scope.element(init)
    # -0 is what changes nothing of a sum, and what sums begin with is 0.
    bare = start is not None and bool(start == neutral(kind, wide))
    front, row = [] if bare else [scope.broadcast_in_dim(init, dims, ())], 0
    if n > LONGEST:
        # Vectors of a thread are as wide as the line can be divided into.
        row = LONGEST if n % VECTOR == 0 and op.args[0].type.size >= FILL else LEAST
        many = -(-n // row)
        y = in_pieces(scope, x, d, many, row, nothing, back=False)
        totals = scope.reduce(y, nothing, kind, [d + 1])
        sums = _window(totals, nothing, binary_body(kind, wide), d, back, scope)
        before = scope.broadcast_in_dim(shifted(scope, sums, d, nothing, back), y.type.dims,
                                        tuple(i + (i > d) for i in range(len(dims))))
        before = whole(scope, before, d, n, back=False)
        front = [scope.elementwise(kind, v, before) for v in front] or [before]
    shape = dims[:d + 1]
    args = tuple(scope.reshape(v, shape) for v in (x, *front))
    made = scope.emit1(ops.Prefix, TensorType(shape, result.dtype), args=args, kind=kind, row=row,
                       back=back)
    return [scope.reshape(made, dims)]


def _window(x: Value, init: Value, body: Graph, d: int, back: bool, scope: Scope) -> Value:
    """The cumulative window over dimension ``d``."""
    dims = x.type.dims
    n, ones = dims[d], (1,) * len(dims)
    return scope.emit1(
        ops.ReduceWindow, x.type, args=(x,), inits=(init,), body=body,
        window_dimensions=tuple(n if i == d else 1 for i in range(len(dims))),
        window_strides=ones, base_dilations=ones, window_dilations=ones,
        padding=tuple((0, 0) if i != d else (0, n - 1) if back else (n - 1, 0)
                      for i in range(len(dims))))


def _kind(op: ops.Scan) -> str:
    """The kind of a scan of one operand by one of `MONOIDS`, whose results are the carries."""
    (*outputs, carried) = op.body.outputs
    if len(op.args) != 1 or len(op.inits) != 1 or outputs != [carried] or not op.is_associative \
            or op.args[0].type.dims[op.dimension] == 0 \
            or op.args[0].type.dtype is not carried.type.dtype:
        return ""
    kind = binary_kind(Graph(op.body.inputs, op.body.ops, (carried,), op.body.name))
    return kind if kind is not None and kind in MONOIDS else ""


RULES: Mapping[type[Op], Sequence[Rule]] = {ops.Scan: (scan,),
                                            ops.ReduceWindow: (pieces, reduce_window)}
