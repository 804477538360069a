"""Models at sizes that tests choose, with data: `benchmarks.data.Data` as the yardstick has it."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx

import jaxmono
from benchmarks import data, errors
from benchmarks.data import Case, Data
from benchmarks.workloads.diffusion import unet_program
from benchmarks.workloads.workload import Program, Request, Workload, module_program, token_ids
from examples.models import bert, opt, unet


def bert_data(batch: int, *, length: int = 128, config: bert.BertConfig | None = None,
              dtype: str = "bf16", sets: int = 4) -> Data:
    """Token ids to pooled output, no padding; ``config``'s own dtype does not count."""
    sizes = bert.base() if config is None else config

    def build(request: Request) -> Program:
        typed = dataclasses.replace(sizes, dtype=request.jax_dtype)

        def inputs(key: jax.Array) -> tuple[jax.Array, ...]:
            ids = token_ids(key, (request.batch, length), sizes.vocabulary)
            return ids, jnp.ones_like(ids)

        return module_program(lambda: bert.create(typed), inputs, f"s{length}", name="bert")

    return _made("bert", build, batch, dtype, sets)


def opt_data(*, length: int = 128, config: opt.OptConfig | None = None, dtype: str = "bf16",
             sets: int = 4) -> Data:
    """One decoding step at the last position of a full cache."""
    sizes = opt.opt_125m() if config is None else config

    def build(request: Request) -> Program:
        typed = dataclasses.replace(sizes, dtype=request.jax_dtype)
        graphdef = nnx.split(nnx.eval_shape(lambda: opt.create(typed)))[0]

        def step(state: Any, carry: Any, token: jax.Array, position: jax.Array) -> Any:
            return nnx.merge(graphdef, state)(token, position, carry)

        def carry(key: jax.Array) -> Any:
            shapes = opt.empty_cache(typed, batch=request.batch, length=length)
            keys = iter(jax.random.split(key, 2 * typed.layers))
            return jax.tree.map(lambda a: jax.random.normal(next(keys), a.shape, a.dtype), shapes)

        def inputs(key: jax.Array) -> tuple[jax.Array, ...]:
            return token_ids(key, (request.batch,), sizes.vocabulary), jnp.int32(length - 1)

        step.__name__ = "opt"
        return Program(step, f"context {length}",
                       state=lambda: nnx.state(opt.create(typed)), inputs=inputs, carry=carry)

    return _made("opt", build, 1, dtype, sets)


def unet_data(batch: int, config: unet.UNetConfig, *, dtype: str = "bf16", sets: int = 2) -> Data:
    """Latents, times and texts to noise; ``config``'s own dtype does not count."""
    return _made("unet", lambda request: unet_program(config, request), batch, dtype, sets)


def _made(name: str, build: Callable[[Request], Program], batch: int, dtype: str, sets: int,
          ) -> Data:
    return data.make(Case(Workload(name, name, "transformer", build), batch, dtype), sets=sets)


def jitted(made: Data, system: str = "jaxmono", *, interpret: bool = False) -> Any:
    """The step under plain jax.jit ("xla") or jaxmono.jit, with its carry donated."""
    if system == "xla":
        return jax.jit(made.program.step, donate_argnums=1)
    return jaxmono.jit(made.program.step, donate_argnums=1, interpret=interpret)


def relative_errors(made: Data, *functions: Callable[..., Any]) -> list[float]:
    """Against the f32 program, of each function, over all sets of inputs."""
    wanted = data.reference(made, sets=len(made.inputs))
    return [errors.errors(function, made, wanted).worst() for function in functions]


def chained(step: Callable[..., Any], length: int) -> Callable[..., Any]:
    """One jax.jit program that calls ``step`` ``length`` times, each call after the one before.

    The calls are tied together through their token ids: 1 is added where the last result's first
    element is above 1e30, which is never, but XLA cannot know. All results are returned, so
    nothing can be left out.

    Returns:
      ``many(state, carry, *inputs) -> (outs, carry)``, inputs stacked on a new first axis.
    """

    def many(state: Any, carry: Any, *stacked: jax.Array) -> Any:
        outs: list[jax.Array] = []
        for k in range(length):
            ids, *rest = (a[k] for a in stacked)
            if outs:
                ids = ids + (jnp.ravel(outs[-1])[0] > 1e30).astype(ids.dtype)
            out, carry = step(state, carry, ids, *rest)
            outs.append(out)
        return outs, carry

    return jax.jit(many, donate_argnums=1)
