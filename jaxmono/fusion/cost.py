"""The planner's cost model: bytes, operations and microseconds from the facts of a Device.

It ranks alternatives (recompute or store, fold or add a stage); it does not forecast to the
microsecond. Work is counted in *lane operations*: one simple instruction of one thread.
"""

from __future__ import annotations

import math

import numpy as np

from jaxmono.fusion.demand import is_view
from jaxmono.fusion.plan import AttentionForm, Device, DotForm, Group, Plan
from jaxmono.fusion.support import may_have_parts
from jaxmono.hlo import ops
from jaxmono.hlo.ir import Graph, Op
from jaxmono.hlo.passes.rules.reduce_window import cumulative_dimension

LANE_OPS_PER_SM_US = 2.2e5
"""128 lanes at about 1.7 GHz: what one multiprocessor issues in a microsecond."""

_HEAVY = {
    "divide": 8, "sqrt": 8, "rsqrt": 8, "remainder": 12, "cbrt": 20,
    "exponential": 16, "exponential_minus_one": 24, "log": 16, "log_plus_one": 24,
    "logistic": 20, "tanh": 24, "sine": 24, "cosine": 24, "tan": 30, "atan2": 30, "power": 40,
    "erf": 30, "erfc": 40, "erf_inv": 40, "asin": 30, "acos": 30, "atan": 30, "sinh": 30,
    "cosh": 30, "asinh": 30, "acosh": 30, "atanh": 30, "lgamma": 80, "digamma": 80,
    "threefry2x32_0": 150, "threefry2x32_1": 150, "threefry2x32_xor": 150,
    "bessel_i1e": 60, "polygamma": 200, "zeta": 200, "next_after": 8,
}
CHEAP = 4
"""An op of at most this weight may be recomputed by every consumer without a second thought."""


def weight(op: Op) -> int:
    """Lane operations for one result element of an op that is not a contraction."""
    if is_view(op) or isinstance(op, (ops.Constant, ops.Iota)):
        return 0
    if isinstance(op, ops.Elementwise):
        return _HEAVY.get(op.kind, 1)
    if isinstance(op, (ops.Gather, ops.DynamicSlice, ops.DynamicUpdateSlice)):
        return 3
    if isinstance(op, (ops.Concatenate, ops.Pad)):
        return 2
    return 1


def dot_flops(op: ops.DotGeneral) -> int:
    """Multiplications and additions of a contraction."""
    shape = op.lhs.type.dims
    return 2 * op.result.type.size * math.prod(shape[d] for d in op.lhs_contract)


EXACT_TIMES = 8.5
"""What an exact product of f32 loses as multiply-adds, of the time that it would take in 16 bits:
these take 16.5 times that, parts of bf16 8."""


def exact_lost_us(op: ops.DotGeneral, device: Device) -> float:
    """Microseconds that an exact product of f32 takes longer in multiply-adds than in bf16 parts,
    whose operands have to lie in memory, and whose epilogues cannot reduce; 0 for others."""
    if not device.wgmma or not may_have_parts(op):
        return 0.0
    return EXACT_TIMES * dot_flops(op) / device.matrix_flops_per_us


def stored_us(nbytes: int, device: Device) -> float:
    """Microseconds of a stage that stores so many bytes for another one."""
    return device.phase_us + 2 * nbytes / device.read_bytes_per_us


def convolution_flops(op: ops.Convolution) -> int:
    """Multiplications and additions with elements that are there: neither padding nor holes."""
    pairs = op.rhs.type.dims[op.kernel_input_feature]
    for i, (d, k, o) in enumerate(zip(op.input_spatial, op.kernel_spatial, op.output_spatial,
                                      strict=True)):
        size, hole = op.lhs.type.dims[d], op.lhs_dilation[i]
        at = (np.arange(op.result.type.dims[o])[:, None] * op.window_strides[i]
              + np.arange(op.rhs.type.dims[k]) * op.rhs_dilation[i] - op.padding[i][0])
        pairs *= int(((at >= 0) & (at <= (size - 1) * hole) & (at % hole == 0)).sum())
    images = op.result.type.dims[op.output_batch] * op.result.type.dims[op.output_feature]
    return 2 * images * pairs


def op_flops(op: Op) -> int:
    """Arithmetic of one op, views and data movement counted as nothing."""
    if isinstance(op, ops.DotGeneral):
        return dot_flops(op)
    if isinstance(op, ops.RaggedDot):
        return 2 * op.lhs.type.size * op.result.type.dims[-1]
    if isinstance(op, ops.Convolution):
        return convolution_flops(op)
    if isinstance(op, ops.Reduce):
        return sum(v.type.size for v in op.args)
    if isinstance(op, ops.Scan) or (isinstance(op, ops.ReduceWindow)
                                    and cumulative_dimension(op) is not None):
        return sum(v.type.size for v in op.args)
    if isinstance(op, ops.Fft):  # 5 n log2(n) of a complex line, as is usual, half of a real one
        n = math.prod(op.fft_length)
        lines = max(op.operand.type.size, op.result.type.size) // max(n, 1)
        return int(2.5 * n * math.log2(max(n, 1))) * lines * (1 + (op.kind in ("FFT", "IFFT")))
    if isinstance(op, ops.ReduceWindow):
        return math.prod(op.window_dimensions) * sum(v.type.size for v in op.results)
    if isinstance(op, (ops.Elementwise, ops.Compare, ops.Convert)):
        return op.result.type.size
    return 0


def op_bytes(op: Op) -> int:
    """Bytes an op would read and write if it ran alone."""
    return sum(v.type.nbytes for v in (*op.inputs, *op.results) if v.type.is_static)


def lane_us(lane_ops: float, device: Device) -> float:
    """Microseconds that this many lane operations take, spread over the whole device."""
    return lane_ops / (LANE_OPS_PER_SM_US * device.sm_count)


def body_us(body: Graph, device: Device, *, matrix: bool) -> float:
    """A roofline for one group: the slowest of memory, tensor cores and lanes."""
    moved = sum(v.type.nbytes for v in (*body.inputs, *body.outputs))
    flops = lanes = 0
    for o in body.ops:
        if isinstance(o, ops.DotGeneral):
            flops += dot_flops(o)
        else:
            lanes += sum(v.type.size for v in o.results) * weight(o)
    rate = device.matrix_flops_per_us
    return max(moved / device.read_bytes_per_us,
               flops / rate if matrix else lane_us(flops, device), lane_us(lanes, device))


def group_us(group: Group, device: Device) -> float:
    """Predicted microseconds of one group that has the device to itself."""
    return body_us(group.sig.body, device,
                   matrix=isinstance(group.sig.form, (DotForm, AttentionForm)))


def plan_us(plan: Plan, device: Device) -> float:
    """Predicted microseconds of one launch: stages in turn, groups of a stage side by side."""
    work = sum(group_us(g, device) for g in plan.groups)
    return work + device.phase_us * len(plan.stages)


def floor_us(plan: Plan, device: Device) -> float:
    """What no schedule can beat: every program byte once, every contraction at full rate."""
    moved = sum(b.type.nbytes for b in (*plan.inputs, *plan.outputs))
    flops = sum(dot_flops(o) for o in plan.graph.ops if isinstance(o, ops.DotGeneral))
    return max(moved / device.read_bytes_per_us, flops / device.matrix_flops_per_us)
