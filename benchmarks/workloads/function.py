"""A function of arrays as a workload."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import Any

import jax
from jax import lax

from benchmarks.workloads.micro import weight
from benchmarks.workloads.workload import Program, Request, Workload

Shape = tuple[int, ...]
Function = Callable[..., Any]


def complex_of(key: jax.Array, part: Callable[[jax.Array], jax.Array], *, paired: bool,
               ) -> jax.Array:
    """What ``part`` draws, or two of it as one complex array."""
    return lax.complex(*map(part, jax.random.split(key))) if paired else part(key)


def of_function(name: str, title: str, fn: Function, inputs: tuple[Shape, ...],
                tiny: tuple[Shape, ...], weights: Mapping[str, Shape],
                small: Mapping[str, Shape], *, table: str,
                search: bool = False, dtype: str = "bf16",
                pairs: Collection[int | str] = ()) -> Workload:
    """``fn(*inputs, **weights)``, of which the inputs' first dimensions grow with the batch.

    Args:
      tiny, small: the shapes of the inputs and weights of the small configuration.
      table: that it is part of. search: whether its results are places, compared as such.
      dtype: of the table.
      pairs: inputs, by place, and weights that are complex numbers of such parts (of f32).
    """
    def build(request: Request) -> Program:
        shapes = tiny if request.tiny else tuple((request.batch * s[0], *s[1:]) for s in inputs)
        sizes = small if request.tiny else weights

        def step(state: Any, carry: Any, *xs: jax.Array) -> tuple[Any, Any]:
            return fn(*xs, **state), carry

        def state() -> dict[str, jax.Array]:
            keys = jax.random.split(jax.random.key(7), len(sizes))
            return {k: complex_of(key, lambda part, k=k, shape=shape: weight(
                part, k, shape, request.jax_dtype), paired=k in pairs)
                    for key, (k, shape) in zip(keys, sizes.items(), strict=True)}

        def random(key: jax.Array) -> tuple[jax.Array, ...]:
            keys = jax.random.split(key, len(shapes))
            return tuple(complex_of(key, lambda part, shape=shape: jax.random.normal(
                part, shape, request.jax_dtype), paired=i in pairs)
                         for i, (key, shape) in enumerate(zip(keys, shapes, strict=True)))

        step.__name__ = name
        return Program(step, " ".join("x".join(map(str, s)) for s in shapes), state=state,
                       inputs=random)

    return Workload(name, title, "micro", build, dtype=dtype, search=search, table=table)
