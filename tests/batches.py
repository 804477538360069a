"""Random programs in batches, each batch one jitted function: one kernel, one compilation.

    problems = check(batch(17), interpret=True)

What a batch is made of follows from its number alone, so a failing one is run again by number:
``python -c "import batches; print(batches.check(batches.batch(17), interpret=True))"``.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import warnings
from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np
from programs import (
    ALL_OPS,
    IllConditioned,
    Mismatch,
    Program,
    Reference,
    random_program,
    reference,
)

import jaxmono

__all__ = ["ALL_OPS", "KINDS", "Batch", "Kind", "batch", "check", "numbers", "references"]

NETWORK = ("matmul", "dot_general", "softmax", "layer_norm", "attention", "unary", "binary",
           "reduce", "transpose", "reshape", "convert", "select", "slice", "gather")
WINDOWS = ("convolution", "convolution", "convolution_gradient", "reduce_window", "reduce_window",
           "unary", "binary", "pad", "slice", "transpose", "reshape", "matmul", "reduce")
CACHE = ("cache_update", "cache_update", "cache_update", "dynamic_update_slice", "dynamic_slice",
         "slice", "binary", "reduce", "transpose", "reverse", "matmul", "concatenate")
"""Updates of arguments, beside other readers of the same arguments."""


@dataclasses.dataclass(frozen=True)
class Kind:
    """What the programs of a batch have in common.

    Attributes:
      count: how many programs.
      options: keywords of `random_program`.
      x64: run with 64-bit types enabled.
    """

    name: str
    count: int
    options: dict[str, Any]
    x64: bool = False


KINDS = (
    Kind("any", 8, {}),
    Kind("any", 8, {}),
    Kind("any", 8, {}),
    Kind("network", 8, {"dtypes": ("bf16", "f32", "f16"), "ops": NETWORK}),
    Kind("x64", 8, {"dtypes": ("f64", "s64", "u64", "f32", "s32", "pred")}, x64=True),
    Kind("any", 8, {}),
    Kind("large", 4, {"large": True}),
    Kind("long", 4, {"steps": 24}),
    Kind("large network", 4, {"dtypes": ("bf16", "f32", "f16"), "ops": NETWORK, "large": True}),
    Kind("cache", 8, {"dtypes": ("f32", "bf16", "s32"), "ops": CACHE, "outputs": 8}),
    Kind("any", 8, {}),
    Kind("windows", 8, {"dtypes": ("f32", "bf16", "f16"), "ops": WINDOWS}),
    Kind("large windows", 4, {"dtypes": ("bf16", "f32", "f16"), "ops": WINDOWS, "large": True}),
)
"""Taken in turn; their number is odd, so that `check` donates the arguments of each in turn."""


@dataclasses.dataclass(frozen=True)
class Batch:
    """``fun(args)`` returns the outputs of all programs, as a tuple of tuples."""

    number: int
    kind: Kind
    programs: tuple[Program, ...]

    @property
    def args(self) -> tuple[tuple[np.ndarray[Any, Any], ...], ...]:
        return tuple(p.args for p in self.programs)

    @functools.cached_property
    def fun(self) -> Callable[..., Any]:
        functions = [p.fun for p in self.programs]

        def batch(args: Sequence[Sequence[Any]]) -> tuple[Any, ...]:
            return tuple(f(*a) for f, a in zip(functions, args, strict=True))

        return batch

    def context(self) -> contextlib.AbstractContextManager[Any]:
        """What its programs are to be run in."""
        return jax.enable_x64(True) if self.kind.x64 else contextlib.nullcontext()

    def __str__(self) -> str:
        return f"batch {self.number} ({self.kind.name})"


def batch(number: int) -> Batch:
    """The batch of that number, from 0."""
    kind = KINDS[number % len(KINDS)]
    return Batch(number, kind, tuple(random_program(1000 * number + i, **kind.options)
                                     for i in range(kind.count)))


def numbers(programs: int) -> range:
    """The batches that hold at least so many programs."""
    n = total = 0
    while total < programs:
        total += KINDS[n % len(KINDS)].count
        n += 1
    return range(n)


def references(of: Batch) -> list[Reference]:
    """What each program should give; XLA runs it on the CPU."""
    with of.context(), jax.default_device(jax.devices("cpu")[0]):
        return [reference(p) for p in of.programs]


def check(of: Batch, *, interpret: bool = False) -> list[str]:
    """Runs a batch as one kernel.

    Returns:
      One text per problem: ops that were refused, more than one kernel, results that differ from
      XLA's or the NumPy reference's (with the program), a second call that differs from the first.
    """
    problems: list[str] = []
    with of.context():
        donated = 0 if of.number % 2 else None  # outputs may then be written over arguments
        jitted = jaxmono.jit(of.fun, interpret=interpret, donate_argnums=donated)
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "Some donated buffers were not usable")
            compiled = jitted.lower(of.args).compile()
        told = compiled.explain()
        if told.kernels != 1 or told.refused:
            problems.append(f"{of} is not one kernel:\n{told}")
        first = jax.device_get(compiled(of.args))
        again = jax.device_get(compiled(of.args))
    for program, ref, out, same in zip(of.programs, references(of), first, again, strict=True):
        try:
            _check(program, out, ref)
        except Mismatch as mismatch:
            problems.append(f"{of}: {mismatch}")
        if [np.asarray(a).tobytes() for a in out] != [np.asarray(a).tobytes() for a in same]:
            problems.append(f"{of}: a second call gives other bits\n{program}")
    return problems


def _check(program: Program, out: Sequence[Any], ref: Reference) -> None:
    try:
        program.check(out, ref)
    except IllConditioned:
        # XLA:CPU loses some NaNs (in the softmax of a row of them, for one). Where it stands alone
        # against both ways to evaluate the program in NumPy, those decide.
        program.check(out, dataclasses.replace(ref, expected=tuple(ref.rounded)))
