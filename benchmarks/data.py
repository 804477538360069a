"""The arguments of a workload's calls: weights, carries, rotated inputs, and the f32 reference.

What is rotated. Every call gets other inputs than the one before. A model's weights are the same in
every call, as they are in use: whether the L2 still holds them is then what it would be in use. A
micro-graph has no such use of its own: its inputs and weights rotate through so many copies that
together they are twice the L2 or more.

How they are passed. As flat tuples of arrays: JAX takes 430 us a call to walk through a Flax state
of 200 arrays, in Python, and 90 us for a tuple of them.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from dataclasses import dataclass, field
from typing import Any

import jax
import jax.numpy as jnp

from benchmarks import weights
from benchmarks.workloads import Program, Workload

L2_BYTES = 60_000_000
"""Of the H200; no GPU that kernels are generated for has more, but for some that have 126 MB."""

SETS = 4
SEARCH_SETS = 16
"""Of a search, whose calls are what is counted (`benchmarks.errors`)."""
_MOST_SETS = 256
UNTUNED = {"xla_gpu_autotune_level": 0, "xla_gpu_enable_triton_gemm": False}
"""XLA's options for a program that has to be right, not fast: library calls as they come."""

_KEY = 11


@dataclass(frozen=True)
class Case:
    """A workload at one size: one line of the tables."""

    workload: Workload
    batch: int
    dtype: str
    tiny: bool = False

    @property
    def name(self) -> str:
        """Short, for people and file names."""
        return f"{self.workload.name} b{self.batch} {self.dtype}"

    def program(self, *, dtype: str | None = None, attention: str | None = None) -> Program:
        """Its program, or the same in another dtype or with an implementation of attention."""
        return _program(self, dtype or self.dtype, attention)

    def jaxmono_program(self) -> Program:
        """The program that jaxmono's side runs."""
        return self.program(attention=self.workload.jaxmono_attention)


@functools.lru_cache(maxsize=8)
def _program(case: Case, dtype: str, attention: str | None) -> Program:
    """Tracing a large model for its shapes takes seconds, so once has to do."""
    return case.workload.program(batch=case.batch, dtype=dtype, tiny=case.tiny,
                                 attention=attention)


@dataclass
class Data:
    """A case's arguments on the device.

    Attributes:
      program: its step takes and returns weights and carry as tuples of their leaves.
      states: equal copies of the weights; mostly one.
      carry: the first one; copy it before donating.
      inputs: of one call each, all different.
      kept: what the systems of this case share, by name; freed with the data.
    """

    case: Case
    program: Program
    states: list[Any]
    carry: Any
    inputs: list[tuple[jax.Array, ...]]
    trees: tuple[Any, Any]
    kept: dict[str, Any] = field(default_factory=dict)

    def flat(self, program: Program) -> Program:
        """The same of another program of this case."""
        return _flat(program, *self.trees)

    def arguments(self, turn: int = 0) -> tuple[Any, ...]:
        """(state, carry, *inputs) of a call; the carry is not a copy."""
        return self.states[turn % len(self.states)], self.carry, *self.inputs[
            turn % len(self.inputs)]


def make(case: Case, *, sets: int | None = None) -> Data:
    """All arguments of a case.

    Args:
      sets: of inputs; by default as many as the rule above asks for.
    """
    program = case.program()
    state, state_tree = _state(case, program)
    carry, carry_tree = _leaves(jax.tree.map(jnp.asarray, program.carry(
        jax.random.key(_KEY + 2))))
    first = program.inputs(jax.random.key(_KEY))
    if sets is None and case.workload.search and not case.tiny:
        sets = SEARCH_SETS
    elif sets is None:
        sets = sets_for(case.workload.family == "micro" and not case.tiny,
                        nbytes(state) + nbytes(first))
    keys = jax.random.split(jax.random.key(_KEY + 1), max(sets - 1, 1))
    inputs = [_arrays(first), *(_arrays(program.inputs(keys[k])) for k in range(sets - 1))]
    copies = sets if case.workload.family == "micro" and jax.tree.leaves(state) else 1
    states = [state, *(copied(state) for _ in range(copies - 1))]
    jax.block_until_ready((states, carry, inputs))
    return Data(case, _flat(program, state_tree, carry_tree), states, carry, inputs,
                (state_tree, carry_tree))


def abstract(case: Case) -> tuple[Program, tuple[Any, ...]]:
    """What `make` makes, as shapes: jaxmono's program on tuples of leaves, a call's arguments."""
    program = case.jaxmono_program()
    state, carry, *inputs = program.abstract()
    (leaves, tree), (carried, carry_tree) = _leaves(state), _leaves(carry)
    return _flat(program, tree, carry_tree), (leaves, carried, *inputs)


_last: dict[Case, tuple[tuple[Any, ...], Any]] = {}
"""The weights of the last case (as of batch 1); one entry at most."""


def _state(case: Case, program: Program) -> tuple[tuple[Any, ...], Any]:
    """The weights' leaves and structure. A model's are the same at every batch, and the next case
    mostly is the same model: drawing them, op by op and leaf by leaf, takes seconds. The programs
    take them as arguments that are not donated. A micro-graph's depend on its batch."""
    if case.workload.family == "micro":
        _last.clear()
        return _leaves(program.state())
    key = dataclasses.replace(case, batch=1)
    if key not in _last:
        _last.clear()  # before the next ones are made: both may not fit
        _last[key] = weights.leaves(program.state, key.name)
    return _last[key]


def _leaves(tree: Any) -> tuple[tuple[Any, ...], Any]:
    leaves, structure = jax.tree.flatten(tree)
    return tuple(leaves), structure


def _flat(program: Program, state_tree: Any, carry_tree: Any) -> Program:
    """The program on tuples of leaves."""

    def step(state: tuple[Any, ...], carry: tuple[Any, ...], *inputs: Any) -> Any:
        out, after = program.step(jax.tree.unflatten(state_tree, state),
                                  jax.tree.unflatten(carry_tree, carry), *inputs)
        return out, tuple(jax.tree.leaves(after))

    step.__name__ = program.step.__name__
    return dataclasses.replace(program, step=step)


def sets_for(rotates: bool, size: int) -> int:
    """How many sets of inputs there are, and of weights too where they rotate.

    Args:
      rotates: it is a micro-graph.
      size: bytes of one set and its weights.
    """
    if not rotates:
        return SETS
    return min(max(SETS, math.ceil(2 * L2_BYTES / max(size, 1)) + 1), _MOST_SETS)


def reference(data: Data, *, sets: int) -> list[tuple[Any, Any]]:
    """``(outputs, carry)`` of the f32 program at the highest dot precision on the same numbers.

    Args:
      sets: for the first so many sets of inputs.
    """
    # The structures of the two programs tell dtypes apart in nothing but their leaves.
    wide = data.flat(data.case.program(dtype="f32"))
    state, carry = upcast(data.states[0]), upcast(data.carry)
    arguments = [upcast(inputs) for inputs in data.inputs[:sets]]
    with jax.default_matmul_precision("highest"):
        step = _untuned(jax.jit(wide.step), state, carry, *arguments[0])
        return [step(state, carry, *inputs) for inputs in arguments]


def _untuned(step: Any, *arguments: Any) -> Any:
    """The step compiled without trying algorithms: right results of a few calls are all that is
    asked of it, and tuning f32 products of full precision takes longer than compiling the rest.
    Where XLA cannot do without (for a convolution, say), it is tuned."""
    if jax.default_backend() == "cpu":
        return step
    lowered = step.lower(*arguments)
    try:
        compiled = lowered.compile(compiler_options=UNTUNED)
        jax.block_until_ready(compiled(*arguments))
    except Exception:
        return lowered.compile()
    return compiled


# One program for a tree: op by op, every shape among its leaves is compiled for itself.


@jax.jit
def upcast(tree: Any) -> Any:
    """Floating leaves as f32."""
    return jax.tree.map(lambda a: a.astype(jnp.float32)
                        if jnp.issubdtype(a.dtype, jnp.floating) else a, tree)


@jax.jit
def copied(tree: Any) -> Any:
    """A copy that may be donated."""
    return jax.tree.map(jnp.copy, tree)


def nbytes(tree: Any) -> int:
    """Of all leaves."""
    return sum(int(getattr(a, "nbytes", 0)) for a in jax.tree.leaves(tree))


def _arrays(inputs: Any) -> tuple[jax.Array, ...]:
    return tuple(jax.tree.map(jnp.asarray, tuple(inputs)))
