"""Dense MLIR attributes to NumPy arrays, every element type exact.

The Python bindings give a buffer only for element types that NumPy knows; for the others
(bfloat16, 8-bit floats, 4-bit integers, complex) the printed literal is read, which MLIR keeps
exact: a decimal that parses back to the same value, or the bits.
"""

from __future__ import annotations

import re
from typing import Any

import numpy as np
from jax.extend.mlir import ir

from jaxmono.hlo.types import DType, TensorType

_DENSE = re.compile(r'dense<(?:"0x(?P<hex>[0-9A-Fa-f]*)"|(?P<list>[^>]*))>')
_NUMBER = re.compile(r"\([^()]*\)|[^\s\[\],]+")
_BY_TEXT = frozenset({DType.BF16, DType.F8E4M3FN, DType.F8E5M2, DType.S4, DType.U4,
                      DType.C64, DType.C128})


def constant_value(op: ir.Operation, type: TensorType) -> np.ndarray[Any, Any]:
    """The value of a ``stablehlo.constant``; a splat is a broadcast 0-d array.

    Raises:
      ValueError: for a literal in a form that MLIR does not print (an importer bug).
    """
    if type.dtype in _BY_TEXT:
        # The bindings cannot even hand out a complex attribute, so there the op is printed, which
        # costs more because MLIR numbers the whole function first.
        m = _DENSE.search(str(
            op.get_asm(print_generic_op_form=True, enable_debug_info=False)
            if type.dtype.is_complex else op.attributes["value"]))
        if m is None:
            raise ValueError(f"a constant of type {type} has no dense<...> literal to read")
        return _from_text(m, type)
    attribute = ir.DenseElementsAttr(op.attributes["value"])
    array = np.array(attribute, dtype=type.dtype.numpy, copy=True)
    if attribute.is_splat and array.size > 1:
        return np.broadcast_to(array.reshape(-1)[0], type.dims)
    return array.reshape(type.dims)


def _from_text(m: re.Match[str], type: TensorType) -> np.ndarray[Any, Any]:
    if m["hex"] is not None:
        little = type.dtype.numpy.newbyteorder("<")
        flat = np.frombuffer(bytes.fromhex(m["hex"]), little).astype(type.dtype.numpy)
    else:
        words = _NUMBER.findall(m["list"])
        flat = np.empty(len(words), type.dtype.numpy)
        for i, w in enumerate(words):
            flat[i] = _element(w, type.dtype)
    if flat.size == 1 and type.size != 1:
        return np.broadcast_to(flat[0], type.dims)
    return flat.reshape(type.dims)


def _element(word: str, dtype: DType) -> Any:
    if dtype.is_complex:
        part = DType.F32 if dtype is DType.C64 else DType.F64
        parts = np.array([_element(p.strip(), part) for p in word.strip("()").split(",")],
                         part.numpy)
        return parts.view(dtype.numpy)[0]
    if word in ("true", "false"):
        return word == "true"
    if word.startswith("0x") and not dtype.is_integer:
        raw = bytes.fromhex(word[2:])[::-1]
        return np.frombuffer(raw, dtype.numpy)[0]
    return int(word, 0) if dtype.is_integer else dtype.numpy.type(float(word))
