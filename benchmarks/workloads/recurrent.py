"""DIEN (inference and training), CRNN and DeepFM."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx

from benchmarks.workloads.workload import (
    Program,
    Request,
    Workload,
    jittered,
    module_program,
    token_ids,
)
from examples.models import crnn, deepfm, dien


def _dien_config(request: Request) -> dien.DienConfig:
    return (dien.tiny if request.tiny else dien.books)(dtype=request.jax_dtype)


def _dien_history(key: jax.Array, config: dien.DienConfig, batch: int) -> dien.History:
    """Histories between half and all of the length."""
    keys = jax.random.split(key, 6)
    wide = (batch, config.length)
    return dien.History(
        user=token_ids(keys[0], (batch,), config.users),
        item=token_ids(keys[1], (batch,), config.items),
        category=token_ids(keys[2], (batch,), config.categories),
        items=token_ids(keys[3], wide, config.items),
        categories=token_ids(keys[4], wide, config.categories),
        lengths=jax.random.randint(keys[5], (batch,), config.length // 2, config.length + 1,
                                   jnp.int32))


def _dien(request: Request) -> Program:
    config = _dien_config(request)
    return module_program(
        lambda: dien.create(config),
        lambda key: tuple(_dien_history(key, config, request.batch)), f"t{config.length}",
        lambda model, *history: model(dien.History(*history)), name="dien")


def _dien_train(request: Request) -> Program:
    config = _dien_config(request)
    train_step, _ = dien.training(nnx.eval_shape(lambda: dien.create(config)))

    def step(state: Any, carry: Any, *args: jax.Array) -> tuple[jax.Array, Any]:
        history, batch = args[:6], args[6:]
        return train_step(carry, dien.History(*history), *batch)

    step.__name__ = "dien_train"

    def inputs(key: jax.Array) -> tuple[jax.Array, ...]:
        keys = jax.random.split(key, 4)
        wide = (request.batch, config.length)
        return (*_dien_history(keys[0], config, request.batch),
                jax.random.bernoulli(keys[1], 0.5, (request.batch,)).astype(jnp.float32),
                token_ids(keys[2], wide, config.items),
                token_ids(keys[3], wide, config.categories))

    return Program(step, f"t{config.length}", state=lambda: (), inputs=inputs,
                   carry=lambda key: jittered(dien.create(config)))


def _crnn(request: Request) -> Program:
    config = (crnn.tiny if request.tiny else crnn.base)(dtype=request.jax_dtype)
    width = 24 if request.tiny else 100

    def inputs(key: jax.Array) -> tuple[jax.Array, ...]:
        return (jax.random.normal(key, (request.batch, 32, width, 1), config.dtype),)

    return module_program(lambda: crnn.create(config), inputs, f"32x{width}x1", name="crnn")


def _deepfm(request: Request) -> Program:
    config = (deepfm.tiny if request.tiny else deepfm.base)(dtype=request.jax_dtype)

    def inputs(key: jax.Array) -> tuple[jax.Array, ...]:
        keys = jax.random.split(key)
        return (token_ids(keys[0], (request.batch, config.categorical), config.vocabulary),
                jax.random.normal(keys[1], (request.batch, config.dense), config.dtype))

    return module_program(lambda: deepfm.create(config), inputs,
                          f"{config.categorical}+{config.dense} features", name="deepfm")


WORKLOADS = (
    Workload("dien", "DIEN", "recommender", _dien, batches=(1, 256), slow=True,
             notes="Amazon Books sizes; batch 256 is FusionStitching's"),
    Workload("dien_train", "DIEN, training step", "recommender", _dien_train, batches=(256,),
             dtype="f32", slow=True,
             notes="forward, backward and SGD; f32, as the weights it updates"),
    Workload("crnn", "CRNN", "recurrent", _crnn, batches=(1, 8), slow=True,
             notes="batch 8 is FusionStitching's"),
    Workload("deepfm", "DeepFM", "recommender", _deepfm, batches=(1, 256),
             one_kernel=True),
)
