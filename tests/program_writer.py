"""Writing the statements of a random program, with what is known of each value.

Each value carries what keeps the comparison meaningful: a bound on its magnitude (statements
rescale before it grows), and whether it is *exact*, that is, a copy, an order statistic or an
integer function of the inputs. Only exact values enter steps that jump (compare, floor, argmax,
float to integer): elsewhere one rounding would flip a result that no tolerance covers.
"""

from __future__ import annotations

import dataclasses
import math
import random
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import ml_dtypes
import numpy as np

DTYPES = ("f32", "bf16", "f16", "s32", "u32", "s8", "u8", "s16", "u16", "pred")
"""The default; ``f64``, ``s64`` and ``u64`` need jax_enable_x64."""
NUMPY: dict[str, np.dtype[Any]] = {
    "f64": np.dtype(np.float64), "f32": np.dtype(np.float32), "f16": np.dtype(np.float16),
    "bf16": np.dtype(ml_dtypes.bfloat16), "pred": np.dtype(np.bool_),
    **{f"{s}{b}": np.dtype(f"{n}{b}")
       for s, n in (("s", "int"), ("u", "uint")) for b in (8, 16, 32, 64)},
}
FLOATS = ("f64", "f32", "f16", "bf16")
EPS = {d: float(ml_dtypes.finfo(NUMPY[d]).eps) for d in FLOATS}
TF32 = 2.0 ** -11
"""What tensor cores may round f32 operands by, in a contraction of DEFAULT precision."""
SIZES = (1, 2, 3, 4, 5, 7, 8, 12, 16, 17, 24, 32, 33)
MAX_ELEMENTS = 4096
LARGE_SIZES = (1, 2, 3, 8, 16, 31, 48, 64, 65, 96, 100, 128, 130, 256, 260, 384, 513, 1024)
LARGE_MAX_ELEMENTS = 40_000
LIMIT = 16.0


@dataclasses.dataclass(frozen=True)
class Val:
    """A value of the program being written."""

    name: str
    shape: tuple[int, ...]
    dtype: str
    bound: float = 1.0
    exact: bool = True
    eps: float = 0.0
    clamped: bool = False
    """A dynamic slice out of range is before it. XLA (JAX 0.11) merges such a slice with the
    next by adding the start indices unclamped, and is wrong; no step asks for that."""

    @property
    def size(self) -> int:
        return math.prod(self.shape)

    @property
    def is_float(self) -> bool:
        return self.dtype in FLOATS

    @property
    def is_integer(self) -> bool:
        return not self.is_float and self.dtype != "pred"


class Writer:
    """Writes statements; steps (`program_steps.py`) call it."""

    def __init__(self, seed: int, dtypes: Sequence[str], *, large: bool = False) -> None:
        self.sizes = LARGE_SIZES if large else SIZES
        self.max_elements = LARGE_MAX_ELEMENTS if large else MAX_ELEMENTS
        self.rng = random.Random(seed)
        self.data = np.random.default_rng(seed)
        self.dtypes = dtypes
        self.special = self.rng.random() < 0.2
        self.zero_size = self.rng.random() < 0.04
        self.args: list[tuple[Val, np.ndarray[Any, Any]]] = []
        self.values: list[Val] = []
        self.lines: list[str] = []

    # Arguments

    def shape(self, min_rank: int = 0, max_rank: int = 4) -> tuple[int, ...]:
        """A random shape within `max_elements`."""
        rank = self.rng.randint(min_rank, max_rank)
        out: list[int] = []
        for _ in range(rank):
            room = self.max_elements // max(1, math.prod(out))
            out.append(self.rng.choice([s for s in self.sizes if s <= room] or [1]))
        if out and self.zero_size and self.rng.random() < 0.3:
            out[self.rng.randrange(rank)] = 0
        return tuple(out)

    def argument(self, shape: Sequence[int], dtype: str | None = None, *, low: int | None = None,
                 high: int | None = None) -> Val:
        """A fresh argument; integers in [low, high), by default any small or extreme ones."""
        shape = tuple(shape)
        dtype = dtype or self.rng.choice(self.dtypes)
        np_dtype = NUMPY[dtype]
        if dtype in FLOATS:
            array = np.clip(self.data.normal(size=shape), -3, 3).astype(np_dtype)
            if self.special and array.size and low is None and self.rng.random() < 0.7:
                flat = array.reshape(-1)
                for s in (np.nan, np.inf, -np.inf, -0.0):
                    if self.rng.random() < 0.5:
                        flat[self.rng.randrange(flat.size)] = s
        elif dtype == "pred":
            array = self.data.integers(0, 2, shape).astype(np.bool_)
        else:
            info = np.iinfo(np_dtype)
            lo, hi = (low, high) if low is not None and high is not None else (
                max(info.min, -20), min(info.max, 21))
            array = self.data.integers(lo, hi, shape).astype(np_dtype)
            if low is None and array.size and self.rng.random() < 0.3:
                array.reshape(-1)[0] = self.rng.choice((info.min, info.max))
        val = Val(f"a{len(self.args)}", shape, dtype, bound=3.0, eps=EPS.get(dtype, 0.0))
        self.args.append((val, np.asarray(array)))
        return val

    # Values

    def pick(self, accept: Callable[[Val], bool] = lambda v: True) -> Val | None:
        """A value that fits, recent ones more often."""
        fitting = [v for v in self.values if accept(v)]
        if not fitting:
            return None
        return fitting[max(self.rng.randrange(len(fitting)), self.rng.randrange(len(fitting)))]

    def peer(self, v: Val, *, exact: bool = False) -> Val:
        """A value of the same shape and dtype, perhaps ``v``, else a new argument."""
        if self.rng.random() < 0.6:
            found = self.pick(lambda w: w.shape == v.shape and w.dtype == v.dtype
                              and (w.exact or not exact))
            if found is not None:
                return found
        return self.argument(v.shape, v.dtype)

    def emit(self, expression: str, sources: Iterable[Val], *,
             shape: Sequence[int] | None = None, dtype: str | None = None,
             bound: float | None = None, exact: bool = False, clamped: bool = False,
             eps: float = 0.0) -> Val:
        """Writes ``name = expression``.

        Args:
          expression: Python over the names of values.
          sources: the values in it; the first gives shape and dtype where they are left out.
          shape: of the result.
          dtype: of the result.
          bound: on the magnitude of finite elements; by default the sources' largest.
          exact: the result is exact if the sources are.
          clamped: a start index may be out of range.
          eps: of the step itself, where it is coarser than the dtypes of sources and result.
        """
        sources = list(sources)
        dtype = dtype or sources[0].dtype
        bound = max(v.bound for v in sources) if bound is None else bound
        eps = max([eps, EPS.get(dtype, 0.0), *(v.eps for v in sources)])
        is_exact = (exact and all(v.exact for v in sources)) if dtype in FLOATS else True
        if bound > LIMIT and dtype in FLOATS:
            factor = 2.0 ** -math.ceil(math.log2(bound / 4))
            expression, bound, is_exact = f"({expression}) * {factor!r}", 4.0, False
        name = f"v{len(self.values)}"
        self.lines.append(f"    {name} = {expression}")
        out = Val(name, tuple(sources[0].shape if shape is None else shape), dtype, bound,
                  is_exact, eps, clamped or any(v.clamped for v in sources))
        self.values.append(out)
        return out
