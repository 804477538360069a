"""OPT, GPT-2, GPT-J and Llama: forward passes without a cache, decoding steps, beam search."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from types import ModuleType
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
from examples.models import gpt2, gptj, llama, opt
from examples.models.cache import Cache


def _config(model: ModuleType, published: Callable[[], Any], request: Request) -> Any:
    return dataclasses.replace(model.tiny() if request.tiny else published(),
                               dtype=request.jax_dtype, attention=request.attention)


def _ids(config: Any, request: Request, length: int) -> Callable[[jax.Array], tuple[jax.Array]]:
    return lambda key: (token_ids(key, (request.batch, length), config.vocabulary),)


def _opt_forward(request: Request) -> Program:
    config = _config(opt, opt.opt_125m, request)
    return module_program(lambda: opt.create(config), _ids(config, request, 4), "s4",
                          lambda model, ids: model.forward(ids), name="opt_forward")


def _llama_prefill(request: Request) -> Program:
    """The last token's logits, and the keys and values of all."""
    config = _config(llama, llama.llama_3_2_1b, request)
    length = 32 if request.tiny else 128
    return module_program(lambda: llama.create(config), _ids(config, request, length),
                          f"s{length}", lambda model, ids: model.prefill(ids),
                          name="llama_prefill")


def _decode(model: ModuleType, published: Callable[[], Any], request: Request, name: str,
            ) -> Program:
    """One step at the last position of a full cache."""
    config = _config(model, published, request)
    length = 32 if request.tiny else 128

    def create() -> nnx.Module:
        return model.create(config)

    graphdef = graph_of(create)

    def cache(key: jax.Array) -> Cache:
        shapes, tree = jax.tree.flatten(jax.eval_shape(
            lambda: model.empty_cache(config, batch=request.batch, length=length)))
        keys = jax.random.split(key, len(shapes))
        return jax.tree.unflatten(tree, [jax.random.normal(k, s.shape, s.dtype)
                                         for k, s in zip(keys, shapes, strict=True)])

    def inputs(key: jax.Array) -> tuple[jax.Array, ...]:
        return token_ids(key, (request.batch,), config.vocabulary), jnp.int32(length - 1)

    def step(state: Any, cache: Cache, token: jax.Array, position: jax.Array,
             ) -> tuple[jax.Array, Cache]:
        return nnx.merge(graphdef, state)(token, position, cache)

    step.__name__ = name
    return Program(step, f"context {length}", state=lambda: jittered(create()), inputs=inputs,
                   carry=cache, weights=lambda: shapes_of(create))


def _beam(request: Request) -> Program:
    """A whole generation; tokens and their score."""
    config = _config(gpt2, gpt2.small, request)
    prompt, new = _GENERATED[request.tiny]

    def call(model: gpt2.Gpt2, ids: jax.Array) -> tuple[jax.Array, jax.Array]:
        return model.generate(ids, new_tokens=new, width=5)

    return _generation(config, _ids(config, request, prompt),
                       f"prompt {prompt}, {new} new, 5 beams", call, "gpt2_beam")


def _sample(request: Request) -> Program:
    """A whole generation; tokens."""
    config = _config(gpt2, gpt2.small, request)
    prompt, new = _GENERATED[request.tiny]
    ids = _ids(config, request, prompt)

    def call(model: gpt2.Gpt2, ids: jax.Array, key: jax.Array) -> jax.Array:
        return model.sample(ids, key, new_tokens=new, top_k=10 if request.tiny else 50)

    return _generation(config, lambda key: (*ids(key), jax.random.key_data(key)),
                       f"prompt {prompt}, {new} new", call, "gpt2_sample")


_GENERATED = {False: (16, 32), True: (4, 8)}
"""Tokens of the prompt and new ones, tiny or not."""


def _generation(config: Any, inputs: Callable[[jax.Array], Any], shape: str,
                call: Callable[..., Any], name: str) -> Program:
    """With weights wider than at initialisation: there every next token is about as probable as any
    other, whatever the text, so that rounding would decide."""
    def widened(path: Any, leaf: jax.Array) -> jax.Array:
        name = jax.tree_util.keystr(path)
        gain = 1.25 if "kernel" in name else 2.0 if "embedding" in name else None
        return leaf if gain is None else leaf * (gain / (0.02 * config.hidden**0.5))

    program = module_program(lambda: gpt2.create(config), inputs, shape, call, name=name)
    return dataclasses.replace(
        program, state=lambda: jax.tree_util.tree_map_with_path(widened, program.state()))


WORKLOADS = (
    Workload("opt_125m", "OPT-125M, 4 tokens", "transformer", _opt_forward, batches=(1, 16, 32),
             one_kernel=True, attention=True),
    Workload("opt_decode", "OPT-125M decode step", "transformer",
             lambda r: _decode(opt, opt.opt_125m, r, "opt_decode"), one_kernel=True,
             attention=True),
    Workload("gpt2_decode", "GPT-2 decode step", "transformer",
             lambda r: _decode(gpt2, gpt2.small, r, "gpt2_decode"), one_kernel=True,
             attention=True),
    Workload("gpt2_beam", "GPT-2 beam search", "transformer", _beam, attention=True,
             search=True, notes="a prompt to the best of 5 beams, in one jitted function"),
    Workload("gpt2_sample", "GPT-2 sampling", "transformer", _sample, attention=True, search=True,
             notes="a prompt to a text drawn at random, in one jitted function"),
    Workload("gptj_decode", "GPT-J 6B decode step", "transformer",
             lambda r: _decode(gptj, gptj.gptj_6b, r, "gptj_decode"), one_kernel=True,
             attention=True),
    Workload("llama_prefill", "Llama-3.2-1B prefill", "transformer", _llama_prefill,
             one_kernel=True, attention=True,
             notes="logits of the last token; the keys and values of all are outputs"),
    Workload("llama_decode", "Llama-3.2-1B decode step", "transformer",
             lambda r: _decode(llama, llama.llama_3_2_1b, r, "llama_decode"),
             batches=(1, 16), one_kernel=True, attention=True),
)
