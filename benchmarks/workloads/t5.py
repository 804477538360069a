"""T5: the encoder's forward pass and the decoder's step with a cache."""

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
    graph_of,
    jittered,
    module_program,
    shapes_of,
    token_ids,
)
from examples.models import t5


def _config(config: t5.T5Config, request: Request) -> t5.T5Config:
    return dataclasses.replace(t5.tiny() if request.tiny else config, dtype=request.jax_dtype,
                               attention=request.attention)


def _encoder(published: t5.T5Config, request: Request) -> Program:
    config = _config(published, request)
    length = 32 if request.tiny else 128

    def inputs(key: jax.Array) -> tuple[jax.Array, ...]:
        ids = token_ids(key, (request.batch, length), config.vocabulary)
        return ids, jnp.ones_like(ids)

    return module_program(lambda: t5.Encoder(config, rngs=nnx.Rngs(0)), inputs, f"s{length}",
                          name="t5_encoder")


def _decode(published: t5.T5Config, request: Request) -> Program:
    """One step at the end of a full cache; the encoder's keys and values are inputs."""
    config = _config(published, request)
    length = 32 if request.tiny else 128

    def create() -> t5.Decoder:
        return t5.Decoder(config, rngs=nnx.Rngs(0))

    graphdef = graph_of(create)

    def pairs(key: jax.Array) -> t5.Pairs:
        shape = (request.batch, length, config.heads, config.head_size)
        keys = jax.random.split(key, (config.layers, 2))
        return [(jax.random.normal(k, shape, config.dtype), jax.random.normal(v, shape,
                                                                              config.dtype))
                for k, v in keys]

    def inputs(key: jax.Array) -> tuple[Any, ...]:
        word, states = jax.random.split(key)
        token = token_ids(word, (request.batch,), config.vocabulary)
        mask = jnp.ones((request.batch, length), jnp.int32)
        return token, jnp.int32(length - 1), pairs(states), mask

    def t5_decode(state: Any, cache: t5.Pairs, token: jax.Array, position: jax.Array,
                  cross: t5.Pairs, mask: jax.Array) -> tuple[jax.Array, t5.Pairs]:
        return nnx.merge(graphdef, state)(token, position, cache, cross, mask)

    return Program(t5_decode, f"cache {length}, encoder s{length}",
                   state=lambda: jittered(create()), inputs=inputs, carry=pairs,
                   weights=lambda: shapes_of(create))


_STEP = "the encoder's keys and values, made once a sentence, are inputs of the step"

WORKLOADS = (
    Workload("t5_small_encoder", "T5-small encoder", "transformer",
             lambda r: _encoder(t5.small(), r), batches=(1, 16, 32), one_kernel=True,
             attention=True),
    Workload("t5_base_encoder", "T5-base encoder", "transformer",
             lambda r: _encoder(t5.base(), r), batches=(1, 16, 32), one_kernel=True,
             attention=True),
    Workload("t5_small_decode", "T5-small decode step", "transformer",
             lambda r: _decode(t5.small(), r), batches=(1, 16, 32), one_kernel=True,
             attention=True, notes=_STEP),
    Workload("t5_base_decode", "T5-base decode step", "transformer",
             lambda r: _decode(t5.base(), r), batches=(1, 16, 32), one_kernel=True,
             attention=True, notes=_STEP),
)
