"""Tables of single kernels, beside the standard table: products, epilogues, attention.

    python -m benchmarks.run --models=gemm_table --dtype=bf16,f16
    python -m benchmarks.run --models=unaligned_table --dtype=bf16,f32
    python -m benchmarks.run --models=few_table,vocabulary_table
    python -m benchmarks.run --models=exact_table --dtype=f32
    python -m benchmarks.run --models=epilogue_table,wide_epilogue_table
    python -m benchmarks.run --models=attention_table --batch=1,16

``batch`` multiplies the rows of products, and is the batch of attention.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from benchmarks.workloads.micro import weight
from benchmarks.workloads.workload import Program, Request, Workload

BERT = ((768, 768), (3072, 768), (768, 3072), (1024, 1024), (4096, 1024), (1024, 4096))
"""(N, K) of BERT-base and -large."""
BERT_ROWS = (1, 4, 16, 64, 128, 512, 2048, 4096)
LLAMA = ((2048, 2048), (512, 2048), (8192, 2048), (2048, 8192))
"""(N, K) of Llama-3.2-1B's projections."""
LLAMA_ROWS = (1, 16, 128, 2048)
SQUARES = (4096, 8192)

GEMMS = (*((m, n, k) for n, k in BERT for m in BERT_ROWS),
         *((m, n, k) for n, k in LLAMA for m in LLAMA_ROWS), *((s, s, s) for s in SQUARES))

EPILOGUE_GEMMS = ((1280, 3072, 768), (1280, 768, 3072), (128, 3072, 768), (2048, 3072, 768),
                  (2048, 768, 3072))
"""(M, N, K) of Bolt's Figure 9 (BERT's at batch 32, length 40) and of BERT-base, b1 and b16."""

WIDE_EPILOGUES = ("bias", "gelu", "silu_mul", "residual")
WIDE_EPILOGUE_GEMMS = ((4096, 3072, 768), (4096, 768, 3072), (16384, 3072, 768), (8192, 4096, 1024))
"""(M, N, K) of tiles enough for several each block: of BERT-base b32, and of wider layers."""

UNALIGNED = ((12288, 384, 196), (12288, 196, 384), (65536, 256, 60), (65536, 256, 316),
             (2048, 512, 13), (2048, 1024, 479), (512, 29, 1024), (32, 1001, 2048),
             (32, 21843, 768), (128, 30522, 768), (128, 50257, 768), (1, 50257, 768),
             (1, 30522, 768), (4, 50257, 768), (16, 30522, 768), (16, 50257, 768), (64, 50257, 768),
             (512, 30522, 768), (512, 50257, 768), (2048, 30522, 768), (2048, 50257, 768),
             (256, 1003, 2048), (64, 1001, 2048), (128, 6522, 512))
"""(M, N, K) whose rows are no multiples of 16 bytes: Mixer-B/16's tokens (b16), NeRF (1024 rays of
64 points), DLRM's first layers (b2048), letters (CTC), heads of 1001 and 21843 classes,
vocabularies of BERT and GPT-2 ([k, n], not tied to the embedding), of smaller models."""

FEW = tuple((m, n, k) for n, k in ((1024, 4096), (4096, 4096), (14336, 4096), (4096, 14336),
                                   (11008, 4096), (4096, 11008), (8192, 2048), (2048, 8192),
                                   (3072, 768), (768, 3072)) for m in (1, 2, 3, 4, 5, 6, 8))
"""(M, N, K) of decode steps of a few texts: Llama-3-8B's, -2-7B's and -3.2-1B's projections,
BERT-base's."""

VOCABULARIES = ((128, 50304, 768), (512, 50304, 768), (2048, 50304, 768), (8192, 50304, 768),
                (2048, 32000, 2048), (2048, 128256, 2048), (16384, 3072, 768), (16384, 2304, 768),
                (8192, 4096, 1024))
"""(M, N, K) of many tiles and a short k: what training computes of words (GPT-2's number of them
padded, Llama's), and wide layers of many rows."""

EXACT = ((16, 768, 768), (64, 256, 256), (128, 768, 768), (128, 3072, 768), (512, 768, 3072),
         (1000, 1000, 1000), (2048, 768, 768), (2048, 3072, 768), (2048, 768, 3072),
         (65536, 64, 64), (32, 1001, 2048), (2048, 2048, 2048), (4096, 4096, 4096))
"""(M, N, K) of products at precision HIGHEST."""

LENGTHS = (128, 512, 2048, 8192)
HEADS = ((12, 64), (32, 128))
"""(heads, features of one)."""
_SCORES = 8 << 30
"""Bytes of f32 scores above which XLA's own einsums are not tried: cuDNN is XLA's default there."""

Epilogue = Callable[[jax.Array, jax.Array, jax.Array], jax.Array]

EPILOGUES: dict[str, Epilogue] = {
    "bare": lambda y, bias, other: y,
    "bias": lambda y, bias, other: y + bias,
    "relu": lambda y, bias, other: jax.nn.relu(y + bias),
    "gelu": lambda y, bias, other: jax.nn.gelu(y + bias, approximate=False),
    "hardswish": lambda y, bias, other: jax.nn.hard_swish(y + bias),
    "softplus": lambda y, bias, other: jax.nn.softplus(y + bias),
    "silu_mul": lambda y, bias, other: jax.nn.silu(y + bias) * other,
    "residual": lambda y, bias, other: y + bias + other,
}
_WITH_OTHER = ("silu_mul", "residual")


def _product(name: str, title: str, table: str, m: int, n: int, k: int, kind: str,
             precision: str | None = None) -> Workload:
    def build(request: Request) -> Program:
        rows, columns, inner = (16, 24 + n % 8, 40 + k % 8) if request.tiny else \
            (request.batch * m, n, k)
        t = request.jax_dtype

        def step(state: Any, carry: Any, x: jax.Array, *other: jax.Array) -> tuple[jax.Array, Any]:
            y = jnp.matmul(x, state["w"], precision=precision)
            return EPILOGUES[kind](y, state.get("bias", y), other[0] if other else y), carry

        def state() -> dict[str, jax.Array]:
            keys = jax.random.split(jax.random.key(7))
            out = {"w": weight(keys[0], "w", (inner, columns), t)}
            return out if kind == "bare" else {
                **out, "bias": weight(keys[1], "bias", (columns,), t)}

        def inputs(key: jax.Array) -> tuple[jax.Array, ...]:
            first, second = jax.random.split(key)
            x = jax.random.normal(first, (rows, inner), t)
            other = (jax.random.normal(second, (rows, columns), t),) if kind in _WITH_OTHER else ()
            return x, *other

        step.__name__ = name
        return Program(step, f"{rows}x{columns}x{inner}", state=state, inputs=inputs)

    return Workload(name, title, "micro", build, one_kernel=True, table=table)


def _attention(length: int, heads: int, features: int, causal: bool) -> Workload:
    name = f"attention_s{length}_{heads}x{features}{'_causal' if causal else ''}"

    def build(request: Request) -> Program:
        s, h, d = (24, 2, 16) if request.tiny else (length, heads, features)
        large = request.batch * h * s * s * 4 > _SCORES
        wide = request.dtype == "f32"  # the reference, which cuDNN has nothing for
        implementation = request.attention or ("cudnn" if large and not wide else None)

        def attend(q: jax.Array, k: jax.Array, v: jax.Array) -> jax.Array:
            return jax.nn.dot_product_attention(
                q, k, v, is_causal=causal, implementation=implementation)

        def step(state: Any, carry: Any, q: jax.Array, k: jax.Array, v: jax.Array) -> Any:
            del state
            if large and wide:  # one example at a time, whose scores fit
                return jax.lax.map(lambda x: attend(*x), (q, k, v)), carry
            return attend(q, k, v), carry

        def inputs(key: jax.Array) -> tuple[jax.Array, ...]:
            return tuple(jax.random.normal(k, (request.batch, s, h, d), request.jax_dtype)
                         for k in jax.random.split(key, 3))

        step.__name__ = name
        return Program(step, f"s{s} {h}x{d}{' causal' if causal else ''}", state=dict,
                       inputs=inputs)

    return Workload(name, f"attention, {length} tokens", "micro", build, batches=(1, 16),
                    one_kernel=True, attention=True, jaxmono_attention="xla",
                    table="attention_table")


WORKLOADS: tuple[Workload, ...] = (
    *(_product(f"dot_{m}_{n}_{k}", f"GEMM {m}x{n}x{k}", "gemm_table", m, n, k, "bare")
      for m, n, k in GEMMS),
    *(_product(f"unaligned_{m}_{n}_{k}", f"GEMM {m}x{n}x{k}", "unaligned_table", m, n, k, "bare")
      for m, n, k in UNALIGNED),
    *(_product(f"few_{m}_{n}_{k}", f"GEMM {m}x{n}x{k}", "few_table", m, n, k, "bare")
      for m, n, k in FEW),
    *(_product(f"vocabulary_{m}_{n}_{k}", f"GEMM {m}x{n}x{k}", "vocabulary_table", m, n, k, "bare")
      for m, n, k in VOCABULARIES),
    *(_product(f"exact_{m}_{n}_{k}", f"GEMM {m}x{n}x{k}, exact", "exact_table", m, n, k, "bare",
                precision="highest")
      for m, n, k in EXACT),
    *(_product(f"{kind}_{m}_{n}_{k}", f"GEMM {m}x{n}x{k}, {kind}", "epilogue_table", m, n, k, kind)
      for m, n, k in EPILOGUE_GEMMS for kind in EPILOGUES),
    *(_product(f"{kind}_{m}_{n}_{k}", f"GEMM {m}x{n}x{k}, {kind}", "wide_epilogue_table", m, n, k,
                kind)
      for m, n, k in WIDE_EPILOGUE_GEMMS for kind in WIDE_EPILOGUES),
    *(_attention(s, h, d, causal) for h, d in HEADS for s in LENGTHS for causal in (False, True)),
)
