"""BERT and MiniLM."""

from __future__ import annotations

import dataclasses

import jax
import jax.numpy as jnp

from benchmarks.workloads.workload import Program, Request, Workload, module_program, token_ids
from examples.models import bert


def _bert(config: bert.BertConfig, request: Request, length: int = 128) -> Program:
    config = dataclasses.replace(bert.tiny() if request.tiny else config, dtype=request.jax_dtype,
                                 attention=request.attention)
    length = 32 if request.tiny else length

    def inputs(key: jax.Array) -> tuple[jax.Array, ...]:
        ids = token_ids(key, (request.batch, length), config.vocabulary)
        return ids, jnp.ones_like(ids)

    return module_program(lambda: bert.create(config), inputs, f"s{length}", name="bert")


WORKLOADS = (
    Workload("bert_base", "BERT-base", "transformer", lambda r: _bert(bert.base(), r),
             batches=(1, 16, 32), one_kernel=True, attention=True),
    Workload("bert_large", "BERT-large", "transformer", lambda r: _bert(bert.large(), r),
             batches=(1, 16), one_kernel=True, attention=True),
)
