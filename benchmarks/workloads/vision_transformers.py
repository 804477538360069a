"""ViT, CLIP and MLP-Mixer."""

from __future__ import annotations

import jax
import jax.numpy as jnp

from benchmarks.workloads.workload import Program, Request, Workload, module_program, token_ids
from examples.models import clip, mixer, vit


def _images(key: jax.Array, request: Request, size: int) -> jax.Array:
    """Normalised images: mean 0 and variance 1."""
    return jax.random.normal(key, (request.batch, size, size, 3), request.jax_dtype)


def _texts(key: jax.Array, request: Request, config: clip.TextConfig) -> jax.Array:
    """Texts of all lengths, each with one end of text and padding of the same id after it."""
    keys = jax.random.split(key)
    length, end = config.positions, config.vocabulary - 1
    ids = token_ids(keys[0], (request.batch, length), end)
    lengths = jax.random.randint(keys[1], (request.batch, 1), 1, length)
    return jnp.where(jnp.arange(length) < lengths, ids, end)


def _vit(request: Request) -> Program:
    config = (vit.tiny if request.tiny else vit.b16)(dtype=request.jax_dtype,
                                                     attention=request.attention)
    return module_program(lambda: vit.create(config),
                          lambda key: (_images(key, request, config.image),),
                          f"{config.image}x{config.image}x3", name="vit")


def _mixer(request: Request) -> Program:
    config = (mixer.tiny if request.tiny else mixer.b16)(dtype=request.jax_dtype)
    return module_program(lambda: mixer.create(config),
                          lambda key: (_images(key, request, config.image),),
                          f"{config.image}x{config.image}x3", name="mixer")


def _clip_config(request: Request) -> clip.ClipConfig:
    return (clip.tiny if request.tiny else clip.b32)(dtype=request.jax_dtype,
                                                     attention=request.attention)


def _clip(request: Request) -> Program:
    config = _clip_config(request)
    size = config.image.image

    def inputs(key: jax.Array) -> tuple[jax.Array, ...]:
        keys = jax.random.split(key)
        return _images(keys[0], request, size), _texts(keys[1], request, config.text)

    return module_program(lambda: clip.create(config), inputs,
                          f"{size}x{size}x3, s{config.text.positions}", name="clip")


def _clip_image(request: Request) -> Program:
    config = _clip_config(request)
    size = config.image.image
    return module_program(lambda: clip.create(config).image,
                          lambda key: (_images(key, request, size),), f"{size}x{size}x3",
                          name="clip_image")


def _clip_text(request: Request) -> Program:
    config = _clip_config(request)
    return module_program(lambda: clip.create(config).text,
                          lambda key: (_texts(key, request, config.text),),
                          f"s{config.text.positions}", name="clip_text")


WORKLOADS = (
    Workload("vit_b16", "ViT-B/16", "transformer", _vit, batches=(1, 16, 32), one_kernel=True,
             attention=True),
    Workload("clip", "CLIP ViT-B/32", "transformer", _clip, batches=(1, 16, 32), one_kernel=True,
             attention=True, notes="both towers; as many texts as images, cosines of all pairs"),
    Workload("clip_image", "CLIP ViT-B/32, image tower", "transformer", _clip_image,
             one_kernel=True, attention=True),
    Workload("clip_text", "CLIP ViT-B/32, text tower", "transformer", _clip_text,
             one_kernel=True, attention=True),
    Workload("mixer_b16", "Mixer-B/16", "vision", _mixer, batches=(1, 16), one_kernel=True),
)
