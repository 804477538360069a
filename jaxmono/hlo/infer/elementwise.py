"""Result types of the ops that work element by element, and of sources and conversions."""

from __future__ import annotations

import numpy as np

from jaxmono.hlo import ops
from jaxmono.hlo.infer.rule import dims_in_range, require, same, scalar
from jaxmono.hlo.types import PART, DType, TensorType

# Element classes that a kind takes: f float, c complex, i signed, u unsigned, b pred.
CLASSES: dict[str, str] = {
    "abs": "ifc", "ceil": "f", "count_leading_zeros": "iu", "floor": "f", "imag": "fc",
    "is_finite": "f", "negate": "iufc", "not": "biu", "popcnt": "iu", "real": "fc",
    "round_nearest_afz": "f", "round_nearest_even": "f", "sign": "ifc",
    "bessel_i1e": "f", "conj": "iufc", "digamma": "f", "erf": "f", "erf_inv": "f", "erfc": "f",
    "is_inf": "f", "is_neg_inf": "f", "is_pos_inf": "f", "lgamma": "f", "square": "iufc",
    "add": "biufc", "and": "biu", "complex": "f", "divide": "iufc", "maximum": "biufc",
    "minimum": "biufc", "multiply": "biufc", "or": "biu", "power": "iufc", "remainder": "iuf",
    "shift_left": "iu", "shift_right_arithmetic": "iu", "shift_right_logical": "iu",
    "subtract": "iufc", "xor": "biu", "next_after": "f", "polygamma": "f", "zeta": "f",
    "threefry2x32_0": "u", "threefry2x32_1": "u", "threefry2x32_xor": "u",
}
"""Kinds that are not listed take floats and complex numbers."""

_PREDICATES = frozenset({"is_finite", "is_inf", "is_neg_inf", "is_pos_inf"})
_WHOLE = {v: k for k, v in PART.items()}
_FLOAT_LIKE = ("FLOAT", "TOTALORDER")


def element_class(dtype: DType) -> str:
    """One of ``f c i u b``, or ``?`` for an opaque type."""
    return ("f" if dtype.is_float else "c" if dtype.is_complex else "i" if dtype.is_signed
            else "u" if dtype.is_unsigned else "b" if dtype is DType.PRED else "?")


def infer_elementwise(op: ops.Elementwise) -> tuple[TensorType, ...]:
    kind, args = op.kind, op.args
    known = {1: ops.UNARY, 2: ops.BINARY, 3: ops.TERNARY,
             4: ops.QUATERNARY}.get(len(args), frozenset[str]())
    require(kind in known, f"{kind!r} is no elementwise kind of {len(args)} operands")
    types = [a.type for a in args]
    if kind == "clamp":
        for name, t in (("low", types[0]), ("high", types[2])):
            same(f"the type of {name}", t, types[1] if t.rank else TensorType((), types[1].dtype))
        return (types[1],)
    if kind == "select":
        same("the type of on_false", types[2], types[1])
        same("the type of pred", types[0],
             TensorType(types[1].shape if types[0].rank else (), DType.PRED))
        return (types[1],)
    dtype = types[0].dtype
    for name, t in zip(("second", "third", "fourth"), types[1:], strict=False):
        same(f"the type of the {name} operand", t, types[0])
    if len(types) == 4:
        require(dtype is DType.U32, f"{kind} takes u32, not {dtype.value}")
    require(element_class(dtype) in CLASSES.get(kind, "fc"), f"{kind} does not take {dtype.value}")
    if kind in _PREDICATES:
        dtype = DType.PRED
    elif kind in ("abs", "real", "imag"):
        dtype = PART.get(dtype, dtype)
    elif kind == "complex":
        require(dtype in _WHOLE, f"complex takes f32 or f64, not {dtype.value}")
        dtype = _WHOLE[dtype]
    return (TensorType(types[0].shape, dtype),)


def infer_compare(op: ops.Compare) -> tuple[TensorType, ...]:
    same("the type of rhs", op.rhs.type, op.lhs.type)
    require(op.direction in ("EQ", "NE", "LT", "LE", "GT", "GE"),
            f"{op.direction!r} is no direction")
    kinds = {"f": _FLOAT_LIKE, "c": ("FLOAT",), "i": ("SIGNED",), "u": ("UNSIGNED",),
             "b": ("UNSIGNED",)}.get(element_class(op.lhs.type.dtype), ())
    require(op.compare_type in kinds,
            f"compare_type {op.compare_type} does not fit {op.lhs.type.dtype.value}")
    return (TensorType(op.lhs.type.shape, DType.PRED),)


def infer_constant(op: ops.Constant) -> tuple[TensorType, ...]:
    require(isinstance(op.value, np.ndarray) or np.isscalar(op.value),
            f"value is a {type(op.value).__name__}, has to be an ndarray")
    value = np.asarray(op.value)
    return (TensorType(value.shape, DType.of(value.dtype)),)


def infer_iota(op: ops.Iota) -> tuple[TensorType, ...]:
    dims_in_range("dimension", (op.dimension,), op.result.type.rank)
    require(op.result.type.dtype is not DType.PRED, "iota makes numbers, not pred")
    return (op.result.type,)


def infer_convert(op: ops.Convert) -> tuple[TensorType, ...]:
    return (TensorType(op.operand.type.shape, op.result.type.dtype),)


def infer_bitcast_convert(op: ops.BitcastConvert) -> tuple[TensorType, ...]:
    source, result = op.operand.type, op.result.type
    a, b = source.dtype.bits, result.dtype.bits
    if a == b:
        shape = source.shape
    elif a > b:
        shape = (*source.shape, a // b)
    else:
        require(source.rank > 0 and source.shape[-1] == b // a,
                f"the last dimension of {source} has to be {b // a} to become {result.dtype.value}")
        shape = source.shape[:-1]
    return (TensorType(shape, result.dtype),)


def infer_reduce_precision(op: ops.ReducePrecision) -> tuple[TensorType, ...]:
    require(op.exponent_bits >= 1, f"exponent_bits is {op.exponent_bits}, has to be >= 1")
    require(op.mantissa_bits >= 0, f"mantissa_bits is {op.mantissa_bits}, has to be >= 0")
    require(op.operand.type.dtype.is_float, f"takes floats, not {op.operand.type.dtype.value}")
    return (op.operand.type,)


def infer_rng_bit_generator(op: ops.RngBitGenerator) -> tuple[TensorType, ...]:
    require(op.algorithm in ("DEFAULT", "THREE_FRY", "PHILOX"),
            f"{op.algorithm!r} is no algorithm")
    require(len(op.results) == 2, f"has {len(op.results)} results, has to have state and bits")
    require(op.state.type.rank == 1, f"the state has to have one dimension, is {op.state.type}")
    return (op.state.type, op.results[1].type)


def infer_threefry2x32(op: ops.Threefry2x32) -> tuple[TensorType, ...]:
    types = [v.type for v in op.inputs]
    for t in types:
        require(t.dtype is DType.U32 and t.is_static, f"takes static u32, not {t}")
    large = [t.dims for t in types if t.rank]
    require(len({len(dims) for dims in large}) <= 1, "its operands differ in rank")
    together = [{*sizes} - {1} for sizes in zip(*large, strict=True)]
    require(all(len(sizes) <= 1 for sizes in together), "its operands do not go together")
    t = TensorType(tuple(min(sizes, default=1) for sizes in together), DType.U32)
    return (t, t)


def infer_top_k(op: ops.TopK) -> tuple[TensorType, ...]:
    t = op.operand.type
    require(t.rank > 0, "top_k of a scalar")
    require(0 <= op.k <= t.dims[-1], f"k = {op.k} leaves the range 0..{t.dims[-1]}")
    shape = (*t.shape[:-1], op.k)
    return (TensorType(shape, t.dtype), TensorType(shape, DType.S32))


def infer_case_index(op: ops.Case) -> None:
    scalar("index", op.index)
    require(op.index.type.dtype in (DType.S32, DType.PRED),
            f"index has to be s32 or pred, is {op.index.type.dtype.value}")
