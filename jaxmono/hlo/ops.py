"""The op set: every StableHLO op that lowered JAX forward code contains, as dataclasses, and our
own: `Window`, and those of arrays in memory (in_memory.py).

The meaning of each op is that of the StableHLO specification; field names follow it. An op of a
dialect or name that is not listed is imported as `Unknown`, so that import never fails and the
op can be left to XLA with its name and source line.
"""

from __future__ import annotations

from typing import Any

from jaxmono.hlo import ir
from jaxmono.hlo.in_memory import ACCUMULATED as ACCUMULATED
from jaxmono.hlo.in_memory import OF_LINES as OF_LINES
from jaxmono.hlo.in_memory import PIECE_BYTES as PIECE_BYTES
from jaxmono.hlo.in_memory import Accumulate as Accumulate
from jaxmono.hlo.in_memory import Fourier as Fourier
from jaxmono.hlo.in_memory import Piece as Piece
from jaxmono.hlo.in_memory import Prefix as Prefix
from jaxmono.hlo.in_memory import Stacked as Stacked
from jaxmono.hlo.in_memory import Stored as Stored
from jaxmono.hlo.in_memory import most_groups as most_groups
from jaxmono.hlo.ir import Graph, Op, Value, op

# Elementwise kinds by arity. The name is the StableHLO op name (or CHLO, marked).
UNARY = frozenset({
    "abs", "cbrt", "ceil", "cosine", "count_leading_zeros", "exponential",
    "exponential_minus_one", "floor", "imag", "is_finite", "log", "log_plus_one", "logistic",
    "negate", "not", "popcnt", "real", "round_nearest_afz", "round_nearest_even", "rsqrt", "sign",
    "sine", "sqrt", "tan", "tanh",
    # chlo
    "acos", "acosh", "asin", "asinh", "atan", "atanh", "bessel_i1e", "conj", "cosh", "digamma",
    "erf", "erf_inv", "erfc", "is_inf", "is_neg_inf", "is_pos_inf", "lgamma", "sinh", "square",
})
BINARY = frozenset({
    "add", "and", "atan2", "complex", "divide", "maximum", "minimum", "multiply", "or", "power",
    "remainder", "shift_left", "shift_right_arithmetic", "shift_right_logical", "subtract", "xor",
    # chlo
    "next_after", "polygamma", "zeta",
})
TERNARY = frozenset({"clamp", "select"})
"""``clamp(low, x, high)`` and ``select(pred, on_true, on_false)``; low, high and pred may be
scalars where the result is not, as in StableHLO."""
QUATERNARY = frozenset({"threefry2x32_0", "threefry2x32_1", "threefry2x32_xor"})
"""Of two words of a key and two of a count: a result of `Threefry2x32` or their exclusive or. No
program has them; rules make them (passes/rules/threefry.py)."""
DISCONTINUOUS = frozenset({"ceil", "floor", "is_finite", "is_inf", "is_neg_inf", "is_pos_inf",
                           "remainder", "round_nearest_afz", "round_nearest_even", "sign"})
"""Small differences of the operands make large ones of the result."""


@op("constant")
class Constant(Op):
    """A literal. ``value`` is an ndarray of the result's shape and dtype; a splat is stored as a
    0-d array broadcast with ``np.broadcast_to``, so it costs no memory."""

    value: Any = ir.attribute()


@op("iota")
class Iota(Op):
    dimension: int = ir.attribute()


@op("elementwise")
class Elementwise(Op):
    """Any op of UNARY, BINARY, TERNARY or QUATERNARY; ``kind`` is its StableHLO or CHLO name.

    ``accuracy``: printed form of a ``result_accuracy`` attribute that is not the default, or "".
    """

    args: tuple[Value, ...] = ir.operands()
    kind: str = ir.attribute()
    accuracy: str = ir.attribute("")


@op("compare")
class Compare(Op):
    """``direction``: EQ NE LT LE GT GE; ``compare_type``: FLOAT TOTALORDER SIGNED UNSIGNED."""

    lhs: Value = ir.operand()
    rhs: Value = ir.operand()
    direction: str = ir.attribute()
    compare_type: str = ir.attribute()


@op("convert")
class Convert(Op):
    operand: Value = ir.operand()


@op("bitcast_convert")
class BitcastConvert(Op):
    operand: Value = ir.operand()


@op("reduce_precision")
class ReducePrecision(Op):
    operand: Value = ir.operand()
    exponent_bits: int = ir.attribute()
    mantissa_bits: int = ir.attribute()


@op("broadcast_in_dim")
class BroadcastInDim(Op):
    """``dimensions[i]`` is the result dimension that operand dimension ``i`` maps to."""

    operand: Value = ir.operand()
    dimensions: tuple[int, ...] = ir.attribute()


@op("reshape")
class Reshape(Op):
    operand: Value = ir.operand()


@op("transpose")
class Transpose(Op):
    """Result dimension ``i`` is operand dimension ``permutation[i]``."""

    operand: Value = ir.operand()
    permutation: tuple[int, ...] = ir.attribute()


@op("slice")
class Slice(Op):
    operand: Value = ir.operand()
    start_indices: tuple[int, ...] = ir.attribute()
    limit_indices: tuple[int, ...] = ir.attribute()
    strides: tuple[int, ...] = ir.attribute()


@op("dynamic_slice")
class DynamicSlice(Op):
    """Start indices are clamped into range; they are scalars of one integer type."""

    operand: Value = ir.operand()
    start_indices: tuple[Value, ...] = ir.operands()
    slice_sizes: tuple[int, ...] = ir.attribute()


@op("dynamic_update_slice")
class DynamicUpdateSlice(Op):
    operand: Value = ir.operand()
    update: Value = ir.operand()
    start_indices: tuple[Value, ...] = ir.operands()


@op("gather")
class Gather(Op):
    operand: Value = ir.operand()
    start_indices: Value = ir.operand()
    offset_dims: tuple[int, ...] = ir.attribute()
    collapsed_slice_dims: tuple[int, ...] = ir.attribute()
    operand_batching_dims: tuple[int, ...] = ir.attribute()
    start_indices_batching_dims: tuple[int, ...] = ir.attribute()
    start_index_map: tuple[int, ...] = ir.attribute()
    index_vector_dim: int = ir.attribute()
    slice_sizes: tuple[int, ...] = ir.attribute()
    indices_are_sorted: bool = ir.attribute(False)


@op("scatter")
class Scatter(Op):
    args: tuple[Value, ...] = ir.operands()
    scatter_indices: Value = ir.operand()
    updates: tuple[Value, ...] = ir.operands()
    body: Graph = ir.region()
    update_window_dims: tuple[int, ...] = ir.attribute()
    inserted_window_dims: tuple[int, ...] = ir.attribute()
    input_batching_dims: tuple[int, ...] = ir.attribute()
    scatter_indices_batching_dims: tuple[int, ...] = ir.attribute()
    scatter_dims_to_operand_dims: tuple[int, ...] = ir.attribute()
    index_vector_dim: int = ir.attribute()
    indices_are_sorted: bool = ir.attribute(False)
    unique_indices: bool = ir.attribute(False)


@op("window")
class Window(Op):
    """Every place of a sliding window as a view; jaxmono's own, made by `passes.expand`.

    Dimension ``dimensions[i]`` becomes the places of a window of ``sizes[i]`` elements,
    ``strides[i]`` apart; its elements, ``dilations[i]`` apart, are a new dimension at the end:

        result[..., p, ..., t] = operand[..., p * stride + t * dilation, ...]

    Windows lie inside the operand; padding and holes come from a `Pad` before it.
    """

    operand: Value = ir.operand()
    dimensions: tuple[int, ...] = ir.attribute()
    sizes: tuple[int, ...] = ir.attribute()
    strides: tuple[int, ...] = ir.attribute()
    dilations: tuple[int, ...] = ir.attribute()


@op("pad")
class Pad(Op):
    operand: Value = ir.operand()
    padding_value: Value = ir.operand()
    low: tuple[int, ...] = ir.attribute()
    high: tuple[int, ...] = ir.attribute()
    interior: tuple[int, ...] = ir.attribute()


@op("concatenate")
class Concatenate(Op):
    args: tuple[Value, ...] = ir.operands()
    dimension: int = ir.attribute()


@op("reverse")
class Reverse(Op):
    operand: Value = ir.operand()
    dimensions: tuple[int, ...] = ir.attribute()


@op("reduce")
class Reduce(Op):
    """``body`` takes (accumulators..., elements...) as scalars and returns the accumulators."""

    args: tuple[Value, ...] = ir.operands()
    inits: tuple[Value, ...] = ir.operands()
    body: Graph = ir.region()
    dimensions: tuple[int, ...] = ir.attribute()


@op("reduce_window")
class ReduceWindow(Op):
    args: tuple[Value, ...] = ir.operands()
    inits: tuple[Value, ...] = ir.operands()
    body: Graph = ir.region()
    window_dimensions: tuple[int, ...] = ir.attribute()
    window_strides: tuple[int, ...] = ir.attribute()
    base_dilations: tuple[int, ...] = ir.attribute()
    window_dilations: tuple[int, ...] = ir.attribute()
    padding: tuple[tuple[int, int], ...] = ir.attribute()


@op("scan")
class Scan(Op):
    """A recurrence along one dimension (CHLO's, which jnp.cumsum is on a GPU).

    ``body`` takes a slice of each operand and the carries, and returns a slice of each output and
    the next carries; slices have no such dimension. Results: the outputs, the last carries.
    """

    args: tuple[Value, ...] = ir.operands()
    inits: tuple[Value, ...] = ir.operands()
    body: Graph = ir.region()
    dimension: int = ir.attribute()
    is_reverse: bool = ir.attribute()
    is_associative: bool = ir.attribute()


@op("select_and_scatter")
class SelectAndScatter(Op):
    operand: Value = ir.operand()
    source: Value = ir.operand()
    init: Value = ir.operand()
    select: Graph = ir.region()
    scatter: Graph = ir.region()
    window_dimensions: tuple[int, ...] = ir.attribute()
    window_strides: tuple[int, ...] = ir.attribute()
    padding: tuple[tuple[int, int], ...] = ir.attribute()


@op("sort")
class Sort(Op):
    args: tuple[Value, ...] = ir.operands()
    comparator: Graph = ir.region()
    dimension: int = ir.attribute()
    is_stable: bool = ir.attribute()


@op("top_k")
class TopK(Op):
    """Results: the k largest along the last dimension, and their s32 indices."""

    operand: Value = ir.operand()
    k: int = ir.attribute()


@op("threefry2x32")
class Threefry2x32(Op):
    """The random generator of `jax.random` on counters: u32 words, two results of one shape.
    Operands are scalars or go together by NumPy's rules, with as many dimensions as the results.

    Salmon et al., "Parallel Random Numbers: As Easy as 1, 2, 3" (SC 2011), section 3.3; 20 rounds.
    """

    key0: Value = ir.operand()
    key1: Value = ir.operand()
    count0: Value = ir.operand()
    count1: Value = ir.operand()


@op("dot_general")
class DotGeneral(Op):
    """Result dimensions: batch, then lhs free, then rhs free, each in operand order.

    ``precision``: per operand DEFAULT, HIGH or HIGHEST. ``algorithm``: printed form of the
    StableHLO dot algorithm attribute, or "" where there is none.
    """

    lhs: Value = ir.operand()
    rhs: Value = ir.operand()
    lhs_batch: tuple[int, ...] = ir.attribute()
    rhs_batch: tuple[int, ...] = ir.attribute()
    lhs_contract: tuple[int, ...] = ir.attribute()
    rhs_contract: tuple[int, ...] = ir.attribute()
    precision: tuple[str, str] = ir.attribute(("DEFAULT", "DEFAULT"))
    algorithm: str = ir.attribute("")


@op("ragged_dot")
class RaggedDot(Op):
    """CHLO's: of groups of rows that lie one behind the other each with its own matrix, where
    ``lhs_ragged`` is a dimension of the result. ``group_sizes``: integers [groups]."""

    lhs: Value = ir.operand()
    rhs: Value = ir.operand()
    group_sizes: Value = ir.operand()
    lhs_batch: tuple[int, ...] = ir.attribute()
    rhs_batch: tuple[int, ...] = ir.attribute()
    lhs_contract: tuple[int, ...] = ir.attribute()
    rhs_contract: tuple[int, ...] = ir.attribute()
    lhs_ragged: tuple[int, ...] = ir.attribute()
    rhs_group: tuple[int, ...] = ir.attribute()
    precision: tuple[str, str] = ir.attribute(("DEFAULT", "DEFAULT"))

    @property
    def of_rows(self) -> bool:
        """Whether it is the product of rows [m, k], by group, and matrices [groups, k, n] (or
        [groups, n, k]). Other forms (batches, groups of the summed dimension) only XLA knows."""
        return (self.lhs.type.rank == 2 and self.rhs.type.rank == 3 and self.lhs_ragged == (0,)
                and self.rhs_group == (0,) and self.lhs_contract == (1,)
                and self.rhs_contract in ((1,), (2,)) and not self.lhs_batch
                and not self.rhs_batch)


@op("convolution")
class Convolution(Op):
    """Dimension numbers as in StableHLO; ``*_spatial`` are dimension lists."""

    lhs: Value = ir.operand()
    rhs: Value = ir.operand()
    window_strides: tuple[int, ...] = ir.attribute()
    padding: tuple[tuple[int, int], ...] = ir.attribute()
    lhs_dilation: tuple[int, ...] = ir.attribute()
    rhs_dilation: tuple[int, ...] = ir.attribute()
    window_reversal: tuple[bool, ...] = ir.attribute()
    input_batch: int = ir.attribute()
    input_feature: int = ir.attribute()
    input_spatial: tuple[int, ...] = ir.attribute()
    kernel_input_feature: int = ir.attribute()
    kernel_output_feature: int = ir.attribute()
    kernel_spatial: tuple[int, ...] = ir.attribute()
    output_batch: int = ir.attribute()
    output_feature: int = ir.attribute()
    output_spatial: tuple[int, ...] = ir.attribute()
    feature_group_count: int = ir.attribute()
    batch_group_count: int = ir.attribute()
    precision: tuple[str, str] = ir.attribute(("DEFAULT", "DEFAULT"))


@op("while")
class While(Op):
    args: tuple[Value, ...] = ir.operands()
    cond: Graph = ir.region()
    body: Graph = ir.region()


@op("case")
class Case(Op):
    """``branches`` take no inputs: they capture. An index out of range means the last branch.

    ``if`` is imported as a case on its pred, with branches (on false, on true).
    """

    index: Value = ir.operand()
    branches: tuple[Graph, ...] = ir.regions()


@op("rng_bit_generator")
class RngBitGenerator(Op):
    """Results: new state, bits. ``algorithm``: DEFAULT, THREE_FRY or PHILOX."""

    state: Value = ir.operand()
    algorithm: str = ir.attribute()


@op("custom_call")
class CustomCall(Op):
    args: tuple[Value, ...] = ir.operands()
    target: str = ir.attribute()
    has_side_effect: bool = ir.attribute()
    config: str = ir.attribute("")


@op("optimization_barrier")
class OptimizationBarrier(Op):
    args: tuple[Value, ...] = ir.operands()


@op("fft")
class Fft(Op):
    """Discrete Fourier transforms along the last dimensions, as many as ``fft_length`` has. kind:
    ``FFT``, ``IFFT``, ``RFFT`` or ``IRFFT``."""

    operand: Value = ir.operand()
    kind: str = ir.attribute()
    fft_length: tuple[int, ...] = ir.attribute()


@op("unknown")
class Unknown(Op):
    """An op that jaxmono has no name for; ``text`` is its generic MLIR form, regions included.

    ``args`` are the operands, then the values that its regions capture.
    """

    args: tuple[Value, ...] = ir.operands()
    name: str = ir.attribute()
    text: str = ir.attribute()


def has_side_effect(op: Op) -> bool:
    """Whether ``op`` has to stay although nothing uses its results; an Unknown op may have to."""
    if isinstance(op, CustomCall):
        return op.has_side_effect
    return isinstance(op, Unknown) or any(has_side_effect(o) for g in op.subgraphs for o in g.ops)
