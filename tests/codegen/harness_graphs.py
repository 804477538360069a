"""Inputs and one-op graphs for the tests of generated code."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from jaxmono.hlo.ir import Graph, Loc, Value
from jaxmono.hlo.rewrite import Builder
from jaxmono.hlo.types import DType, TensorType

FLOATS = (DType.F16, DType.BF16, DType.F32, DType.F64)
INTEGERS = (DType.S8, DType.S16, DType.S32, DType.S64, DType.U8, DType.U16, DType.U32, DType.U64)
ALL = (*FLOATS, *INTEGERS, DType.PRED)


def value(shape: Sequence[int], dtype: DType = DType.F32) -> Value:
    return Value(TensorType(tuple(shape), dtype))


def graph(inputs: Sequence[Value], make: Callable[..., Value | tuple[Value, ...]]) -> Graph:
    """``make(builder, *inputs)`` gives the output or outputs."""
    b = Builder(Loc("model.py", 7, "layer"))
    out = make(b, *inputs)
    return Graph(tuple(inputs), tuple(b.ops), out if isinstance(out, tuple) else (out,))


def data(v: Value, seed: int = 0, *, special: bool = True, scale: float = 2.0) -> Any:
    """Random values of a type; floats with some NaN, infinities and signed zeros if ``special``."""
    rng = np.random.default_rng(seed)
    t, n = v.type.dtype, v.type.size
    if t is DType.PRED:
        flat = rng.integers(0, 2, n).astype(np.bool_)
    elif t.is_integer:
        info = np.iinfo(t.numpy)
        flat = rng.integers(info.min, info.max, n, dtype=t.numpy, endpoint=True)
        small = rng.integers(0, 40, n).astype(t.numpy)
        flat = np.where(rng.random(n) < 0.5, small, flat).astype(t.numpy)
    else:
        flat = (rng.standard_normal(n) * scale).astype(t.numpy)
        if special:
            for x in (np.nan, np.inf, -np.inf, -0.0, 0.0):
                flat[rng.random(n) < 0.01] = x
    return flat.reshape(v.type.dims)
