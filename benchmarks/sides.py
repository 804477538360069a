"""The two sides of a comparison, and runners that feed them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

import jaxmono
from benchmarks.cases import Case, Step

SIDES = ("xla", "jaxmono")


def jitted(step: Step, side: str, *, interpret: bool = False) -> Any:
    """``step`` under plain jax.jit or jaxmono.jit, with its carry donated."""
    if side == "xla":
        return jax.jit(step, donate_argnums=1)
    return jaxmono.jit(step, donate_argnums=1, interpret=interpret)


def chained(step: Callable[..., Any], length: int) -> Callable[..., Any]:
    """One jax.jit program that calls ``step`` ``length`` times, each call after the one before.

    What the host does per call is then paid once for all of them, so the time divided by
    ``length`` is that of the device. The calls are tied together through their token ids: 1 is
    added where the last result's first element is above 1e30, which is never, but XLA cannot know.
    That costs both sides one tiny XLA kernel per call. All results are returned, so nothing
    can be left out.

    Returns:
      ``many(state, carry, *inputs) -> (outs, carry)``, inputs stacked on a new first axis.
    """

    def many(state: Any, carry: Any, *stacked: jax.Array) -> Any:
        outs: list[jax.Array] = []
        for k in range(length):
            ids, *rest = (a[k] for a in stacked)
            if outs:
                ids = ids + (jnp.ravel(outs[-1])[0] > 1e30).astype(ids.dtype)
            out, carry = step(state, carry, ids, *rest)
            outs.append(out)
        return outs, carry

    return jax.jit(many, donate_argnums=1)


class Runner:
    """Calls a compiled step again and again: rotates the inputs, hands the carry on."""

    def __init__(self, function: Callable[..., Any], case: Case, *, stack: int = 0) -> None:
        """``stack``: for a chained function, so many input sets are stacked into one."""
        self._function = function
        self._state = case.state
        self._carry = fresh(case.carry)
        self._inputs = [_stacked(case, i, stack) if stack else case.inputs[i]
                        for i in range(len(case.inputs))]
        self._turn = 0

    def __call__(self) -> Any:
        inputs = self._inputs[self._turn % len(self._inputs)]
        self._turn += 1
        out, self._carry = self._function(self._state, self._carry, *inputs)
        return out


def fresh(carry: Any) -> Any:
    """A copy that may be donated."""
    return jax.tree.map(jnp.copy, carry)


def _stacked(case: Case, start: int, length: int) -> tuple[jax.Array, ...]:
    sets = [case.inputs[(start + k) % len(case.inputs)] for k in range(length)]
    return tuple(jnp.stack(arrays) for arrays in zip(*sets, strict=True))
