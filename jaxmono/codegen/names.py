"""How element types and literals are written in the generated C++."""

from __future__ import annotations

import re
from typing import Any

import numpy as np

from jaxmono.codegen.errors import CodegenError
from jaxmono.hlo.types import FOUR_BITS, DType

_STORAGE = {
    DType.PRED: "bool", DType.S8: "int8_t", DType.S16: "int16_t", DType.S32: "int32_t",
    DType.S64: "int64_t", DType.U8: "uint8_t", DType.U16: "uint16_t", DType.U32: "uint32_t",
    DType.U64: "uint64_t", DType.F16: "f16", DType.BF16: "bf16", DType.F32: "float",
    DType.F64: "double", DType.F8E4M3FN: "f8e4m3", DType.F8E5M2: "f8e5m2",
    DType.S4: "int8_t", DType.U4: "uint8_t",
}
_UNSIGNED_BITS = {1: "uint8_t", 2: "uint16_t", 4: "uint32_t", 8: "uint64_t"}


def is_generated(dtype: DType) -> bool:
    """Whether generated code can hold values of this type."""
    return dtype in _STORAGE


def storage(dtype: DType) -> str:
    """C type of one element in memory; of 4 bits that of one by itself (see `stored_type`)."""
    if dtype not in _STORAGE:
        raise CodegenError(f"no generated code for element type {dtype.value}; leave it to XLA")
    return _STORAGE[dtype]


def stored_type(dtype: DType) -> str:
    """What weights are stored as: `storage`, or device/four_bits.cuh's name, which is a pointer to
    them as well."""
    return f"FourBits<{storage(dtype)}>" if dtype in FOUR_BITS else storage(dtype)


def compute(dtype: DType) -> str:
    """C type of one element in a register: floats below 32 bits are held as float."""
    return "float" if is_narrow(dtype) else storage(dtype)


def is_narrow(dtype: DType) -> bool:
    """Types that live in memory only; registers hold their values as float."""
    return dtype in (DType.F16, DType.BF16) or is_f8(dtype)


def is_f8(dtype: DType) -> bool:
    return dtype in (DType.F8E4M3FN, DType.F8E5M2)


def vector(ctype: str, lanes: int) -> str:
    """C type of ``lanes`` values of ``ctype`` side by side."""
    return ctype if lanes == 1 else f"Vec<{ctype}, {lanes}>"


def literal(value: Any, dtype: DType) -> str:
    """An element as a C expression of type ``compute(dtype)``, bit-exact."""
    if is_narrow(dtype):
        return _float(np.float32(value), "float", "f")
    if dtype is DType.F32:
        return _float(np.float32(value), "float", "f")
    if dtype is DType.F64:
        return _float(np.float64(value), "double", "")
    if dtype is DType.PRED:
        return "true" if bool(value) else "false"
    return _integer(int(value), dtype)


def literal_value(text: str) -> float | None:
    """The number that a `literal` of floats of up to 32 bits is; None for other expressions."""
    found = re.fullmatch(r"\(?(-?[0-9][0-9.e+-]*)f\)?", text)
    return float(found[1]) if found else None


def is_count(text: str) -> bool:
    """Whether it is a `literal` of a positive integer."""
    return re.fullmatch(r"(u?int[0-9]+_t\()?[1-9][0-9]*(u|ull|ll)?\)?", text) is not None


def stored_literal(value: Any, dtype: DType) -> str:
    """An element as an initialiser of type ``storage(dtype)``, for tables."""
    if is_narrow(dtype):
        width = dtype.itemsize
        bits = int(np.asarray(value, dtype.numpy).view(f"u{width}"))
        return f"{bits:#0{2 + 2 * width}x}"
    return literal(value, dtype)


def _float(x: Any, ctype: str, suffix: str) -> str:
    if not np.isfinite(x):
        width = x.dtype.itemsize
        bits = int(x.view(f"u{width}"))
        return f"bitcast<{ctype}>({_UNSIGNED_BITS[width]}({bits:#x}{'u' if width == 4 else 'ull'}))"
    # The shortest decimal that parses back to the same value.
    text = np.format_float_scientific(x, unique=True, trim="0")
    plain = np.format_float_positional(x, unique=True, trim="0")
    text = plain if len(plain) <= 12 else text
    return f"({text}{suffix})" if text.startswith("-") else text + suffix


def _integer(x: int, dtype: DType) -> str:
    ctype = storage(dtype)
    if dtype is DType.S64:
        return f"int64_t({x}ll)" if x > -(2**63) else f"int64_t({x + 1}ll - 1)"
    if dtype is DType.U64:
        return f"uint64_t({x}ull)"
    if dtype is DType.U32:
        return f"{x}u"
    if dtype is DType.S32:
        return str(x) if x >= 0 else f"({x})" if x > -(2**31) else "(-2147483647 - 1)"
    return f"{ctype}({x})"


class FlaggedName(str):
    """The C name of a ``Flagged<T>`` (device/flagged.cuh): what is read by it is waited for. It is
    no pointer."""

    __slots__ = ()
