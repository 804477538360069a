"""How far results are from the f32 program, and the verdict on it.

Of each array of the results the error is |x - ref| / |ref| (2-norms), over all sets of inputs
together; of integers (token ids) it is the share that differs; infinite where anything is not
finite. Outputs and carry (cache, weights under training) count apart: of each, the worst array
counts. An array of which XLA itself has more than half wrong (a gradient that is zero but for
rounding, ids after two beams were nearly equal) measures nothing and only has to be finite.

The verdict: in outputs and in carry, the error is at most 1.25 times XLA's own plus `noise`, which
allows for another rounding where XLA happens to be exact.

A search (`Workload.search`) is discrete: once two candidates are equal but for rounding, it takes
another path, and all ids and scores after that say nothing of accuracy. So its calls are counted:
those whose ids differ anywhere from the f32 program's, of all. If such calls were as likely as
XLA's, what would be the chance of so many more (Fisher's exact test, one-sided)? Below `UNLIKELY`
they are not. Scores count in calls with the same ids only, in which both scored the same path.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from benchmarks.data import Data, copied

FACTOR = 1.25
NOISE = {"f32": 1e-3, "bf16": 2e-3, "f16": 1e-3}
"""Half an ulp of bf16, one of f16; the rounding of an operand to tf32 for f32, which a GPU's
default precision allows and each one uses in other places."""

IDS_NOISE = 0.25
"""Of integers: ids follow another path after two scores that are equal but for rounding."""

UNLIKELY = 0.02
"""Chance of the counts of a search that is as right as XLA's: 4 of 4 against none are too many, and
of 16 calls 6 against none, 11 against 4."""

_NO_MEASURE = 0.5


@dataclass(frozen=True)
class ArrayError:
    """Of one array: its error, how many numbers that was taken of, whether they are integers;
    of a search's ids in how many calls, and how many of these took another path."""

    error: float
    size: int
    ids: bool = False
    calls: int = 0
    other: int = 0

    def noise(self, dtype: str) -> float:
        """What the error may be where XLA's is zero. The error of few numbers is left to chance,
        so that a single score may have nine times as much as a thousand of them."""
        return IDS_NOISE if self.ids else NOISE[dtype] * (1 + 8 / math.sqrt(max(self.size, 1)))


@dataclass(frozen=True)
class Errors:
    """Of all arrays of the outputs and of the carry."""

    outputs: tuple[ArrayError, ...]
    carry: tuple[ArrayError, ...] = ()

    def worst(self, xla: Errors | None = None) -> float:
        """The largest; given XLA's, of those that measure something, unless none does."""
        mine = [a.error for a in (*self.outputs, *self.carry)]
        if xla is None:
            return max(mine, default=0.0)
        theirs = [a.error for a in (*xla.outputs, *xla.carry)]
        known = [e for e, x in zip(mine, theirs, strict=True)
                 if x <= _NO_MEASURE or math.isinf(e)]
        return max(known or mine, default=0.0)


def verdict(mine: Errors, xla: Errors, dtype: str) -> bool:
    """Whether results are as right as XLA's."""
    return _within(mine.outputs, xla.outputs, dtype) and _within(mine.carry, xla.carry, dtype)


def _within(mine: Sequence[ArrayError], xla: Sequence[ArrayError], dtype: str) -> bool:
    if any(math.isinf(a.error) for a in mine):
        return False
    pairs = list(zip(mine, xla, strict=True))
    if any(a.calls and chance(a.other, a.calls, x.other, x.calls) < UNLIKELY for a, x in pairs):
        return False
    for ids in (False, True):
        known = [(a, x.error) for a, x in pairs
                 if a.ids == ids and not a.calls and x.error <= _NO_MEASURE]
        bar = FACTOR * max((x for _, x in known), default=0.0)
        if any(a.error > bar + a.noise(dtype) for a, _ in known):
            return False
    return True


def chance(mine: int, calls: int, xla: int, xla_calls: int) -> float:
    """Of at least ``mine`` of ``calls`` on another path, given that ``mine + xla`` of all calls
    are and that nothing tells the two apart (the hypergeometric distribution's tail)."""
    other = mine + xla
    ways = sum(math.comb(calls, k) * math.comb(xla_calls, other - k)
               for k in range(mine, min(calls, other) + 1))
    return ways / math.comb(calls + xla_calls, other)


def errors(function: Callable[..., Any], data: Data, wanted: Sequence[tuple[Any, Any]]) -> Errors:
    """The errors of a compiled step on the first sets of inputs, each in fresh memory.

    Args:
      wanted: ``(outputs, carry)`` of the f32 program, for each of these sets.
    """
    sums: dict[str, list[_Sum]] = {}
    for turn, reference in enumerate(wanted):
        state, carry, *inputs = data.arguments(turn)
        poison(reference)
        got = function(state, copied(carry), *inputs)
        for part, ours, theirs in zip(("outputs", "carry"), got, reference, strict=True):
            found = _compared(ours, theirs)
            if part == "outputs" and data.case.workload.search:
                found = _of_search(found)
            before = sums.get(part)
            sums[part] = found if before is None else [
                a + b for a, b in zip(before, found, strict=True)]
    return Errors(**{part: tuple(s.total() for s in each) for part, each in sums.items()})


@dataclass
class Check:
    """Whether compiled variants of a case's step are as right as XLA's default.

    Attributes:
      wanted: of the f32 program; where there is none, nothing is checked.
      bar: the default's errors, once they are known.
    """

    data: Data
    wanted: Sequence[tuple[Any, Any]]
    bar: Errors | None = None

    def set_bar(self, function: Callable[..., Any]) -> None:
        """Takes the default's errors."""
        if self.wanted:
            self.bar = errors(function, self.data, self.wanted)

    def right(self, function: Callable[..., Any]) -> bool:
        """True, too, where there is no bar."""
        if self.bar is None:
            return True
        return verdict(errors(function, self.data, self.wanted), self.bar, self.data.case.dtype)


def poison(like: Any) -> None:
    """Leaves NaN in the memory that results are likely to be put into."""
    made = _nan(tuple(a.shape for a in jax.tree.leaves(like) if not _is_key(a)))
    jax.block_until_ready(made)
    for a in made:
        a.delete()


@functools.partial(jax.jit, static_argnums=0)
def _nan(shapes: tuple[tuple[int, ...], ...]) -> list[jax.Array]:
    return [jnp.full(shape, jnp.nan, jnp.float32) for shape in shapes]


def distance(mine: Any, reference: Any) -> float:
    """The error of one array."""
    return _sums([jnp.asarray(mine)], [jnp.asarray(reference)])[0].total().error


@dataclass(frozen=True)
class _Sum:
    """Squares, or numbers that differ and numbers, over some sets of inputs."""

    off: float
    whole: float
    size: int
    ids: bool = False
    calls: int = 0
    other: int = 0

    def __add__(self, other: _Sum) -> _Sum:
        return _Sum(self.off + other.off, self.whole + other.whole, self.size + other.size,
                    self.ids, self.calls + other.calls, self.other + other.other)

    def total(self) -> ArrayError:
        told = self.size, self.ids, self.calls, self.other
        if not math.isfinite(self.off):
            return ArrayError(math.inf, *told)
        share = self.off / self.whole if self.whole else (math.inf if self.off else 0.0)
        return ArrayError(share if self.ids else math.sqrt(share), *told)


def _of_search(found: Sequence[_Sum]) -> list[_Sum]:
    """Of one call's outputs: ids count the call, numbers only where no id differs."""
    other = any(s.ids and s.off for s in found)
    return [replace(s, calls=1, other=int(s.off > 0)) if s.ids
            else _Sum(0.0, 0.0, 0) if other and math.isfinite(s.off) else s for s in found]


def _compared(got: Any, wanted: Any) -> list[_Sum]:
    mine, reference = (jax.tree.leaves(t) for t in (got, wanted))
    if len(mine) != len(reference):
        raise ValueError(f"{len(mine)} arrays of results, but the f32 program has "
                         f"{len(reference)}")
    return _sums(mine, reference)


def _is_key(a: Any) -> bool:
    return jnp.issubdtype(a.dtype, jax.dtypes.prng_key)


def _sums(mine: Sequence[Any], reference: Sequence[Any]) -> list[_Sum]:
    """Of every pair of arrays; those of numbers in one program, which takes one compilation."""
    pairs = [tuple(jax.random.key_data(a) if _is_key(a) else a for a in pair)
             for pair in zip(mine, reference, strict=True)]
    for x, y in pairs:
        if x.shape != y.shape:
            raise ValueError(f"shape {x.shape} of a result, but {y.shape} in f32")
    inexact = [bool(x.size) and jnp.issubdtype(x.dtype, jnp.inexact) for x, _ in pairs]
    squares = iter(jax.device_get(_squares([p for p, yes in zip(pairs, inexact, strict=True)
                                            if yes])))
    return [_of_numbers(next(squares), x.size) if yes else _of_ids(x, y)
            for (x, y), yes in zip(pairs, inexact, strict=True)]


def _of_ids(mine: Any, reference: Any) -> _Sum:
    if not mine.size:
        return _Sum(0.0, 0.0, 0)
    off = int(np.sum(np.asarray(mine) != np.asarray(reference)))
    return _Sum(float(off), float(mine.size), mine.size, ids=True)


def _of_numbers(found: Any, size: int) -> _Sum:
    off, whole, scale, finite = found
    if not finite:
        return _Sum(math.inf, 0.0, size)
    return _Sum(float(off) * float(scale) ** 2, float(whole) * float(scale) ** 2, size)


@jax.jit
def _squares(pairs: Sequence[tuple[jax.Array, jax.Array]]) -> list[Any]:
    """On the device: a training step's results are gigabytes. Scaled, so that squares fit f32."""
    out = []
    for mine, reference in pairs:
        x, y = (jnp.stack([a.real, a.imag]) if jnp.iscomplexobj(a) else a.astype(jnp.float32)
                for a in (mine, reference))
        finite = jnp.isfinite(x).all()
        scale = jnp.maximum(jnp.max(jnp.abs(y)), 1e-30)
        off, whole = (x - y) / scale, y / scale
        out.append((jnp.sum(off * off), jnp.sum(whole * whole), scale, finite))
    return out
