"""BERT, inference and fine-tuning."""

from __future__ import annotations

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx

from benchmarks.workloads.workload import (
    Program,
    Request,
    Workload,
    amid_training,
    jittered,
    module_program,
    token_ids,
)
from examples.models import bert, bert_classifier


def _bert(config: bert.BertConfig, request: Request, length: int = 128) -> Program:
    config = dataclasses.replace(bert.tiny() if request.tiny else config, dtype=request.jax_dtype,
                                 attention=request.attention)
    length = 32 if request.tiny else length

    def inputs(key: jax.Array) -> tuple[jax.Array, ...]:
        ids = token_ids(key, (request.batch, length), config.vocabulary)
        return ids, jnp.ones_like(ids)

    return module_program(lambda: bert.create(config), inputs, f"s{length}", name="bert")


def _bert_train(request: Request) -> Program:
    config = dataclasses.replace(bert.tiny() if request.tiny else bert.base(),
                                 dtype=request.jax_dtype)
    length = 32 if request.tiny else 128
    training = bert_classifier.training(nnx.eval_shape(lambda: bert_classifier.create(config)))

    def train(state: Any, carry: Any, *args: jax.Array) -> tuple[Any, Any]:
        return training.step(carry, *args)

    train.__name__ = "bert_train"

    def inputs(key: jax.Array) -> tuple[jax.Array, ...]:
        keys = jax.random.split(key, 4)
        ids = token_ids(keys[0], (request.batch, length), config.vocabulary)
        lengths = jax.random.randint(keys[1], (request.batch, 1), length // 4, length + 1)
        return (jax.random.key_data(keys[2]), ids, (jnp.arange(length) < lengths).astype(jnp.int32),
                token_ids(keys[3], (request.batch,), 2))

    def carry(key: jax.Array) -> Any:
        weights = jittered(bert_classifier.create(config))
        return weights, amid_training(training.optimiser.init(weights), key)

    return Program(train, f"s{length}", state=lambda: (), inputs=inputs, carry=carry)


WORKLOADS = (
    Workload("bert_base", "BERT-base", "transformer", lambda r: _bert(bert.base(), r),
             batches=(1, 16, 32), one_kernel=True, attention=True),
    Workload("bert_large", "BERT-large", "transformer", lambda r: _bert(bert.large(), r),
             batches=(1, 16), one_kernel=True, attention=True),
    Workload("bert_train", "BERT-base, training step", "transformer", _bert_train, batches=(16,),
             slow=True, notes="a classifier's fine-tuning with dropout 0.1: forward, backward and "
             "AdamW; weights and moments in f32, layers in bf16"),
)
