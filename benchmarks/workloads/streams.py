"""A table of programs that only move data, beside the standard table.

    python -m benchmarks.run --models=stream_table

Steps of an optimiser whose state is f32, changes of type, sums and softmaxes. ``batch`` multiplies
the rows of the inputs; an optimiser's state does not grow.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp

from benchmarks.workloads.function import Function, Shape, of_function
from benchmarks.workloads.workload import Program, Request, Workload


def adamw(g: jax.Array, w: jax.Array, m: jax.Array, v: jax.Array) -> tuple[jax.Array, ...]:
    """AdamW's step without its corrections of the first steps. g: a gradient; w, m, v: f32."""
    g = g.astype(jnp.float32)
    m, v = 0.9 * m + 0.1 * g, 0.999 * v + 0.001 * g * g
    return w - 1e-3 * (m / (jnp.sqrt(v) + 1e-8) + 0.01 * w), m, v


def behind_a_product(x: jax.Array, dy: jax.Array, w: jax.Array, m: jax.Array, v: jax.Array,
                     ) -> tuple[jax.Array, ...]:
    """The same of a layer's gradient, x: [t, k] and dy: [t, n], of norm 1 at most."""
    g = (x.T @ dy).astype(jnp.float32)
    return adamw(g / jnp.maximum(jnp.sqrt((g * g).sum()), 1.0), w, m, v)


def momentum(x: jax.Array, dy: jax.Array, w: jax.Array, m: jax.Array) -> tuple[jax.Array, ...]:
    """SGD with momentum behind a layer's gradient, with nothing between: in its epilogue."""
    m = 0.9 * m + (x.T @ dy).astype(jnp.float32)
    return w - 1e-3 * m, m


def widened(x: jax.Array) -> jax.Array:
    return jnp.tanh(x.astype(jnp.float32))


def _stream(name: str, title: str, fn: Function, *inputs: Shape, state: Shape = (),
            names: str = "wmv") -> Workload:
    def shapes(shape: Shape) -> dict[str, Shape]:
        return dict.fromkeys(names, shape) if state else {}

    tiny = tuple((8,) * len(s) for s in inputs)
    plain = of_function(name, title, fn, inputs, tiny, shapes(state), shapes((8, 8)),
                        table="stream_table")

    def build(request: Request) -> Program:
        program = plain.build(request)

        def in_f32() -> Any:
            """Second moments are no less than 0."""
            found = {k: x.astype(jnp.float32) for k, x in program.state().items()}
            return {k: jnp.square(x) if k == "v" else x for k, x in found.items()}

        return dataclasses.replace(program, state=in_f32)

    return dataclasses.replace(plain, build=build)


def _donated(plain: Workload, fn: Function) -> Workload:
    """The same with its state as what one call hands to the next, in the same buffers."""
    def build(request: Request) -> Program:
        program = plain.build(request)

        def step(state: Any, carry: Any, *inputs: jax.Array) -> tuple[Any, Any]:
            del state
            names = sorted(carry, key="wmv".index)
            return (), dict(zip(names, fn(*inputs, **carry), strict=True))

        step.__name__ = f"{plain.name}_donated"
        return dataclasses.replace(program, step=step, state=dict[str, Any],
                                   carry=lambda _: program.state())

    return dataclasses.replace(plain, name=f"{plain.name}_donated", build=build,
                               title=f"{plain.title}, which are donated")


_STEPS = tuple(_stream(f"adamw_{n}", f"AdamW's step of {n} x {n} weights", adamw, (n, n),
                       state=(n, n)) for n in (1024, 4096))
_DENSE = tuple(_stream(f"adamw_dense_{n}_{t}", f"the same behind a gradient of {t} rows",
                       behind_a_product, (t, n), (t, n), state=(n, n))
               for n, t in ((2048, 512), (4096, 2048)))
_MOMENTUM = _stream("momentum_dense_4096_2048", "SGD with momentum behind a gradient of 2048 rows",
                    momentum, (2048, 4096), (2048, 4096), state=(4096, 4096), names="wm")

WORKLOADS: tuple[Workload, ...] = (
    *_STEPS, *(_donated(x, adamw) for x in _STEPS),
    *_DENSE, *(_donated(x, behind_a_product) for x in _DENSE),
    _MOMENTUM, _donated(_MOMENTUM, momentum),
    _stream("widened_4096", "a tanh in f32 of 4096 x 4096", widened, (4096, 4096)),
    _stream("sum_16777216", "a sum of 16 million", jnp.sum, (1 << 24,)),
    *(_stream(f"softmax_{n}_50257", f"a softmax of {n} lines of 50257", jax.nn.softmax, (n, 50257))
      for n in (4, 16)),
)
