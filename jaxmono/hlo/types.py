"""Element types and tensor types of the Graph."""

from __future__ import annotations

import enum
import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, TypeAlias

import ml_dtypes
import numpy as np


class DType(enum.Enum):
    """A StableHLO element type; the value is its name in jaxmono's printed form."""

    PRED = "pred"
    S8 = "s8"
    S16 = "s16"
    S32 = "s32"
    S64 = "s64"
    U8 = "u8"
    U16 = "u16"
    U32 = "u32"
    U64 = "u64"
    F16 = "f16"
    BF16 = "bf16"
    F32 = "f32"
    F64 = "f64"
    F8E4M3FN = "f8e4m3fn"
    F8E5M2 = "f8e5m2"
    C64 = "c64"
    C128 = "c128"
    # Kernels read them (device/four_bits.cuh); XLA writes them.
    S4 = "s4"
    U4 = "u4"
    # Tokens, and element types that have no name here; only ops.Unknown uses such values.
    OPAQUE = "opaque"

    @property
    def numpy(self) -> np.dtype[Any]:
        return _NUMPY[self]

    @property
    def itemsize(self) -> int:
        """Bytes of one element by itself (pred is one, as in XLA). In a buffer: `bits`."""
        return self.numpy.itemsize

    @property
    def bits(self) -> int:
        """Of one element in a buffer, where two of 4 bits share a byte, the first in its low
        half."""
        return 4 if self in FOUR_BITS else 8 * self.itemsize

    @property
    def is_float(self) -> bool:
        return self in _FLOATS

    @property
    def is_complex(self) -> bool:
        return self in (DType.C64, DType.C128)

    @property
    def is_signed(self) -> bool:
        return self in _SIGNED

    @property
    def is_unsigned(self) -> bool:
        return self in _UNSIGNED

    @property
    def is_integer(self) -> bool:
        return self in _SIGNED or self in _UNSIGNED

    @classmethod
    def of(cls, dtype: Any) -> DType:
        """The DType of a NumPy (or ml_dtypes) dtype."""
        return _FROM_NUMPY[np.dtype(dtype)]


_NUMPY: dict[DType, np.dtype[Any]] = {
    DType.PRED: np.dtype(np.bool_),
    DType.S8: np.dtype(np.int8),
    DType.S16: np.dtype(np.int16),
    DType.S32: np.dtype(np.int32),
    DType.S64: np.dtype(np.int64),
    DType.U8: np.dtype(np.uint8),
    DType.U16: np.dtype(np.uint16),
    DType.U32: np.dtype(np.uint32),
    DType.U64: np.dtype(np.uint64),
    DType.F16: np.dtype(np.float16),
    DType.BF16: np.dtype(ml_dtypes.bfloat16),
    DType.F32: np.dtype(np.float32),
    DType.F64: np.dtype(np.float64),
    DType.C64: np.dtype(np.complex64),
    DType.C128: np.dtype(np.complex128),
    DType.S4: np.dtype(ml_dtypes.int4),
    DType.U4: np.dtype(ml_dtypes.uint4),
    DType.F8E4M3FN: np.dtype(ml_dtypes.float8_e4m3fn),
    DType.F8E5M2: np.dtype(ml_dtypes.float8_e5m2),
    DType.OPAQUE: np.dtype("V1"),
}
MAX_RANK = 16
"""Most dimensions of what enters a kernel."""
FOUR_BITS = (DType.S4, DType.U4)
PART: Mapping[DType, DType] = {DType.C64: DType.F32, DType.C128: DType.F64}
"""What a complex number has two of."""
_FROM_NUMPY = {v: k for k, v in _NUMPY.items()}
_FLOATS = {DType.F16, DType.BF16, DType.F32, DType.F64, DType.F8E4M3FN, DType.F8E5M2}
_SIGNED = {DType.S8, DType.S16, DType.S32, DType.S64, DType.S4}
_UNSIGNED = {DType.U8, DType.U16, DType.U32, DType.U64, DType.U4}


def lowest(dtype: DType) -> float | int | None:
    """The neutral element of maximum."""
    if dtype is DType.PRED:
        return 0
    if dtype.is_float:
        return -math.inf
    return int(ml_dtypes.iinfo(dtype.numpy).min) if dtype.is_integer else None


def highest(dtype: DType) -> float | int | None:
    """The neutral element of minimum."""
    if dtype is DType.PRED:
        return 1
    if dtype.is_float:
        return math.inf
    return int(ml_dtypes.iinfo(dtype.numpy).max) if dtype.is_integer else None


@dataclass(frozen=True)
class SymDim:
    """A dimension known only at run time, named as in jax.export (``"b"``)."""

    name: str

    def __str__(self) -> str:
        return self.name


Dim: TypeAlias = int | SymDim


@dataclass(frozen=True)
class TensorType:
    """Shape and element type of a Value; ``shape`` entries are ints or SymDims.

    What is computed of them is asked for millions of times in a program, and kept.
    """

    shape: tuple[Dim, ...]
    dtype: DType

    @property
    def rank(self) -> int:
        return len(self.shape)

    @cached_property
    def is_static(self) -> bool:
        return all(isinstance(d, int) for d in self.shape)

    @cached_property
    def dims(self) -> tuple[int, ...]:
        """The shape as ints.

        Raises:
          TypeError: if a dimension is symbolic; later rooms refuse such ops first.
        """
        out: list[int] = []
        for d in self.shape:
            if not isinstance(d, int):
                raise TypeError(f"{self} has the symbolic dimension {d}")
            out.append(d)
        return tuple(out)

    @cached_property
    def size(self) -> int:
        """Number of elements."""
        return math.prod(self.dims)

    @cached_property
    def nbytes(self) -> int:
        return -(-self.size * self.dtype.bits // 8)

    def __str__(self) -> str:
        return f"{self.dtype.value}[{','.join(str(d) for d in self.shape)}]"
