"""Micro-graphs: parts of transformers in bf16, and Bolt's tables in f16 as it measures them.

Of the products, ``batch`` counts copies of the rows that the name or the table says; of the
convolutions it is the N of NHWC.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

import jax
import jax.numpy as jnp

from benchmarks.workloads.workload import Program, Request, Workload
from examples.models import micro

Shape: TypeAlias = tuple[int, ...]

GEMMS = ((1280, 768, 768), (1280, 3072, 768), (1280, 768, 3072), (1024, 1024, 1024),
         (2048, 2048, 2048))
"""(M, N, K) of Bolt's Figure 8a: BERT's at batch 32 and length 40, and two squares, whose size its
text does not tell: ours."""

B2B_GEMMS = ((2464, 1, 4, 4), (16384, 64, 256, 16), (32768, 128, 576, 64), (128320, 32, 96, 96))
"""(M, N1, K1, N2) of Bolt's Table 1; K2 is N1."""

B2B_CONVS = ((224, 3, 48, 2), (112, 48, 48, 2), (56, 48, 48, 1), (224, 3, 64, 2), (112, 64, 64, 2),
             (56, 64, 64, 1))
"""(H = W, IC, OC, stride of the 3x3) of Bolt's Table 2; the 1x1 keeps OC. The table has no N: the
batch of Bolt's other convolutions, 32."""

PADDINGS = ((32, 20, 26, 46, 32, (3, 3), (1, 1)), (32, 20, 26, 46, 32, (5, 5), (2, 2)),
            (128, 14, 19, 46, 32, (5, 7), (0, 0)), (288, 11, 15, 46, 32, (5, 7), (0, 0)),
            (32, 20, 26, 174, 64, (3, 3), (1, 1)), (32, 20, 26, 174, 64, (5, 5), (2, 2)))
"""(N, H, W, IC, OC, kernel, padding) of Bolt's Table 3."""


def program(name: str, fn: Callable[..., jax.Array], shape: str, request: Request, x: Shape,
            weights: Mapping[str, Shape]) -> Program:
    """``fn(x, **weights)`` on normal random values, weights scaled as He et al. do."""

    def step(state: Any, carry: Any, x: jax.Array) -> tuple[jax.Array, Any]:
        return fn(x, **state), carry

    step.__name__ = name

    def state() -> dict[str, jax.Array]:
        keys = jax.random.split(jax.random.key(7), len(weights) + 1)
        return {name: weight(key, name, shape, request.jax_dtype)
                for key, (name, shape) in zip(keys, weights.items(), strict=False)}

    return Program(step, shape, state=state, inputs=lambda key: (
        jax.random.normal(key, x, request.jax_dtype),))


def weight(key: jax.Array, name: str, shape: Shape, dtype: Any) -> jax.Array:
    """A bias of spread 0.1, a scale around 1, or a kernel whose last axis are the outputs."""
    noise = jax.random.normal(key, shape, jnp.float32)
    if "bias" in name:
        return (0.1 * noise).astype(dtype)
    if name == "scale":
        return (1 + 0.1 * noise).astype(dtype)
    fan_in = 1
    for size in shape[:-1]:
        fan_in *= size
    return ((2 / fan_in) ** 0.5 * noise).astype(dtype)


def _rows(request: Request, rows: int, *sizes: int) -> tuple[int, ...]:
    """(rows of the whole batch, *sizes), or small ones."""
    if request.tiny:
        return tuple(min(size, limit) for size, limit in
                     zip((request.batch * rows, *sizes), (16, 24, 40), strict=False))
    return (request.batch * rows, *sizes)


def _part(name: str, title: str, fn: Callable[..., jax.Array], shape: Shape, *vectors: str,
          ) -> Workload:
    """Elementwise operations and reductions on rows, with weights of a row's size."""

    def build(request: Request) -> Program:
        x = (*_rows(request, shape[0]), *((24,) if request.tiny else shape[1:]))
        return program(name, fn, _text(x), request, x, dict.fromkeys(vectors, x[-1:]))

    return Workload(name, title, "micro", build, one_kernel=True)


def _mlp(request: Request) -> Program:
    rows, hidden, inner = _rows(request, 4096, 768, 3072)
    return program("mlp", micro.mlp, f"{rows}x{hidden}x{inner}", request, (rows, hidden),
                   {"up": (hidden, inner), "up_bias": (inner,), "down": (inner, hidden),
                    "down_bias": (hidden,)})


def _gemm(m: int, n: int, k: int) -> Workload:
    name = f"gemm_{m}_{n}_{k}"

    def build(request: Request) -> Program:
        rows, columns, inner = _rows(request, m, n, k)
        return program(name, micro.gemm, f"{rows}x{columns}x{inner}", request, (rows, inner),
                       {"w": (inner, columns)})

    return Workload(name, f"GEMM {m}x{n}x{k}", "micro", build, dtype="f16", one_kernel=True)


def _b2b_gemm(row: int, m: int, n1: int, k1: int, n2: int) -> Workload:
    name = f"b2b_gemm_{row}"

    def build(request: Request) -> Program:
        rows, middle, inner, last = (*_rows(request, m, n1, k1), min(n2, 8) if request.tiny else n2)
        return program(name, micro.back_to_back_gemm, f"{rows}x{inner}x{middle}x{last}", request,
                       (rows, inner), {"w1": (inner, middle), "w2": (middle, last)})

    return Workload(name, f"Bolt's back-to-back GEMM {row}", "micro", build, dtype="f16",
                    one_kernel=True)


def _b2b_conv(row: int, size: int, inputs: int, outputs: int, stride: int) -> Workload:
    name = f"b2b_conv_{row}"

    def build(request: Request) -> Program:
        h, c, d = (8, min(inputs, 8), 8) if request.tiny else (size, inputs, outputs)

        def fn(x: jax.Array, **weights: jax.Array) -> jax.Array:
            return micro.back_to_back_conv(x, **weights, stride=stride)

        return program(name, fn, f"{h}x{h}x{c}x{d} s{stride}", request, (request.batch, h, h, c),
                       {"w1": (3, 3, c, d), "bias1": (d,), "w2": (1, 1, d, d), "bias2": (d,)})

    return Workload(name, f"Bolt's back-to-back convolution {row}", "micro", build, batches=(32,),
                    dtype="f16", notes="the table gives no batch: 32, as Bolt's others")


def _padding(row: int, batch: int, height: int, width: int, inputs: int, outputs: int,
             kernel: tuple[int, int], padding: tuple[int, int]) -> Workload:
    name = f"padding_{row}"

    def build(request: Request) -> Program:
        h, w, c, d = (kernel[0] + 1, kernel[1] + 1, 6, 8) if request.tiny else \
            (height, width, inputs, outputs)

        def fn(x: jax.Array, w: jax.Array) -> jax.Array:
            return micro.conv(x, w, padding=padding)

        return program(name, fn, f"{h}x{w}x{c}x{d} k{kernel[0]}x{kernel[1]}", request,
                       (request.batch, h, w, c), {"w": (*kernel, c, d)})

    return Workload(name, f"Bolt's padded convolution {row}", "micro", build, batches=(batch,),
                    dtype="f16", notes="channels that 8 does not divide")


def _text(shape: Shape) -> str:
    return "x".join(map(str, shape))


WORKLOADS = (
    _part("layer_norm", "LayerNorm", micro.layer_norm, (4096, 768), "scale", "bias"),
    _part("rms_norm", "RMSNorm", micro.rms_norm, (4096, 2048), "scale"),
    _part("softmax", "softmax", micro.softmax, (49152, 128)),
    _part("gelu_chain", "GELU chain", micro.gelu_chain, (4096, 3072)),
    _part("bias_activation", "bias and ReLU", micro.bias_activation, (4096, 3072), "bias"),
    Workload("mlp", "MLP", "micro", _mlp, one_kernel=True),
    *(_gemm(*sizes) for sizes in GEMMS),
    *(_b2b_gemm(row, *sizes) for row, sizes in enumerate(B2B_GEMMS, 1)),
    *(_b2b_conv(row, *sizes) for row, sizes in enumerate(B2B_CONVS, 1)),
    *(_padding(row, *sizes) for row, sizes in enumerate(PADDINGS, 1)),
)
