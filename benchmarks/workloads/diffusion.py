"""The UNet of Stable Diffusion: one step of its sampler, without the sampler."""

from __future__ import annotations

import dataclasses

import jax
from flax import nnx

from benchmarks.workloads.workload import Program, Request, Workload, module_program, scaled
from examples.models import unet


def unet_program(sizes: unet.UNetConfig, request: Request) -> Program:
    """A UNet of these sizes, in the request's dtype and with its attention."""
    config = dataclasses.replace(sizes, dtype=request.jax_dtype, attention=request.attention)

    def inputs(key: jax.Array) -> tuple[jax.Array, ...]:
        latents, time, text = jax.random.split(key, 3)
        shape = (request.batch, config.size, config.size, config.channels)
        states = (request.batch, config.tokens, config.context)
        return (jax.random.normal(latents, shape, config.dtype),
                jax.random.uniform(time, (request.batch,), maxval=1000.0),
                jax.random.normal(text, states, config.dtype))

    def make() -> nnx.Module:
        return unet.create(config)

    program = module_program(make, inputs, f"{config.size}x{config.size}x{config.channels}",
                             name="unet")
    return dataclasses.replace(program, state=lambda: scaled(make))


def _unet(request: Request) -> Program:
    return unet_program(unet.tiny() if request.tiny else unet.stable_diffusion(), request)


WORKLOADS = (
    Workload("unet", "Stable Diffusion's UNet", "vision", _unet, batches=(2,), attention=True,
             slow=True, notes="a text and none, for guidance"),
)
