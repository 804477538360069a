"""Depthwise convolutions alone, beside the standard table: MobileNetV2's, and larger windows.

    python -m benchmarks.run --models=depthwise_table
"""

from __future__ import annotations

import jax

from benchmarks.workloads.micro import program
from benchmarks.workloads.workload import Program, Request, Workload
from examples.models import micro

ROWS: tuple[tuple[int, int, int, int], ...] = (
    (112, 32, 3, 1), (112, 96, 3, 2), (56, 144, 3, 1), (56, 144, 3, 2), (28, 192, 3, 1),
    (28, 192, 3, 2), (14, 384, 3, 1), (14, 576, 3, 1), (14, 576, 3, 2), (7, 960, 3, 1),
    (28, 240, 5, 1), (56, 96, 7, 1))
"""Height and width, channels, window, stride: MobileNetV2's, one of EfficientNet-B0, one of
ConvNeXt-T."""


def _depthwise(size: int, channels: int, window: int, stride: int) -> Workload:
    name = f"depthwise_{size}_{channels}_k{window}_s{stride}"

    def build(request: Request) -> Program:
        h, c = (window + 2, 8) if request.tiny else (size, channels)

        def fn(x: jax.Array, w: jax.Array, bias: jax.Array) -> jax.Array:
            return micro.depthwise(x, w, bias, stride)

        return program(name, fn, f"{h}x{h}x{c} k{window} s{stride}", request,
                       (request.batch, h, h, c), {"w": (window, window, 1, c), "bias": (c,)})

    return Workload(name, f"depthwise {window}x{window}, {size}x{size}x{channels} by {stride}",
                    "micro", build, batches=(1, 32), table="depthwise_table")


WORKLOADS = tuple(_depthwise(*row) for row in ROWS)
