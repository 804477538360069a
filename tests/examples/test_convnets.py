"""The convolutional networks: RepVGG's reparametrisation and the augmented form against the papers'
formulas, published sizes, and that tiny ones keep every kind of block."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from jax import lax
from thinned import thinned

from benchmarks.workloads import convnets
from examples.models import repvgg


def _conv(x: jax.Array, kernel: jax.Array, stride: int, padding: int) -> jax.Array:
    return lax.conv_general_dilated(x, kernel, (stride, stride), [(padding, padding)] * 2,
                                    dimension_numbers=("NHWC", "HWIO", "NHWC"),
                                    precision=lax.Precision.HIGHEST)


def _error(ours: Any, want: Any) -> float:
    a, b = np.asarray(ours, np.float64), np.asarray(want, np.float64)
    assert a.shape == b.shape and np.any(b)
    return float(np.linalg.norm(a - b) / np.linalg.norm(b))


def _norm(rng: np.random.Generator, channels: int) -> repvgg.Norm:
    def draw(low: float, high: float) -> jax.Array:
        return jnp.asarray(rng.uniform(low, high, channels), jnp.float32)

    return repvgg.Norm(draw(0.5, 1.5), draw(-1, 1), draw(-1, 1), draw(0.3, 2), eps=1e-2)


def _normalised(norm: repvgg.Norm, x: jax.Array) -> jax.Array:
    return (x - norm.mean) / jnp.sqrt(norm.var + norm.eps) * norm.scale + norm.bias


@pytest.mark.parametrize(("n_in", "n_out", "stride"), [(6, 6, 1), (6, 6, 2), (4, 6, 2)])
def test_a_fused_block_is_the_block_as_trained(n_in: int, n_out: int, stride: int) -> None:
    rng = np.random.default_rng(0)

    def draw(*shape: int) -> jax.Array:
        return jnp.asarray(rng.standard_normal(shape), jnp.float32)

    identity = _norm(rng, n_out) if n_in == n_out and stride == 1 else None
    block = repvgg.TrainingBlock(draw(3, 3, n_in, n_out), _norm(rng, n_out),
                                 draw(1, 1, n_in, n_out), _norm(rng, n_out), identity)

    @jax.jit
    def both(x: jax.Array) -> tuple[jax.Array, jax.Array]:
        trained = _normalised(block.square_norm, _conv(x, block.square, stride, 1))
        trained += _normalised(block.point_norm, _conv(x, block.point, stride, 0))
        if identity is not None:
            trained += _normalised(identity, x)
        kernel, bias = repvgg.fuse(block)
        assert kernel.shape == (3, 3, n_in, n_out) and bias.shape == (n_out,)
        return _conv(x, kernel, stride, 1) + bias, trained

    assert _error(*both(draw(2, 9, 7, n_in))) <= 1e-5


def test_an_identity_needs_as_many_channels_out_as_in() -> None:
    rng = np.random.default_rng(0)
    block = repvgg.TrainingBlock(jnp.ones((3, 3, 4, 6)), _norm(rng, 6), jnp.ones((1, 1, 4, 6)),
                                 _norm(rng, 6), _norm(rng, 6))
    with pytest.raises(ValueError, match="4 channels to 6"):
        repvgg.fuse(block)


@pytest.mark.slow
def test_repvggaug_has_a_1x1_convolution_behind_each_3x3_but_the_last() -> None:
    config = repvgg.tiny(augmented=True, dtype=jnp.float32)
    images = jax.random.normal(jax.random.key(0), (2, config.image, config.image, 3))

    @jax.jit
    def both(x: jax.Array) -> tuple[jax.Array, jax.Array]:
        model = repvgg.create(config)
        for block in model.blocks:
            block.square.bias[...] += 0.1
        ours, strides = model(x), (2, 2, 1, 2)  # the stem's, then those of stages of 2 and 1
        for block, stride in zip(model.blocks, strides, strict=True):
            x = jax.nn.relu(_conv(x, block.square.kernel[...], stride, 1)
                            + block.square.bias[...])
            if block is model.blocks[-1]:
                assert block.point is None
            else:
                assert block.point.kernel.shape == (1, 1, x.shape[-1], x.shape[-1])
                x = jax.nn.relu(x @ block.point.kernel[...][0, 0] + block.point.bias[...])
        return ours, x.mean((1, 2)) @ model.out.kernel[...] + model.out.bias[...]

    with jax.default_matmul_precision("highest"):
        assert _error(*both(images)) <= 1e-5


@pytest.mark.sampled(3)
@pytest.mark.parametrize("activation", ["relu", "gelu", "hard_swish", "softplus"])
def test_activations_of_bolts_table_4(activation: Any) -> None:
    block = repvgg.Block(repvgg.repvggaug_a0(activation=activation, dtype=jnp.float32), 3, 4, 1,
                         augmented=False, rngs=nnx.Rngs(0))
    x = jax.random.normal(jax.random.key(0), (1, 5, 5, 3))
    want = getattr(jax.nn, activation)(block.square(x))
    np.testing.assert_array_equal(block(x), want)


SIZES = {
    "resnet18": 11_689_512, "resnet50": 25_557_032, "vgg16": 138_357_544, "googlenet": 6_624_904,
    "inception_v3": 23_834_568, "repvgg_a0": 8_309_384, "mobilenet_v2": 3_504_872,
    "convnext_t": 28_589_128,
    # A0 and, per 3x3 convolution but the last, C * C + C.
    "repvggaug_a0": 8_309_384 + sum(n * (c * c + c) for n, c in ((3, 48), (4, 96), (14, 192))),
}


@pytest.mark.sampled(5)
@pytest.mark.parametrize("workload", thinned(convnets.WORKLOADS, 4), ids=lambda w: w.name)
def test_published_sizes(workload: Any) -> None:
    state = nnx.filter_state(workload.program(batch=2).abstract()[0], nnx.Param)
    assert sum(int(np.prod(a.shape)) for a in jax.tree.leaves(state)) == SIZES[workload.name]


@pytest.mark.sampled(3)
@pytest.mark.parametrize("workload", thinned(convnets.WORKLOADS, 4), ids=lambda w: w.name)
def test_shapes_and_dtypes_of_the_workloads(workload: Any) -> None:
    program = workload.program(batch=2)
    state, carry, images = program.abstract()
    assert f"{images.shape[1]}x{images.shape[2]}x3" == program.shape
    logits, carry = jax.eval_shape(program.step, state, carry, images)
    assert logits.shape == (2, 1000) and logits.dtype == jnp.bfloat16 and carry == ()


@pytest.mark.faithful
@pytest.mark.parametrize("workload", convnets.WORKLOADS, ids=lambda w: w.name)
def test_torch_peers_have_the_workloads_sizes(workload: Any) -> None:
    torch = pytest.importorskip("torch")
    pytest.importorskip("torchvision")
    from benchmarks.peers.torch_convnets import PEERS

    peer = PEERS[workload.name](2, torch.bfloat16, "meta")
    state, _, images = workload.program(batch=2).abstract()
    batch, height, width, channels = images.shape
    pixels, = peer.inputs(0)
    assert pixels.shape == (batch, channels, height, width)
    assert pixels.is_contiguous(memory_format=torch.channels_last)
    assert sorted(p.numel() for p in peer.module.parameters()) == sorted(
        int(np.prod(leaf.shape)) for leaf in jax.tree.leaves(nnx.filter_state(state, nnx.Param)))
    assert not peer.module.training and pixels.dtype == torch.bfloat16
    assert peer(pixels).shape == (2, 1000)
