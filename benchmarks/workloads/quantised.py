"""Products of quantised operands, beside the standard table: bytes by bytes, and weights of bytes.

    python -m benchmarks.run --models=quantised_table --dtype=bf16

``batch`` multiplies the rows. Whatever the operands are, results have the request's dtype, but
those of ``s8``, which are the sums themselves.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from benchmarks.workloads.workload import Program, Request, Workload

SHAPES = ((1, 8192, 2048), (1, 2048, 8192), (16, 3072, 768), (16, 8192, 2048), (128, 768, 3072),
          (128, 8192, 2048), (512, 3072, 768), (2048, 3072, 768), (2048, 768, 3072),
          (2048, 8192, 2048), (4096, 4096, 4096))
"""(M, N, K) of BERT-base and Llama-3.2-1B, and a cube."""

_E4M3_MOST = 448.0

Layer = Callable[[dict[str, jax.Array], jax.Array, jax.Array, Any], jax.Array]


def _contracted(x: jax.Array, w: jax.Array, out: Any, *, rows: bool) -> jax.Array:
    return jnp.einsum("mk,nk->mn" if rows else "mk,kn->mn", x, w, preferred_element_type=out)


def _sums(state: dict[str, jax.Array], x: jax.Array, scale: jax.Array, t: Any) -> jax.Array:
    return _contracted(x, state["w"], jnp.int32, rows=False)


def _scaled(rows: bool) -> Layer:
    """Scales of rows (tokens) and columns (output features), as quantised layers have."""
    def layer(state: dict[str, jax.Array], x: jax.Array, scale: jax.Array, t: Any) -> jax.Array:
        wide = jnp.int32 if x.dtype == jnp.int8 else jnp.float32
        y = _contracted(x, state["w"], wide, rows=rows)
        return (y.astype(jnp.float32) * scale[:, None] * state["scale"]).astype(t)
    return layer


def _weights(rows: bool) -> Layer:
    """Weights of bytes beside activations of the request's dtype."""
    def layer(state: dict[str, jax.Array], x: jax.Array, scale: jax.Array, t: Any) -> jax.Array:
        y = _contracted(x, state["w"].astype(t), t, rows=rows)
        return y * state["scale"].astype(t)
    return layer


KINDS: dict[str, tuple[Layer, Any, bool, bool]] = {
    "s8": (_sums, jnp.int8, True, False),
    "s8_scaled": (_scaled(False), jnp.int8, True, False),
    "s8_scaled_nk": (_scaled(True), jnp.int8, True, True),
    "f8_scaled": (_scaled(False), jnp.float8_e4m3fn, True, False),
    "f8_scaled_nk": (_scaled(True), jnp.float8_e4m3fn, True, True),
    "w8": (_weights(False), jnp.int8, False, False),
    "w8_nk": (_weights(True), jnp.int8, False, True),
}
"""Name -> layer, type of the weights, whether rows have it too, whether weights lie as [n][k]."""


def _quantised(key: jax.Array, shape: tuple[int, ...], t: Any) -> jax.Array:
    """Normal values of a spread of a quarter of the type's range, as absolute maxima leave them."""
    most = 127.0 if t == jnp.int8 else _E4M3_MOST
    x = jnp.clip(jax.random.normal(key, shape, jnp.float32) * most / 4, -most, most)
    return jnp.round(x).astype(t) if t == jnp.int8 else x.astype(t)


def _workload(kind: str, m: int, n: int, k: int) -> Workload:
    layer, t, both, rows_of_w = KINDS[kind]
    name = f"{kind}_{m}_{n}_{k}"

    def build(request: Request) -> Program:
        rows, columns, inner = (16, 32, 64) if request.tiny else (request.batch * m, n, k)

        def step(state: Any, carry: Any, x: jax.Array, scale: jax.Array) -> tuple[jax.Array, Any]:
            return layer(state, x, scale, request.jax_dtype), carry

        def state() -> dict[str, jax.Array]:
            first, second = jax.random.split(jax.random.key(7))
            shape = (columns, inner) if rows_of_w else (inner, columns)
            return {"w": _quantised(first, shape, t),
                    "scale": jax.random.uniform(second, (columns,), jnp.float32, 1e-3, 1e-2)}

        def inputs(key: jax.Array) -> tuple[jax.Array, ...]:
            first, second = jax.random.split(key)
            x = _quantised(first, (rows, inner), t) if both else jax.random.normal(
                first, (rows, inner), request.jax_dtype)
            return x, jax.random.uniform(second, (rows,), jnp.float32, 1e-3, 1e-2)

        step.__name__ = name
        return Program(step, f"{rows}x{columns}x{inner}", state=state, inputs=inputs)

    return Workload(name, f"GEMM {m}x{n}x{k}, {kind}", "micro", build, one_kernel=True,
                    table="quantised_table")


WORKLOADS: tuple[Workload, ...] = tuple(
    _workload(kind, *shape) for kind in KINDS for shape in SHAPES)
