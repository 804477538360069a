"""Elementary functions of many numbers, where arithmetic takes longer than memory does, a table of
their own.

    python -m benchmarks.run --models=function_table

Six of them for each element, of multiples of it, added up.
"""

from __future__ import annotations

from collections.abc import Callable

import jax
import jax.numpy as jnp
from jax import lax

from benchmarks.workloads.function import of_function
from benchmarks.workloads.workload import Workload

ELEMENTS = 1 << 25
TIMES = 6
Function = Callable[[jax.Array], jax.Array]


def positive(f: Function) -> Function:
    return lambda x: f(jnp.abs(x) + 0.1)


FLOATS: dict[str, tuple[str, Function]] = {
    "quotient": ("1.7 / x", lambda x: 1.7 / x),
    "root": ("square root", positive(jnp.sqrt)),
    "exponential": ("exp", jnp.exp),
    "logarithm": ("log", positive(jnp.log)),
    "log1p": ("log(1 + x)", positive(jnp.log1p)),
    "tanh": ("tanh", jnp.tanh),
    "sigmoid": ("logistic", jax.nn.sigmoid),
    "softplus": ("log(1 + exp(x))", jax.nn.softplus),
    "gelu": ("GELU by erf", lambda x: jax.nn.gelu(x, approximate=False)),
    "erf": ("erf", lax.erf),
    "erfc": ("erfc", lax.erfc),
    "sine": ("sin", jnp.sin),
    "tangent": ("tan", jnp.tan),
    "angle": ("atan2", lambda x: jnp.arctan2(x, x * x - 1)),
    "power": ("x ** 1.7", positive(lambda x: x ** 1.7)),
    "rest": ("x mod 0.7", lambda x: jnp.mod(x, 0.7)),
    "log_sum": ("log(exp(x) + exp(0.3))", lambda x: jnp.logaddexp(x, 0.3)),
}
WIDE: dict[str, tuple[str, Function]] = {
    "bessel": ("exp(-x) I1(x)", lax.bessel_i1e),
    "log_gamma": ("lgamma", positive(lax.lgamma)),
}
INTEGERS: dict[str, tuple[str, Function]] = {
    "by_seven": ("x // 7", lambda x: x // 7),
    "by_others": ("x // y", lambda x: x // (x % 13 + 20)),
    "modulo": ("x mod 1000", lambda x: x % 1000),
}


def of_floats(f: Function) -> Function:
    def run(x: jax.Array) -> jax.Array:
        return sum((f(x * (0.3 * i)) for i in range(1, TIMES)), f(x))

    return run


def of_integers(f: Function) -> Function:
    def run(x: jax.Array) -> jax.Array:
        n = lax.bitcast_convert_type(x, jnp.int32) >> 4
        return sum((f(n * i) for i in range(2, TIMES + 1)), f(n))

    return run


def _of(name: str, title: str, f: Function, dtype: str) -> Workload:
    return of_function(f"{name}_{dtype}", f"{title}, {dtype}", f, ((ELEMENTS,),), ((64,),), {}, {},
                       table="function_table", dtype=dtype)


WORKLOADS = (
    *(_of(name, title, of_floats(f), dtype) for dtype in ("f32", "bf16")
      for name, (title, f) in FLOATS.items()),
    *(_of(name, title, of_floats(f), "f32") for name, (title, f) in WIDE.items()),
    *(_of(name, title, of_integers(f), "f32") for name, (title, f) in INTEGERS.items()),
)
