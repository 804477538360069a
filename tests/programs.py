"""Random JAX programs for property tests: reproducible by seed, printable as Python.

A program is a few statements over fresh arguments. While it is written, each value carries what
keeps the comparison meaningful: a bound on its magnitude (statements rescale before it grows),
and whether it is *exact*, that is, a copy, an order statistic or an integer function of the
inputs. Only exact values enter steps that jump (compare, floor, argmax, float to integer):
elsewhere one rounding would flip a result that no tolerance covers.
"""

from __future__ import annotations

import dataclasses
import math
import random
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
from compare import Mismatch, compare
from jax import lax

__all__ = ["ALL_OPS", "DTYPES", "Mismatch", "Program", "Reference", "compare",
           "random_program", "reference"]

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
SIZES = (1, 2, 3, 4, 5, 7, 8, 12, 16, 17, 24, 32, 33)
MAX_ELEMENTS = 4096
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

    @property
    def size(self) -> int:
        return math.prod(self.shape)

    @property
    def is_float(self) -> bool:
        return self.dtype in FLOATS

    @property
    def is_integer(self) -> bool:
        return not self.is_float and self.dtype != "pred"


@dataclasses.dataclass(frozen=True)
class Program:
    """A random program. ``str(program)`` is Python that shows and reproduces it.

    Attributes:
      source: a function definition over ``jax``, ``jnp``, ``lax``.
      args: its arguments as NumPy arrays.
      eps: per output, the epsilon of the coarsest float format before it.
      ops: the families of steps that it has.
    """

    seed: int
    source: str
    args: tuple[np.ndarray[Any, Any], ...]
    eps: tuple[float, ...]
    ops: tuple[str, ...]
    options: str

    @property
    def fun(self) -> Callable[..., Any]:
        """The function, returning a tuple."""
        scope: dict[str, Any] = {"jax": jax, "jnp": jnp, "lax": lax}
        exec(compile(self.source, f"<random_program({self.seed})>", "exec"), scope)
        return scope["program"]

    def __str__(self) -> str:
        shapes = "".join(f"# {n} = {a.dtype}{list(a.shape)}\n"
                         for n, a in zip(self._names(), self.args, strict=True))
        return (f"import jax, jax.numpy as jnp\nfrom jax import lax\n\n\n{self.source}\n"
                f"# args = random_program({self.seed}{self.options}).args\n{shapes}")

    def _names(self) -> list[str]:
        return self.source.split("(", 1)[1].split(")", 1)[0].split(", ")

    def check(self, actual: Sequence[Any], ref: Reference | None = None) -> None:
        """Compares outputs with XLA's and the NumPy reference.

        Raises:
          Mismatch: with the program as Python in the message.
        """
        ref = ref or reference(self)
        try:
            compare(actual, ref.expected, ref.wide, rounded=ref.rounded, eps=self.eps)
        except Mismatch as e:
            raise Mismatch(f"{e}\n\n{self}") from None


@dataclasses.dataclass(frozen=True)
class Reference:
    """What a program should give: by XLA, and by `evaluate` in its two modes."""

    expected: tuple[np.ndarray[Any, Any], ...]
    rounded: list[np.ndarray[Any, Any]]
    wide: list[np.ndarray[Any, Any]]


def reference(program: Program) -> Reference:
    """Runs a program through ``jax.jit`` and through the reference interpreter."""
    from jaxmono.hlo.importer import import_module
    from jaxmono.hlo.interp import evaluate

    jitted = jax.jit(program.fun, keep_unused=True)
    lowered = jitted.lower(*program.args)
    graph = import_module(lowered.compiler_ir("stablehlo")).graph
    expected = tuple(np.asarray(x) for x in lowered.compile()(*program.args))
    return Reference(expected, evaluate(graph, program.args),
                     evaluate(graph, program.args, accumulate="f64"))


class Writer:
    """Writes statements; steps (`program_steps.py`) call it."""

    def __init__(self, seed: int, dtypes: Sequence[str]) -> None:
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
        """A random shape within MAX_ELEMENTS."""
        rank = self.rng.randint(min_rank, max_rank)
        out: list[int] = []
        for _ in range(rank):
            room = MAX_ELEMENTS // max(1, math.prod(out))
            out.append(self.rng.choice([s for s in SIZES if s <= room] or [1]))
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
             bound: float | None = None, exact: bool = False) -> Val:
        """Writes ``name = expression``.

        Args:
          expression: Python over the names of values.
          sources: the values in it; the first gives shape and dtype where they are left out.
          shape: of the result.
          dtype: of the result.
          bound: on the magnitude of finite elements; by default the sources' largest.
          exact: the result is exact if the sources are.
        """
        sources = list(sources)
        dtype = dtype or sources[0].dtype
        bound = max(v.bound for v in sources) if bound is None else bound
        eps = max([EPS.get(dtype, 0.0), *(v.eps for v in sources)])
        is_exact = (exact and all(v.exact for v in sources)) if dtype in FLOATS else True
        if bound > LIMIT and dtype in FLOATS:
            factor = 2.0 ** -math.ceil(math.log2(bound / 4))
            expression, bound, is_exact = f"({expression}) * {factor!r}", 4.0, False
        name = f"v{len(self.values)}"
        self.lines.append(f"    {name} = {expression}")
        out = Val(name, tuple(sources[0].shape if shape is None else shape), dtype, bound,
                  is_exact, eps)
        self.values.append(out)
        return out


def random_program(seed: int, *, dtypes: Sequence[str] = DTYPES,
                   ops: Sequence[str] | None = None, steps: int | None = None) -> Program:
    """A random program of 3 to 12 steps (more statements, as some steps need helpers).

    Args:
      seed: decides everything.
      dtypes: element types of arguments and conversions, as in the Graph's printed form.
      ops: names from `ALL_OPS` to choose steps from; all by default.
      steps: how many steps; random by default.

    Raises:
      ValueError: if ``ops`` or ``dtypes`` has an unknown name, or none of the ops applies.
    """
    from program_steps import STEPS, WEIGHTS

    for given, known, what in ((ops or (), STEPS, "ops"), (dtypes, NUMPY, "dtypes")):
        unknown = [n for n in given if n not in known]
        if unknown:
            raise ValueError(f"random_program: {what} has the unknown {unknown}; "
                             f"known are {sorted(known)}")
    w = Writer(seed, dtypes)
    first = w.argument(w.shape(), next((d for d in dtypes if w.rng.random() < 0.7), None))
    w.values.append(first)
    if w.rng.random() < 0.6:
        w.values.append(w.argument(w.shape()))
    names = list(ops or STEPS)
    used: list[str] = []
    wanted = steps or w.rng.randint(3, 12)
    for _ in range(wanted * 20):
        if len(used) == wanted:
            break
        name = w.rng.choices(names, [WEIGHTS.get(n, 1) for n in names])[0]
        if STEPS[name](w) is not None:
            used.append(name)
    made = [v for v in w.values if v.name.startswith("v")]
    if not made:
        raise ValueError(f"random_program({seed}): none of {names} applies to {dtypes}")
    outputs = [made[-1], *w.rng.sample(made[:-1], min(len(made) - 1, w.rng.randint(0, 2)))]
    source = "\n".join([f"def program({', '.join(v.name for v, _ in w.args)}):", *w.lines,
                        f"    return ({', '.join(v.name for v in outputs)},)", ""])
    options = "" if dtypes == DTYPES else f", dtypes={tuple(dtypes)!r}"
    options += "" if ops is None else f", ops={tuple(ops)!r}"
    options += "" if steps is None else f", steps={steps}"
    return Program(seed, source, tuple(a for _, a in w.args), tuple(v.eps for v in outputs),
                   tuple(used), options)


def __getattr__(name: str) -> Any:
    if name == "ALL_OPS":
        from program_steps import STEPS
        return tuple(STEPS)
    raise AttributeError(name)
