"""Convolutions as contractions over a sliding window of the input.

    convolution(x, k)  =>  dot_general(window(pad(x)), reverse(k)), contracting taps and features

The window is a view, so nothing is copied: a tile of the product reads the input where it lies
(implicit GEMM). Groups are a batch dimension of the product. Where each group has one output
feature or one input feature (depthwise) a matrix product would have almost no columns, so
these are a sum over taps of scaled slices, or a reduction where the window is large. So are those
from one feature to one: a blur of 1024 x 1024 pixels by 9 taps, twice, took 150 us of an H200 as
products of padded features, 11 so.

Dimensions are followed by name: ``n`` batch, ``g`` group, ``c`` input feature within a group, ``o``
output feature within a group, ``s0 s1 ...`` spatial, ``t0 t1 ...`` taps.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from jaxmono.hlo import ops
from jaxmono.hlo.ir import Op, Value
from jaxmono.hlo.passes.peephole import Rule, Scope
from jaxmono.hlo.types import DType

MAX_SLICES = 64
"""Taps up to which a depthwise convolution is a sum of slices; more are a reduction."""

MAX_MULTIPLIER = 8
"""Output features per input feature up to which a convolution counts as depthwise."""


@dataclass(frozen=True)
class Named:
    """A value and the name of each of its dimensions."""

    value: Value
    names: tuple[str, ...]

    def at(self, name: str) -> int:
        return self.names.index(name)

    def size(self, name: str) -> int:
        return self.value.type.dims[self.at(name)] if name in self.names else 1


def convolution(op: ops.Convolution, scope: Scope) -> Sequence[Value] | None:
    """Any convolution, as a product, a sum of slices or a reduction (see above)."""
    out = op.result.type
    if 0 in (out.size, op.lhs.type.size, op.rhs.type.size):
        return [scope.splat(0, out)]
    x, kernel = _input(op, scope), _kernel(op, scope)
    groups, c, o = kernel.size("g"), kernel.size("c"), kernel.size("o")
    taps = math.prod(op.rhs.type.dims[d] for d in op.kernel_spatial)
    if (groups > 1 or o == 1) and c == 1 and o <= MAX_MULTIPLIER and taps <= MAX_SLICES:
        made = _sum_of_slices(op, scope, x, kernel)
    else:
        x, kernel = _windowed(op, scope, x, kernel)
        reduces = groups > 1 and o == 1
        made = _reduction(op, scope, x, kernel) if reduces else _product(op, scope, x, kernel)
    return [_laid_out(op, scope, made)]


# ---- operands ----------------------------------------------------------------------------------


def _input(op: ops.Convolution, scope: Scope) -> Named:
    """The input, padded and with holes, its groups a dimension of their own."""
    names = [""] * op.lhs.type.rank
    names[op.input_batch], names[op.input_feature] = "n", "c"
    low, high, interior = ([0] * len(names) for _ in range(3))
    for i, d in enumerate(op.input_spatial):
        names[d] = f"s{i}"
        low[d], high[d] = op.padding[i]
        if op.lhs.type.dims[d] > 1:
            interior[d] = op.lhs_dilation[i] - 1
    v = op.lhs
    if any((*low, *high, *interior)):
        v = scope.pad(v, scope.constant(0, v.type.dtype), low, high, interior)
    x = Named(v, tuple(names))
    if op.feature_group_count > 1:
        return _split(scope, x, "c", op.feature_group_count)
    return _split(scope, x, "n", op.batch_group_count)


def _kernel(op: ops.Convolution, scope: Scope) -> Named:
    names = [""] * op.rhs.type.rank
    names[op.kernel_input_feature], names[op.kernel_output_feature] = "c", "o"
    for i, d in enumerate(op.kernel_spatial):
        names[d] = f"t{i}"
    v = op.rhs
    turned = tuple(sorted(d for d, r in zip(op.kernel_spatial, op.window_reversal, strict=True)
                          if r))
    if turned:
        v = scope.emit1(ops.Reverse, v.type, operand=v, dimensions=turned)
    return _split(scope, Named(v, tuple(names)), "o",
                  op.feature_group_count * op.batch_group_count)


def _split(scope: Scope, x: Named, name: str, groups: int) -> Named:
    """``name`` as (group, within the group)."""
    if groups == 1:
        return x
    d, dims = x.at(name), x.value.type.dims
    v = scope.reshape(x.value, (*dims[:d], groups, dims[d] // groups, *dims[d + 1:]))
    return Named(v, (*x.names[:d], "g", *x.names[d:]))


def _places(op: ops.Convolution, i: int) -> tuple[int, int, int]:
    """How many places the window takes along spatial dimension ``i``; its stride and dilation."""
    return (op.result.type.dims[op.output_spatial[i]], op.window_strides[i], op.rhs_dilation[i])


def _windowed(op: ops.Convolution, scope: Scope, x: Named, kernel: Named) -> tuple[Named, Named]:
    """The input with taps as dimensions. A window of one element is only a slice."""
    start = [0] * len(x.names)
    limit, strides = list(x.value.type.dims), [1] * len(x.names)
    sizes: dict[int, int] = {}
    for i in range(len(op.input_spatial)):
        d, n = x.at(f"s{i}"), kernel.size(f"t{i}")
        count, stride, _ = _places(op, i)
        if n > 1:
            sizes[i] = n
        else:
            limit[d], strides[d] = (count - 1) * stride + 1, stride
    v = scope.slice(x.value, start, limit, strides)
    v = scope.window(v, [x.at(f"s{i}") for i in sizes], list(sizes.values()),
                     [op.window_strides[i] for i in sizes], [op.rhs_dilation[i] for i in sizes])
    kept = [d for d, name in enumerate(kernel.names)
            if name[0] != "t" or int(name[1:]) in sizes]
    weights = scope.reshape(kernel.value, [kernel.value.type.dims[d] for d in kept])
    return (Named(v, (*x.names, *(f"t{i}" for i in sizes))),
            Named(weights, tuple(kernel.names[d] for d in kept)))


# ---- the three forms ---------------------------------------------------------------------------


def _product(op: ops.Convolution, scope: Scope, x: Named, kernel: Named) -> Named:
    batch = [n for n in x.names if n == "g"]
    contract = [n for n in kernel.names if n == "c" or n[0] == "t"]
    if x.names[-1 - sum(n[0] == "t" for n in x.names)] == "c":
        # Features lie next to each other in the input: they are the inner part of k, so that 16
        # bytes along k are neighbours. Otherwise the kernel's own order is as good as any.
        contract = [*(n for n in contract if n != "c"), "c"]
    sides = [[[v.at(n) for n in names] for v in (x, kernel)] for names in (batch, contract)]
    made = scope.dot_general(
        x.value, kernel.value, batch=(sides[0][0], sides[0][1]),
        contract=(sides[1][0], sides[1][1]), dtype=op.result.type.dtype, precision=op.precision)
    free = [n for v in (x, kernel) for n in v.names if n not in (*batch, *contract)]
    return Named(made, (*batch, *free))


def _sum_of_slices(op: ops.Convolution, scope: Scope, x: Named, kernel: Named) -> Named:
    # sum over t of x[..., s * stride + t * dilation, ...] * kernel[t]
    rank = len(op.input_spatial)
    names = (*(n for n in x.names if n != "c"), "o")
    dtype = _sum_dtype(op)
    total: Value | None = None
    for taps in itertools.product(*(range(kernel.size(f"t{i}")) for i in range(rank))):
        start = [0] * len(x.names)
        limit, strides = list(x.value.type.dims), [1] * len(x.names)
        first, last = [0] * len(kernel.names), list(kernel.value.type.dims)
        for i, t in enumerate(taps):
            d = x.at(f"s{i}")
            count, stride, dilation = _places(op, i)
            start[d], strides[d] = t * dilation, stride
            limit[d] = start[d] + (count - 1) * stride + 1
            first[kernel.at(f"t{i}")], last[kernel.at(f"t{i}")] = t, t + 1
        part = Named(scope.slice(x.value, start, limit, strides), x.names)
        weight = Named(scope.slice(kernel.value, first, last), kernel.names)
        sizes = {n: max(part.size(n), weight.size(n)) for n in names}
        product = scope.elementwise("multiply", *(
            scope.convert(_spread(scope, v, sizes), dtype) for v in (part, weight)))
        total = product if total is None else scope.elementwise("add", total, product)
    assert total is not None
    return Named(scope.convert(total, op.result.type.dtype), names)


def _reduction(op: ops.Convolution, scope: Scope, x: Named, kernel: Named) -> Named:
    # One output feature per group: reduce[taps, c](x * kernel)
    dtype = _sum_dtype(op)
    sizes = dict(zip(x.names, x.value.type.dims, strict=True))
    product = scope.elementwise("multiply", *(
        scope.convert(_spread(scope, v, sizes), dtype) for v in (x, kernel)))
    gone = [d for d, n in enumerate(x.names) if n == "c" or n[0] == "t"]
    total = scope.reduce(product, scope.constant(0, dtype), "add", gone)
    return Named(scope.convert(total, op.result.type.dtype),
                 tuple(n for d, n in enumerate(x.names) if d not in gone))


def _spread(scope: Scope, v: Named, sizes: Mapping[str, int]) -> Value:
    """``v`` without its other (size-1) dimensions, turned and broadcast to the named ``sizes``."""
    names = list(sizes)
    kept = [d for d, n in enumerate(v.names) if n in sizes]
    flat = scope.reshape(v.value, [v.value.type.dims[d] for d in kept])
    return scope.broadcast_in_dim(flat, list(sizes.values()),
                                  [names.index(v.names[d]) for d in kept])


def _sum_dtype(op: ops.Convolution) -> DType:
    """What products are summed in: at least f32 for floats."""
    dtypes = [v.type.dtype for v in (op.lhs, op.rhs, op.result)]
    if not op.result.type.dtype.is_float:
        return op.result.type.dtype
    return DType.F64 if DType.F64 in dtypes else DType.F32


def _laid_out(op: ops.Convolution, scope: Scope, made: Named) -> Value:
    """``made`` in the layout that the op asks for; groups become part of the features."""
    order = [""] * op.result.type.rank
    order[op.output_batch], order[op.output_feature] = "n", "go"
    for i, d in enumerate(op.output_spatial):
        order[d] = f"s{i}"
    wanted = [n for part in order for n in (part if part == "go" else (part,))]
    turned = scope.transpose(made.value, [made.at(n) for n in wanted if n in made.names])
    return scope.reshape(turned, op.result.type.dims)


RULES: Mapping[type[Op], Sequence[Rule]] = {ops.Convolution: (convolution,)}
