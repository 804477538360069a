"""Quantised products and models, beside the standard table: bytes by bytes, and weights of bytes
or of 4 bits.

    python -m benchmarks.run --models=quantised_table --dtype=bf16
    python -m benchmarks.run --models=quantised_models

``batch`` multiplies the rows of products. Whatever the operands are, results have the request's
dtype, but those of ``s8``, which are the sums themselves.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from benchmarks.workloads import bert, decoders
from benchmarks.workloads.workload import Program, Request, Workload

SHAPES = ((1, 8192, 2048), (1, 2048, 8192), (16, 3072, 768), (16, 8192, 2048), (128, 768, 3072),
          (128, 8192, 2048), (512, 3072, 768), (2048, 3072, 768), (2048, 768, 3072),
          (2048, 8192, 2048), (4096, 4096, 4096))
"""(M, N, K) of BERT-base and Llama-3.2-1B, and a cube."""

GROUP = 128
"""Summed elements that share a scale."""

_MOST = {jnp.dtype(jnp.int8): 127.0, jnp.dtype(jnp.int4): 7.0, jnp.dtype(jnp.float8_e4m3fn): 448.0}

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


def _mixed(rows: bool) -> Layer:
    """Weights of few bits as they are beside activations of 16: JAX widens both to the result's
    f32."""
    def layer(state: dict[str, jax.Array], x: jax.Array, scale: jax.Array, t: Any) -> jax.Array:
        summed = (((1,), (1 if rows else 0,)), ((), ()))
        y = lax.dot_general(x, state["w"], summed, preferred_element_type=jnp.float32)
        return (y * state["scale"]).astype(t)
    return layer


def _in_groups(rows: bool) -> Layer:
    """The same of 4 bits, with a scale for each `GROUP` summed elements of a feature, as GPTQ and
    AWQ have them."""
    def layer(state: dict[str, jax.Array], x: jax.Array, scale: jax.Array, t: Any) -> jax.Array:
        w, s = state["w"], state["scale"]
        parts = (w.shape[0], -1, GROUP) if rows else (-1, GROUP, w.shape[1])
        wide = w.reshape(parts).astype(t) * jnp.expand_dims(s, 2 if rows else 1).astype(t)
        return _contracted(x, wide.reshape(w.shape), t, rows=rows)
    return layer


KINDS: dict[str, tuple[Layer, Any, bool, bool]] = {
    "s8": (_sums, jnp.int8, True, False),
    "s8_scaled": (_scaled(False), jnp.int8, True, False),
    "s8_scaled_nk": (_scaled(True), jnp.int8, True, True),
    "f8_scaled": (_scaled(False), jnp.float8_e4m3fn, True, False),
    "f8_scaled_nk": (_scaled(True), jnp.float8_e4m3fn, True, True),
    "w8": (_weights(False), jnp.int8, False, False),
    "w8_nk": (_weights(True), jnp.int8, False, True),
    "w8_mixed": (_mixed(False), jnp.int8, False, False),
    "w8_mixed_nk": (_mixed(True), jnp.int8, False, True),
    "w4": (_weights(False), jnp.int4, False, False),
    "w4_nk": (_weights(True), jnp.int4, False, True),
    "w4_mixed": (_mixed(False), jnp.int4, False, False),
    "w4_mixed_nk": (_mixed(True), jnp.int4, False, True),
    "w4_groups": (_in_groups(False), jnp.int4, False, False),
    "w4_groups_nk": (_in_groups(True), jnp.int4, False, True),
}
"""Name -> layer, type of the weights, whether rows have it too, whether weights lie as [n][k]."""


def _quantised(key: jax.Array, shape: tuple[int, ...], t: Any) -> jax.Array:
    """Normal values of a spread of a quarter of the type's range, as absolute maxima leave them."""
    most = _MOST[jnp.dtype(t)]
    x = jnp.clip(jax.random.normal(key, shape, jnp.float32) * most / 4, -most, most)
    return (x if jnp.issubdtype(t, jnp.floating) else jnp.round(x)).astype(t)


def _workload(kind: str, m: int, n: int, k: int) -> Workload:
    layer, t, both, rows_of_w = KINDS[kind]
    name = f"{kind}_{m}_{n}_{k}"

    def build(request: Request) -> Program:
        rows, columns, inner = (16, 32, 2 * GROUP) if request.tiny else (request.batch * m, n, k)

        def step(state: Any, carry: Any, x: jax.Array, scale: jax.Array) -> tuple[jax.Array, Any]:
            return layer(state, x, scale, request.jax_dtype), carry

        def state() -> dict[str, jax.Array]:
            first, second = jax.random.split(jax.random.key(7))
            shape = (columns, inner) if rows_of_w else (inner, columns)
            scales: tuple[int, ...] = (columns,)
            if "groups" in kind:
                scales = (columns, inner // GROUP) if rows_of_w else (inner // GROUP, columns)
            return {"w": _quantised(first, shape, t),
                    "scale": jax.random.uniform(second, scales, jnp.float32, 1e-3, 1e-2)}

        def inputs(key: jax.Array) -> tuple[jax.Array, ...]:
            first, second = jax.random.split(key)
            x = _quantised(first, (rows, inner), t) if both else jax.random.normal(
                first, (rows, inner), request.jax_dtype)
            return x, jax.random.uniform(second, (rows,), jnp.float32, 1e-3, 1e-2)

        step.__name__ = name
        return Program(step, f"{rows}x{columns}x{inner}", state=state, inputs=inputs)

    return Workload(name, f"GEMM {m}x{n}x{k}, {kind}", "micro", build, one_kernel=True,
                    table="quantised_table")


MODELS: dict[str, tuple[int, ...]] = {"llama_decode": (1, 16), "gpt2_decode": (1,),
                                      "llama_prefill": (1,), "bert_base": (1, 16)}
"""Models whose kernels are kept as s8 with a scale for each output feature, and their batches."""

MODELS_OF_4: dict[str, tuple[int, ...]] = {"llama_decode": (1, 16), "gpt2_decode": (1,)}
"""The same as s4, with a scale for each `GROUP` summed elements."""


def _is_kernel(path: Any, leaf: Any) -> bool:
    names = [str(getattr(p, "key", getattr(p, "name", p))) for p in path]
    return "kernel" in names and leaf.ndim == 2


def _model(of: Workload, t: Any) -> Workload:
    """The same program on weights of type ``t``, which it dequantises where it begins."""
    name = f"{jnp.dtype(t).name}_{of.name}"

    def build(request: Request) -> Program:
        whole = of.build(request)

        def quantise(state: Any) -> Any:
            def one(path: Any, leaf: Any) -> Any:
                if not _is_kernel(path, leaf):
                    return leaf
                groups = leaf.shape[0] // GROUP if t == jnp.int4 else 1
                parts = leaf.astype(jnp.float32).reshape(groups, -1, leaf.shape[1])
                scale = jnp.abs(parts).max(1, keepdims=True) / _MOST[jnp.dtype(t)]
                return {"q": jnp.round(parts / scale).astype(t).reshape(leaf.shape),
                        "scale": scale if groups > 1 else scale.reshape(-1)}
            return jax.tree_util.tree_map_with_path(one, state)

        def step(state: Any, carry: Any, *inputs: Any) -> tuple[Any, Any]:
            def one(leaf: Any) -> Any:
                if not isinstance(leaf, dict) or set(leaf) != {"q", "scale"}:
                    return leaf
                q, scale = leaf["q"], leaf["scale"].astype(request.jax_dtype)
                if scale.ndim == 1:
                    return q.astype(request.jax_dtype) * scale
                parts = q.reshape(scale.shape[0], -1, q.shape[1]).astype(request.jax_dtype)
                return (parts * scale).reshape(q.shape)
            state = jax.tree.map(one, state, is_leaf=lambda x: isinstance(x, dict) and "q" in x)
            return whole.step(state, carry, *inputs)

        step.__name__ = name
        weights = whole.weights
        return dataclasses.replace(
            whole, step=step, state=lambda: jax.jit(quantise)(whole.state()),
            weights=None if weights is None else lambda: jax.eval_shape(quantise, weights()))

    models = MODELS_OF_4 if t == jnp.int4 else MODELS
    return Workload(name, f"{of.title}, weights of {jnp.dtype(t).name}", of.family, build,
                    batches=models[of.name], one_kernel=of.one_kernel, slow=of.slow,
                    search=of.search, table="quantised_models")


WORKLOADS: tuple[Workload, ...] = (
    *(_workload(kind, *shape) for kind in KINDS for shape in SHAPES),
    *(_model(w, t) for t, models in ((jnp.int8, MODELS), (jnp.int4, MODELS_OF_4))
      for w in (*bert.WORKLOADS, *decoders.WORKLOADS) if w.name in models))
