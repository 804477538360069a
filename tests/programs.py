"""Random JAX programs for property tests: reproducible by seed, printable as Python.

    program = random_program(7)
    program.check(f(*program.args))     # f: the compiled program.fun

`check` compares with XLA and with the NumPy reference, as `compare` documents; on a mismatch it
shows the program as Python.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from compare import IllConditioned, Mismatch, compare
from jax import lax
from program_steps import NEEDS, WEIGHTS
from program_windows import STEPS
from program_writer import DTYPES, NUMPY, Writer

__all__ = ["ALL_OPS", "DTYPES", "IllConditioned", "Mismatch", "Program", "Reference", "compare",
           "random_program", "reference"]

ON_REQUEST = ("quantised",)
"""Steps that are for programs of their own (property/test_quantised.py)."""

ALL_OPS = tuple(name for name in STEPS if name not in ON_REQUEST)
"""The families of steps that `random_program` chooses from, unless others are asked for."""


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
            raise type(e)(f"{e}\n\n{self}") from None


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
    plain = evaluate(graph, program.args)
    try:
        expected = tuple(np.asarray(x) for x in lowered.compile()(*program.args))
    except jax.errors.JaxRuntimeError as error:
        # XLA:CPU has no bf16 x bf16 = f32 product in some shapes: NumPy alone is the reference.
        if "UNIMPLEMENTED" not in str(error):
            raise
        expected = tuple(plain)
    return Reference(expected, plain, evaluate(graph, program.args, accumulate="f64"))


def random_program(seed: int, *, dtypes: Sequence[str] = DTYPES,
                   ops: Sequence[str] | None = None, steps: int | None = None,
                   large: bool = False, outputs: int = 3) -> Program:
    """A random program of 3 to 12 steps (more statements, as some steps need helpers).

    Args:
      seed: decides everything.
      dtypes: element types of arguments and conversions, as in the Graph's printed form
        (indices are s32 in any case, masks pred, and layer_norm computes in f32).
      ops: names of steps to choose from; by default `ALL_OPS`.
      steps: how many steps; random by default.
      large: arrays of up to 40,000 elements and 1,024 rows, so that loops over tiles, splits of
        reductions and several tiles per block occur.
      outputs: at most so many.

    Raises:
      ValueError: if ``ops`` or ``dtypes`` has an unknown name, or none of the ops applies.
    """
    for given, known, what in ((ops or (), STEPS, "ops"), (dtypes, NUMPY, "dtypes")):
        unknown = [n for n in given if n not in known]
        if unknown:
            raise ValueError(f"random_program: {what} has the unknown {unknown}; "
                             f"known are {sorted(known)}")
    w = Writer(seed, dtypes, large=large)
    first = w.argument(w.shape(), next((d for d in dtypes if w.rng.random() < 0.7), None))
    w.values.append(first)
    for _ in range(w.rng.randint(0, 2)):
        w.values.append(w.argument(w.shape()))
    names = list(ops or ALL_OPS)
    used: list[str] = []
    wanted = steps or w.rng.randint(3, 12)
    for _ in range(wanted * 20):
        if len(used) == wanted:
            break
        name = w.rng.choices(names, [WEIGHTS.get(n, 1) for n in names])[0]
        if STEPS[name](w) is not None:
            used.append(name)
        elif w.rng.random() < 0.25:
            # Nothing fits it: something else might.
            w.values.append(w.argument(w.shape(), w.rng.choice([*dtypes, *NEEDS.get(name, ())])))
    made = [v for v in w.values if v.name.startswith("v")]
    if not made:
        raise ValueError(f"random_program({seed}): none of {names} applies to {dtypes}")
    more = min(len(made) - 1, w.rng.randint(0, outputs - 1))
    chosen = [made[-1], *w.rng.sample(made[:-1], more)]
    source = "\n".join([f"def program({', '.join(v.name for v, _ in w.args)}):", *w.lines,
                        f"    return ({', '.join(v.name for v in chosen)},)", ""])
    options = "" if dtypes == DTYPES else f", dtypes={tuple(dtypes)!r}"
    options += "" if ops is None else f", ops={tuple(ops)!r}"
    options += "" if steps is None else f", steps={steps}"
    options += ", large=True" if large else ""
    options += "" if outputs == 3 else f", outputs={outputs}"
    return Program(seed, source, tuple(a for _, a in w.args), tuple(v.eps for v in chosen),
                   tuple(used), options)
