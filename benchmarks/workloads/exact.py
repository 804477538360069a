"""Models of f32 at precision HIGHEST, beside the standard table: no product may round to tf32.

    python -m benchmarks.run --models=exact_models
"""

from __future__ import annotations

import dataclasses
from typing import Any

import jax

from benchmarks.workloads import bert, convnets, decoders, reduces, vision_transformers
from benchmarks.workloads.workload import Program, Request, Workload

MODELS: dict[str, tuple[int, ...]] = {
    "bert_base": (1, 16), "vit_b16": (1, 16), "resnet50": (1,), "gpt2_decode": (1,),
    "llama_prefill": (1,), "mlp_gradients_2048_3072_768": (1,)}
"""Those that are run so, and their batches."""


def _exact_model(of: Workload) -> Workload:
    """The same program under `jax.default_matmul_precision`."""
    def build(request: Request) -> Program:
        whole = of.build(request)

        def step(state: Any, carry: Any, *inputs: Any) -> tuple[Any, Any]:
            with jax.default_matmul_precision("highest"):
                return whole.step(state, carry, *inputs)

        step.__name__ = f"exact_{of.name}"
        return dataclasses.replace(whole, step=step)

    return Workload(f"exact_{of.name}", f"{of.title}, exact", of.family, build,
                    batches=MODELS[of.name], dtype="f32", one_kernel=of.one_kernel, slow=of.slow,
                    search=of.search, table="exact_models")


WORKLOADS: tuple[Workload, ...] = tuple(
    _exact_model(w) for module in (bert, vision_transformers, convnets, decoders, reduces)
    for w in module.WORKLOADS if w.name in MODELS)
