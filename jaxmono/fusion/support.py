"""What may enter a kernel, as data: a table from op type to the reason why not.

Asked of ops as imported and again of ops after the passes, which replace convolutions and
windowed reductions by what the planner knows (`passes.expand`).

The planner and the generator take everything else. A reason is one clause that `explain()` shows
beside the op's source line.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

from jaxmono.fusion.demand import is_view
from jaxmono.hlo import ops
from jaxmono.hlo.ir import Op, Value
from jaxmono.hlo.passes import branches, complex_parts
from jaxmono.hlo.passes.rules import (
    cumulative,
    ragged_dot,
    reduce_window,
    scatter,
    select_and_scatter,
    sort,
    top_k,
)
from jaxmono.hlo.passes.unroll import refusal as loop_refusal
from jaxmono.hlo.precision import EXACT_VECTOR_ELEMENTS, algorithm_of, allows_tf32
from jaxmono.hlo.rewrite import is_splat
from jaxmono.hlo.types import FOUR_BITS, MAX_RANK, DType

_NOTHING: Mapping[Value, Op] = {}

MAX_ATTENTION_KEYS = 4096
"""Longest row of scores that stays inside a block, where the row chain needs all of it at once."""

MAX_ATTENTION_WIDTH = 512
"""Widest head (k or v) that stays inside a block."""

MAX_SOFTMAX_WIDTH = 256
"""Widest head of a softmax attention that goes through its keys once: sums are in registers."""

MAX_LITERAL_BYTES = 1 << 16
"""Larger constants (unless one element repeats) stay buffers that XLA fills."""

EXACT_MATRIX_ELEMENTS = 100
"""Elements of both operands below which XLA computes any product in exact f32."""

MATRIX_DTYPES = (DType.F32, DType.BF16, DType.F16)

F8_DTYPES = (DType.F8E4M3FN, DType.F8E5M2)

REFUSED_OPS: dict[type[Op], str] = {
    ops.RngBitGenerator: "random bit generation is not generated yet",
    ops.CustomCall: "a custom call runs code that jaxmono cannot see",
    ops.Unknown: "jaxmono does not know this op",
}

REFUSED_DTYPES: dict[DType, str] = {
    DType.OPAQUE: "jaxmono does not know this element type",
}

WRITTEN_BY_XLA = "integers of 4 bits are written by XLA, and arithmetic in them is its own"
_READS_FOURS = "integers of 4 bits are read by conversions; convert them in front of this op"

MOVES_FOURS = (ops.Constant, ops.Concatenate, ops.DynamicSlice, ops.Gather,
               ops.OptimizationBarrier, ops.Pad)
"""Besides views and `select`, what kernels do with integers of 4 bits in front of a conversion."""

ANY_ORDER = "XLA_FLAGS asks for the same bits on every run, and memory adds floats in any order"

REDUCER_OPS = (ops.Elementwise, ops.Compare, ops.Convert, ops.BitcastConvert, ops.Constant,
               ops.ReducePrecision, ops.BroadcastInDim, ops.Reshape)


def refusal(op: Op, producer: Mapping[Value, Op] = _NOTHING, *, same_bits: bool = False,
            ) -> str | None:
    """Why this op stays with XLA, or None if a kernel may contain it.

    Args:
      producer: of the graph that the op is in: what a loop begins with is there.
      same_bits: every run has to give the same ones.
    """
    if (reason := REFUSED_OPS.get(type(op))) is not None:
        return reason
    if complex_parts.has_complex(op):
        return _refused_complex(op, producer, same_bits)
    if isinstance(op, ops.While) and (reason := _refused_loop(op, producer, same_bits)):
        return reason
    if isinstance(op, ops.Case) and (reason := _refused_branches(op, producer, same_bits)):
        return reason
    for v in (*op.uses, *op.results):
        if (reason := _refused_type(v)) is not None:
            return reason
    if (reason := _refused_fours(op)) is not None:
        return reason
    if isinstance(op, ops.BitcastConvert) and op.operand.type.rank != op.result.type.rank:
        return "a bitcast between element types of different width is not generated yet"
    if isinstance(op, ops.Constant) and op.value.nbytes > MAX_LITERAL_BYTES \
            and not is_splat(op.value):
        return f"a literal of {op.value.nbytes} bytes is kept in a buffer by XLA"
    if isinstance(op, ops.ReduceWindow) and (reason := reduce_window.refusal(op)):
        return reason
    if isinstance(op, ops.SelectAndScatter) and (reason := select_and_scatter.refusal(op)):
        return reason
    if isinstance(op, ops.Scan) and (reason := cumulative.refusal(op)):
        return reason
    if isinstance(op, ops.Sort) and (reason := sort.refusal(op)):
        return reason
    if isinstance(op, ops.RaggedDot) and (reason := ragged_dot.refusal(op)):
        return reason
    if isinstance(op, ops.Scatter) and (reason := scatter.refusal(op) or (
            ANY_ORDER if same_bits and scatter.in_any_order(op) else "")):
        return reason
    if isinstance(op, ops.TopK) and (reason := top_k.refusal(op)):
        return reason
    if isinstance(op, ops.DotGeneral) and (reason := _refused_product(op)):
        return reason
    if isinstance(op, (ops.Reduce, ops.ReduceWindow, ops.Scan)):
        if any(v.type.dtype in F8_DTYPES for v in op.results):
            return "reductions in 8-bit floats are not generated yet"
        return None if isinstance(op, ops.Scan) else _refused_reducer(op)
    return None


def _refused_complex(op: Op, producer: Mapping[Value, Op], same_bits: bool) -> str | None:
    """Of what becomes ops on parts: an op in it that does not, or the first of these that is
    refused."""
    inside = (o for g in op.subgraphs for o in g.walk())
    if reason := next((r for o in (op, *inside) if complex_parts.has_complex(o)
                       and (r := complex_parts.refusal(o))), None):
        return reason
    if any(not v.type.is_static for v in (*op.uses, *op.results)):
        return next(r for v in (*op.uses, *op.results) if (r := _refused_type(v)))
    made = complex_parts.in_parts(op)
    if any(o.subgraphs for o in made):
        producer = {**producer, **{v: o for o in made for v in o.results}}
    return next((r for o in made if (r := refusal(o, producer, same_bits=same_bits))), None)


def _refused_fours(op: Op) -> str | None:
    """Integers of 4 bits are what a kernel is given, moved, and converted."""
    if is_view(op) or isinstance(op, MOVES_FOURS) or (
            isinstance(op, ops.Elementwise) and op.kind == "select"):
        return None
    made = [i for i, v in enumerate(op.results) if v.type.dtype in FOUR_BITS]
    if isinstance(op, ops.While):  # what every trip hands to the next one as it was
        return None if all(op.body.outputs[i] is op.body.inputs[i] for i in made) \
            else WRITTEN_BY_XLA
    if made:
        return WRITTEN_BY_XLA
    reads = not isinstance(op, (ops.Convert, ops.Case)) and any(
        v.type.dtype in FOUR_BITS for v in op.uses)
    return _READS_FOURS if reads else None


def _refused_loop(op: ops.While, producer: Mapping[Value, Op], same_bits: bool) -> str | None:
    inside = {**producer, **op.body.producer}
    return loop_refusal(op, producer) or next(
        (f"{o.opcode} in it: {r}" for o in op.body.ops
         if (r := refusal(o, inside, same_bits=same_bits))), None)


def _refused_branches(op: ops.Case, producer: Mapping[Value, Op], same_bits: bool) -> str | None:
    return branches.refusal(op) or next(
        (f"{o.opcode} in a branch: {r}" for g in op.branches for o in g.ops
         if (r := refusal(o, {**producer, **g.producer}, same_bits=same_bits))), None)


def matrix_dtype(op: ops.DotGeneral) -> DType | None:
    """The operand type with which a contraction runs on tensor cores, None if it cannot.

    f32 does only where the program asks for less than HIGHEST precision.
    """
    t = op.lhs.type.dtype
    if t is not op.rhs.type.dtype or t not in MATRIX_DTYPES or not plain_algorithm(op.algorithm, t):
        return None
    if op.result.type.dtype is DType.F64:
        return None
    return None if t is DType.F32 and not allows_tf32(op.precision) else t


PARTS_COLUMNS = 40
"""Columns of an exact product of f32 from which on it may be six of bf16 parts
(codegen/dot_schedule_bf16x6.py): a tile has 64 of them."""


def multiplies_exactly(op: ops.DotGeneral) -> bool:
    """Whether a contraction is one of f32 that tf32 is not enough for."""
    return op.lhs.type.dtype is op.rhs.type.dtype is DType.F32 and matrix_dtype(op) is None \
        and exact_algorithm(op.algorithm) \
        and op.result.type.dtype in (DType.BF16, DType.F16, DType.F32)


def byte_product(op: ops.DotGeneral) -> bool:
    """Whether a contraction of bytes runs on tensor cores: 8-bit integers whose sums wrap, in s32
    or narrower, or 8-bit floats with sums in f32. The operands may be of two such types."""
    lhs, rhs, out = (v.type.dtype for v in (op.lhs, op.rhs, op.result))
    if {lhs, rhs} <= {DType.S8, DType.U8}:
        return out.is_integer and out.itemsize <= 4 and not op.algorithm
    if not {lhs, rhs} <= set(F8_DTYPES) or out is DType.F64:
        return False
    return out.is_float and _plain_f8(op)


def _plain_f8(op: ops.DotGeneral) -> bool:
    """`plain_algorithm` for 8-bit floats; sums may be less exact where it allows that."""
    asked = algorithm_of(op.algorithm)
    return asked is None or asked.rounds_to(
        *(v.type.dtype.value.lower() for v in (op.lhs, op.rhs)))


def widens_bytes(op: Op) -> bool:
    """Whether an op converts integers or floats of 8 bits, or of 4, to floats that have all of
    their values."""
    return isinstance(op, ops.Convert) and op.operand.type.dtype in (
        DType.S8, DType.U8, *FOUR_BITS, *F8_DTYPES) and op.result.type.dtype in (
        DType.BF16, DType.F16, DType.F32)


def rounds_floats(op: Op) -> bool:
    """Whether an op rounds f32 to 16 bits."""
    return isinstance(op, ops.Convert) and op.operand.type.dtype is DType.F32 \
        and op.result.type.dtype in (DType.BF16, DType.F16)


def converts_stored(op: Op) -> bool:
    """Whether an op makes of weights that are stored in another type what products multiply."""
    return widens_bytes(op) or rounds_floats(op)


def exact_product(op: ops.DotGeneral) -> bool:
    """Whether XLA computes a contraction of f32 exactly although its precision allows tf32.

    XLA's rules for GPUs: a product with a vector becomes a multiplication and a sum while its
    operands (of one batch entry) have fewer than `EXACT_VECTOR_ELEMENTS` elements
    (`GpuAlgebraicSimplifierVisitor::ShouldStrengthReduceDotToReduce`); one over a single element
    becomes a multiplication (`AlgebraicSimplifierVisitor::HandleDot`).
    """
    t = DType.F32
    if not (op.lhs.type.dtype is op.rhs.type.dtype is op.result.type.dtype is t) \
            or not allows_tf32(op.precision) or op.algorithm or not op.result.type.size:
        return False
    m, n, k = matrix_sizes(op)
    return k == 1 or exact_vector(m, n, k)


def exact_vector(m: int, n: int, k: int) -> bool:
    """Of `exact_product`, whether it is a product with a vector that XLA multiplies and sums."""
    return min(m, n) == 1 and 0 < k * (m + n) < EXACT_VECTOR_ELEMENTS


def exact_matrix(m: int, n: int, k: int) -> bool:
    """Whether XLA's loops compute a small product of matrices of f32, and not its libraries, which
    round to tf32 (the default of its flag ``xla_gpu_gemm_rewrite_size_threshold``)."""
    return k * (m + n) < EXACT_MATRIX_ELEMENTS


def matrix_sizes(op: ops.DotGeneral) -> tuple[int, int, int]:
    """Rows, columns and summed elements of a contraction, per batch entry."""
    lhs, rhs = op.lhs.type.dims, op.rhs.type.dims
    k = math.prod(lhs[d] for d in op.lhs_contract)
    batch = math.prod(lhs[d] for d in op.lhs_batch)
    return (math.prod(lhs) // max(k * batch, 1), math.prod(rhs) // max(k * batch, 1), k)


def plain_algorithm(algorithm: str, t: DType) -> bool:
    """Whether a dot algorithm asks for what tensor cores do anyway with operands of type ``t``:
    one product of the operands as they are, accumulated in f32. "" asks for nothing."""
    asked, name = algorithm_of(algorithm), "tf32" if t is DType.F32 else t.value
    return asked is None or asked.rounds_to(name, name)


def may_have_parts(op: ops.DotGeneral) -> bool:
    """Whether an exact contraction of f32 can be six products of bf16 parts, if its operands lie in
    memory: no more are asked for, and its columns fill most of a tile."""
    return multiplies_exactly(op) and matrix_sizes(op)[1] >= PARTS_COLUMNS \
        and not asks_for_nine(op.algorithm)


def asks_for_nine(algorithm: str) -> bool:
    """``BF16_BF16_F32_X9``."""
    asked = algorithm_of(algorithm)
    return asked is not None and asked.products > 6


def exact_algorithm(algorithm: str) -> bool:
    """Whether a dot algorithm asks of f32 operands for no more than f32 multiply-adds are: these
    themselves (``F32_F32_F32``), or several products of parts (``BF16_BF16_F32_X3``, ``_X6`` and
    ``_X9``, ``TF32_TF32_F32_X3``). "" asks for nothing."""
    asked = algorithm_of(algorithm)
    return asked is None or (
        asked.accumulation == "f32" and asked.lhs == asked.rhs
        and asked.lhs in (("f32",) if asked.products == 1 else ("bf16", "tf32")))


def attention_bytes(n: int, k: int, v: int, itemsize: int) -> int:
    """Shared memory of the smallest attention tile, whatever the layout of its operands: 16 rows
    of f32 scores, their probabilities, the rows' queries, and two slots of 64 keys."""
    keys, width = -(-n // 64) * 64, -(-max(k, v) // 16) * 16

    def tile(rows: int, cols: int) -> int:
        return rows * (cols * itemsize // 16 | 1) * 16  # rows are padded against bank conflicts

    queries, slot = (max(tile(rows, width), tile(width, rows)) for rows in (16, 64))
    return 16 * (max(keys, width) + 4) * 4 + tile(16, keys) + queries + 2 * slot


def softmax_attention_bytes(k: int, v: int, itemsize: int) -> int:
    """Shared memory of the smallest tile of an attention that goes through its keys once, whatever
    the layout of its operands: 64 rows, a slot of 32 keys for each of two chunks, rows of sums."""
    k, v = -(-k // 16) * 16, -(-v // 16) * 16

    def tile(rows: int, cols: int) -> int:
        return max(a * (b * itemsize // 16 | 1) * 16 for a, b in ((rows, cols), (cols, rows)))

    tiles = tile(64, k) + 2 * (tile(32, k) + tile(32, v))
    return 2 * 64 * 8 + max(tiles, 8 * 16 * (v + 8) * 4)


_F8_PRODUCT = 1 << 30
"""Multiplications of a product of 8-bit floats from which its rate counts, not its bytes."""
F64_PRODUCT = 1 << 23
"""Multiplications of a product of f64 from which it is left to XLA's library: kernels make it
element by element. So 16x768x768 in f32 (more of them) took 69 us of an H100, XLA's library 7."""
_F64_SUMMED = 16
"""Summed elements up to which its results' bytes decide: an outer product, say."""


def _refused_product(op: ops.DotGeneral) -> str | None:
    """Large products of f64, and of 8-bit floats: Hopper multiplies these only where the summed
    elements of rows are neighbours; weights pass through registers, in either layout that lies in
    pieces of 16 bytes. Others run as f16 products, at a third of the rate; where the weights' bytes
    decide, that does not matter."""
    m, n, k = matrix_sizes(op)
    if op.result.type.dtype is DType.F64 and k > _F64_SUMMED \
            and op.result.type.size * k >= F64_PRODUCT:
        return "a large product of f64 is left to XLA's library; kernels make it element by element"
    if op.lhs.type.dtype.itemsize > 1 or not op.lhs.type.dtype.is_float or min(m, n) <= 64 \
            or op.result.type.size * k < _F8_PRODUCT:
        return None
    left, right = (tuple(dims) == tuple(range(v.type.rank - len(dims), v.type.rank))
                   for v, dims in ((op.lhs, op.lhs_contract), (op.rhs, op.rhs_contract)))
    if not left:
        return ("a large product of 8-bit floats whose summed dimension is not the last one of the "
                "left operand is not generated yet; transpose that")
    return None if right or op.rhs.type.dims[-1] % 16 == 0 else (
        "a large product of 8-bit floats whose weights have rows of no multiple of 16 bytes is not "
        "generated yet; pad or transpose them")


def _refused_type(v: Value) -> str | None:
    if not v.type.is_static:
        return f"the shape {v.type} is not known before run time"
    if v.type.rank > MAX_RANK:
        return f"the rank of {v.type} is above {MAX_RANK}"
    return REFUSED_DTYPES.get(v.type.dtype)


def _refused_reducer(op: ops.Reduce | ops.ReduceWindow) -> str | None:
    if op.body.captures:
        return "the reducer reads values from outside its body"
    for o in op.body.ops:
        if not isinstance(o, REDUCER_OPS):
            return f"the reducer contains {o.opcode}"
        if any(r.type.rank for r in o.results):
            return "the reducer computes more than scalars"
    return None
