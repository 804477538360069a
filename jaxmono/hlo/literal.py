"""Attribute values as text: what ``print.py`` writes and ``parse.py`` reads.

Grammar: ``none | true | false | INT | WORD | "json string" | @DTYPE | [V, ...] | ARRAY``, where
ARRAY is ``f32[2,2]<1.0, 2.0, 3.0, 4.0>``, ``f32[2,2]<splat 0.0>`` or ``f32[9,9]<base64 ...>``
(little-endian, row-major). Every form is exact: a float that no short decimal says is written
as its bits (``0x7FC1``).
"""

from __future__ import annotations

import base64
import json
import re
from typing import Any

import numpy as np

from jaxmono.hlo.types import DType, TensorType

LISTED_ELEMENTS = 16
"""Arrays of up to this many elements are listed, larger ones are base64."""

_WORD = re.compile(r"[A-Za-z_][A-Za-z0-9_.]*\Z")
_RESERVED = frozenset({"none", "true", "false"})


def is_splat(array: np.ndarray[Any, Any]) -> bool:
    """Whether all elements have equal bytes, so that -0.0 differs from 0.0 and NaNs are equal.

    Costs nothing for a 0-d array that was broadcast, which is how `Constant` stores splats.
    """
    if array.size == 0:
        return False
    if all(s == 0 or n == 1 for s, n in zip(array.strides, array.shape, strict=True)):
        return True
    bits = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
    bits = bits.reshape(array.size, array.dtype.itemsize)
    return bool((bits[:2] == bits[0]).all() and (bits == bits[0]).all())


def raw_bytes(array: np.ndarray[Any, Any]) -> bytes:
    """The elements, row-major and little-endian."""
    flat = np.ascontiguousarray(array).reshape(-1)
    return flat.astype(flat.dtype.newbyteorder("<"), copy=False).tobytes()


def _bits(scalar: np.ndarray[Any, Any]) -> str:
    return "0x" + scalar.tobytes()[::-1].hex().upper()


def _scalar_text(scalar: np.ndarray[Any, Any], dtype: DType) -> str:
    if dtype is DType.PRED:
        return "true" if scalar[()] else "false"
    if dtype.is_integer:
        return str(int(scalar[()]))
    if not dtype.is_float:
        return _bits(scalar)
    if dtype in (DType.F16, DType.F32, DType.F64):
        text = repr(scalar[()].item()) if dtype is DType.F64 else str(scalar[()])
    else:
        text = str(float(scalar[()]))
    if "." not in text and "e" not in text and text[-1].isdigit():
        text += ".0"
    same = np.asarray(float(text), dtype.numpy).tobytes() == scalar.tobytes()
    return text if same else _bits(scalar)


def _scalar_value(text: str, dtype: DType) -> np.ndarray[Any, Any]:
    if text.startswith("0x"):
        return np.frombuffer(bytes.fromhex(text[2:])[::-1], dtype.numpy).reshape(())
    if dtype is DType.PRED:
        return np.asarray(text == "true")
    return np.asarray(int(text) if dtype.is_integer else float(text), dtype.numpy)


def array_text(array: np.ndarray[Any, Any], *, elide: bool = False) -> str:
    """``f32[2]<1.0, 2.0>``; with ``elide`` a long one becomes ``f32[9,9]<...>``."""
    dtype = DType.of(array.dtype)
    kind = str(TensorType(array.shape, dtype))
    if array.size > 1 and is_splat(array):
        first = array[(0,) * array.ndim]
        return f"{kind}<splat {_scalar_text(np.asarray(first), dtype)}>"
    if array.size <= LISTED_ELEMENTS:
        flat = np.ascontiguousarray(array).reshape(-1)
        return f"{kind}<{', '.join(_scalar_text(np.asarray(v), dtype) for v in flat)}>"
    if elide:
        return f"{kind}<...>"
    return f"{kind}<base64 {base64.b64encode(raw_bytes(array)).decode()}>"


def array_value(type: TensorType, text: str) -> np.ndarray[Any, Any]:
    """The array of ``array_text``'s part between the angle brackets.

    Raises:
      ValueError: if the contents do not fit the type, or were elided.
    """
    if text == "...":
        raise ValueError(f"the contents of a {type} constant were elided when it was printed")
    if text.startswith("splat "):
        return np.broadcast_to(_scalar_value(text[6:], type.dtype), type.dims)
    if text.startswith("base64 "):
        flat = np.frombuffer(base64.b64decode(text[7:]), type.dtype.numpy.newbyteorder("<"))
        return flat.astype(type.dtype.numpy, copy=False).reshape(type.dims)
    words = [w.strip() for w in text.split(",")] if text.strip() else []
    out = np.empty(len(words), type.dtype.numpy)
    for i, w in enumerate(words):
        out[i] = _scalar_value(w, type.dtype)
    return out.reshape(type.dims)


def attribute_text(value: Any, *, elide: bool = False) -> str:
    """One attribute value as text.

    Raises:
      TypeError: for a type that `ir.attribute` does not allow.
    """
    if value is None:
        return "none"
    if isinstance(value, (bool, np.bool_)):
        return "true" if value else "false"
    if isinstance(value, (int, np.integer)):
        return str(int(value))
    if isinstance(value, DType):
        return f"@{value.value}"
    if isinstance(value, str):
        bare = _WORD.match(value) and value not in _RESERVED
        return value if bare else json.dumps(value)
    if isinstance(value, (tuple, list)):
        return f"[{', '.join(attribute_text(v, elide=elide) for v in value)}]"
    if isinstance(value, np.ndarray):
        return array_text(value, elide=elide)
    raise TypeError(f"an op attribute of type {type(value).__name__} has no text form")
