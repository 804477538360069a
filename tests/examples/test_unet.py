"""The UNet of Stable Diffusion: its published size, and what its inputs do."""

from __future__ import annotations

import math
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from benchmarks.workloads import find
from examples.models import unet


@pytest.mark.slow
def test_published_size() -> None:
    """As `UNet2DConditionModel` has it with the weights of Stable Diffusion 1. Levels take what
    went down at their size.
    """
    program = find("unet").program(batch=2)
    state, carry, *inputs = program.abstract()
    assert sum(math.prod(x.shape) for x in jax.tree.leaves(state)) == 859_520_964
    noise, _ = jax.eval_shape(program.step, state, carry, *inputs)
    assert noise.shape == (2, 64, 64, 4) and noise.dtype == jnp.bfloat16
    shapes = [[b["first"]["kernel"].get_value().shape[-2] for b in level["blocks"].values()]
              for level in state["up"].values()]
    assert shapes == [[2560, 2560, 2560], [2560, 2560, 1920], [1920, 1280, 960], [960, 640, 640]]


Tiny = tuple[Callable[..., jax.Array], list[jax.Array]]


@pytest.fixture(scope="module")
def tiny() -> Tiny:
    config = unet.tiny(dtype=jnp.float32)
    # Not as `create` draws them, which compiles a program for each shape: for longer than all else.
    graph, shapes = nnx.split(nnx.eval_shape(lambda: unet.create(config)))
    rng = np.random.default_rng(0)
    state = jax.tree.map(lambda s: jnp.asarray(
        rng.standard_normal(s.shape) / math.sqrt(math.prod(s.shape[:-1])) if s.ndim > 1
        else 1 + rng.standard_normal(s.shape) / 8, s.dtype), shapes)
    keys = jax.random.split(jax.random.key(0), 2)
    return jax.jit(lambda *inputs: nnx.merge(graph, state)(*inputs)), [
        jax.random.normal(keys[0], (2, config.size, config.size, config.channels)),
        jnp.array([3.0, 700.0]), jax.random.normal(keys[1], (2, config.tokens, config.context))]


def test_each_example_is_its_own(tiny: Tiny) -> None:
    run, inputs = tiny
    both = run(*inputs)
    np.testing.assert_allclose(run(*(x[::-1] for x in inputs)), both[::-1], rtol=1e-4, atol=1e-5)
    other = run(*(x.at[1].set(x[0] * 2) for x in inputs))
    np.testing.assert_allclose(other[0], both[0], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("i", range(3), ids=["latents", "time", "text"])
def test_every_input_matters_everywhere(tiny: Tiny, i: int) -> None:
    run, inputs = tiny
    changed = [x * 1.5 if n == i else x for n, x in enumerate(inputs)]
    assert (jnp.abs(run(*changed) - run(*inputs)) > 1e-6).mean() > 0.99


def test_the_order_of_the_texts_tokens_does_not_matter(tiny: Tiny) -> None:
    """It looks at a text's states, which know where they are."""
    run, (latents, time, text) = tiny
    np.testing.assert_allclose(run(latents, time, text[:, ::-1]), run(latents, time, text),
                               rtol=1e-3, atol=1e-4)


def test_doubled() -> None:
    x = jnp.arange(8.0).reshape(1, 2, 2, 2)
    np.testing.assert_array_equal(unet.doubled(x)[0, :, :, 0],
                                  [[0, 0, 2, 2], [0, 0, 2, 2], [4, 4, 6, 6], [4, 4, 6, 6]])


def test_sinusoids_are_those_of_the_published_network() -> None:
    found = unet.sinusoids(jnp.array([10.0]), 4)[0]
    np.testing.assert_allclose(found, [np.cos(10), np.cos(0.1), np.sin(10), np.sin(0.1)], rtol=1e-5)
