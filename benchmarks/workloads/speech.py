"""Wav2Vec2 (inference and fine-tuning) and the ASR encoder."""

from __future__ import annotations

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
from examples.models import asr_encoder, wav2vec2


def _audio(key: jax.Array, request: Request, samples: int) -> jax.Array:
    """Mean 0 and variance 1, as the published model gets it."""
    return jax.random.normal(key, (request.batch, samples), request.jax_dtype)


def _wav2vec2(request: Request) -> Program:
    config = (wav2vec2.tiny if request.tiny else wav2vec2.base)(
        dtype=request.jax_dtype, attention=request.attention)
    samples = 400 if request.tiny else 16000
    return module_program(lambda: wav2vec2.create(config),
                          lambda key: (_audio(key, request, samples),), f"{samples} samples",
                          name="wav2vec2")


def _wav2vec2_train(request: Request) -> Program:
    config = (wav2vec2.tiny if request.tiny else wav2vec2.base)(
        weight_norm=True, dtype=request.jax_dtype, attention=request.attention)
    samples, letters = (400, 5) if request.tiny else (48000, 40)
    training = wav2vec2.training(nnx.eval_shape(lambda: wav2vec2.create(config)))

    def step(state: Any, carry: Any, *args: jax.Array) -> tuple[Any, Any]:
        return training.step(state, carry, *args)

    step.__name__ = "wav2vec2_train"

    def model() -> wav2vec2.Wav2Vec2:
        created = wav2vec2.create(config)
        nnx.update(created, jittered(created))
        return created

    def carry(key: jax.Array) -> Any:
        weights = wav2vec2.training(model()).weights
        return weights, amid_training(training.optimiser.init(weights), key)

    def inputs(key: jax.Array) -> tuple[jax.Array, ...]:
        keys = jax.random.split(key, 3)
        labels = 1 + token_ids(keys[1], (request.batch, letters), config.vocabulary - 1)
        lengths = jax.random.randint(keys[2], (request.batch, 1), letters // 2, letters + 1)
        return (_audio(keys[0], request, samples),
                jnp.where(jnp.arange(letters) < lengths, labels, -1))

    return Program(step, f"{samples} samples, {letters} letters",
                   state=lambda: wav2vec2.training(model()).frozen, inputs=inputs, carry=carry)


def _asr_encoder(request: Request) -> Program:
    config = (asr_encoder.tiny if request.tiny else asr_encoder.base)(
        dtype=request.jax_dtype, attention=request.attention)
    frames = 40 if request.tiny else 512

    def inputs(key: jax.Array) -> tuple[jax.Array, ...]:
        return (jax.random.normal(key, (request.batch, frames, config.mels), config.dtype),)

    return module_program(lambda: asr_encoder.create(config), inputs, f"{frames}x{config.mels}",
                          name="asr_encoder")


WORKLOADS = (
    Workload("wav2vec2", "Wav2Vec2-base", "speech", _wav2vec2, batches=(1,), one_kernel=True,
             attention=True, notes="one second of audio, with the CTC head"),
    Workload("wav2vec2_train", "Wav2Vec2-base, training step", "speech", _wav2vec2_train,
             batches=(8,), dtype="f32", attention=True, slow=True,
             notes="three seconds of audio and 40 letters; batch 8 is Grape's; forward, CTC loss, "
                   "backward and AdamW, feature encoder frozen; f32, as the weights it updates"),
    Workload("asr_encoder", "ASR encoder", "speech", _asr_encoder, batches=(1, 8), one_kernel=True,
             attention=True, notes="five seconds of audio; batch 8 is FusionStitching's"),
)
