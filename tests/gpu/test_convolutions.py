"""Convolutions on a GPU: gathered rows, pools in the epilogue, weights that stay."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from small_models import jitted, relative_errors

import jaxmono
from benchmarks import data
from benchmarks.workloads import find

BF16, F16, F32 = jnp.bfloat16, jnp.float16, jnp.float32
X = Any


@pytest.mark.parametrize(("name", "batch", "dtype"), [
    ("vgg16", 1, ""), ("vgg16", 32, ""), ("repvgg_a0", 32, ""), ("crnn", 8, ""),
    ("vgg16", 1, "f32"), ("vgg16", 32, "f32"), ("repvgg_a0", 32, "f32"), ("resnet18", 1, "f32"),
    ("googlenet", 1, "f32"), ("googlenet", 32, ""), ("inception_v3", 1, ""),
    ("mobilenet_v2", 1, ""), ("mobilenet_v2", 32, ""),
    ("convnext_t", 1, ""), ("convnext_t", 32, ""), ("mobilenet_v2", 1, "f32"),
    ("mobilenet_v2", 32, "f32"), ("convnext_t", 1, "f32"), ("depthwise_28_240_k5_s1", 4, "f32"),
    ("depthwise_56_96_k7_s1", 32, "")])
def test_models_as_right_as_xla(name: str, batch: int, dtype: str) -> None:
    workload = find(name)
    case = data.make(data.Case(workload, batch, dtype or workload.dtype))
    for turn in range(2):  # each time in other memory
        ours, xla = relative_errors(case, jitted(case), jitted(case, "xla"))
        assert ours <= 1.25 * xla + 1e-3, (turn, ours, xla)


def network(pool: int, **kw: Any) -> Any:
    def run(x: X, w: X, b: X) -> X:
        y = lax.conv_general_dilated(x, w, dimension_numbers=("NHWC", "HWIO", "NHWC"),
                                     **{"window_strides": (1, 1), "padding": "SAME", **kw})
        y = jax.nn.relu(y + b)
        window, start = (1, pool, pool, 1), jnp.asarray(-jnp.inf, y.dtype)
        return lax.reduce_window(y, start, lax.max, window, window, "VALID")

    return run


CASES = {
    "pool": (network(2), (3, 34, 38, 64), (3, 3, 64, 96)),
    "first layer": (network(2), (16, 224, 224, 3), (3, 3, 3, 64)),
    "weights stay": (network(2), (16, 112, 112, 64), (3, 3, 64, 64)),
    "tails of all": (network(1), (3, 37, 29, 40), (3, 3, 40, 72)),
    "strides and holes": (network(2, window_strides=(2, 2), rhs_dilation=(3, 2)), (4, 63, 61, 48),
                          (3, 3, 48, 144)),
    "no padding": (network(2, padding="VALID"), (5, 36, 36, 32), (5, 5, 32, 256)),
    "depthwise": (network(1, feature_group_count=144), (32, 56, 56, 144), (3, 3, 1, 144)),
    "depthwise, by two": (network(1, feature_group_count=96, window_strides=(2, 2)),
                          (7, 57, 56, 96), (3, 3, 1, 96)),
    "depthwise, wide": (network(1, feature_group_count=64, rhs_dilation=(1, 2)),
                        (6, 28, 42, 64), (5, 7, 1, 64)),
}
IMAGES = {
    "an image stays": (network(1), (8, 57, 49, 96), (5, 5, 96, 128)),
    "and is pooled": (network(2), (16, 112, 112, 64), (3, 3, 64, 128)),
    "pooled, a tail": (network(2), (16, 60, 36, 64), (3, 3, 64, 80)),
    "so do its weights": (network(1), (32, 57, 56, 48), (3, 3, 48, 48)),
    "channels that begin anywhere": (network(1), (32, 20, 26, 46), (5, 5, 46, 32)),
    "a line": (network(1, padding="VALID", rhs_dilation=(2, 3)), (16, 40, 44, 64), (3, 4, 64, 160)),
    "tall windows": (network(1), (32, 17, 17, 128), (7, 1, 128, 192)),
    "wide windows": (network(1), (32, 17, 17, 128), (1, 7, 128, 192)),
    "shared channels": (network(1), (2, 16, 16, 512), (3, 3, 512, 512)),
    "shared channels of a line": (network(1), (4, 8, 8, 640), (3, 3, 640, 640)),
}
"""Convolutions whose image stays in shared memory."""
CASES |= IMAGES


@pytest.mark.parametrize("dtype", [BF16, F16])
@pytest.mark.parametrize("name", CASES)
def test_a_layer_as_right_as_xla(name: str, dtype: Any) -> None:
    """With pixels that are not numbers or infinite: they reach as far as in f32."""
    fn, shape, kernel = CASES[name]
    keys = jax.random.split(jax.random.key(len(name)), 3)
    x = np.array(jax.random.normal(keys[0], shape, F32))
    x[0, 5, 7], x[-1, -1, -1, 0], x[1, 0, 0, -1] = np.nan, np.inf, -np.inf
    w = jax.random.normal(keys[1], kernel, F32) / np.sqrt(np.prod(kernel[:3]))
    b = jax.random.normal(keys[2], kernel[-1:], F32)
    narrow = [jnp.asarray(a).astype(dtype) for a in (x, w, b)]
    with jax.default_matmul_precision("highest"):  # on a GPU 5x5 taps are a Fourier transform
        wide = [np.asarray(a, np.float32) for a in narrow]
        at = jax.devices("cpu" if name in IMAGES and kernel[:2] == (5, 5) else None)[0]
        exact = np.asarray(jax.jit(fn)(*jax.device_put(wide, at)))
    mono = jaxmono.jit(fn, on_unsupported="error")
    if name in IMAGES:
        text = mono.lower(*narrow).as_text("cuda")
        assert "GemmImage<" in text and ("G::finish_split<" in text) == ("shared" in name)
    found = [np.asarray(f(*narrow), np.float32) for f in (mono, mono, jax.jit(fn))]
    np.testing.assert_array_equal(found[0], found[1])
    np.testing.assert_array_equal(np.isnan(found[0]), np.isnan(exact))
    np.testing.assert_array_equal(found[0][np.isinf(exact)], exact[np.isinf(exact)])
    there = np.isfinite(exact) & np.isfinite(found[2])  # XLA may choose Winograd's algorithm
    ours, xla = (np.abs(a[there] - exact[there]) for a in (found[0], found[2]))
    assert np.sqrt((ours ** 2).mean()) <= 1.1 * np.sqrt((xla ** 2).mean()) + 1e-4
    assert ours.max() <= 1.5 * xla.max() + 1e-3


def pair(pool: int, residual: bool, **kw: Any) -> Any:
    """Two layers of f32: the second one's rows are rounded by the first one."""
    def run(x: X, u: X, w: X) -> X:
        y = jax.nn.relu(lax.conv_general_dilated(
            x, u, (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC")))
        z = lax.conv_general_dilated(y, w, dimension_numbers=("NHWC", "HWIO", "NHWC"),
                                     **{"window_strides": (1, 1), "padding": "SAME", **kw})
        z = z + y if residual else z
        window, start = (1, pool, pool, 1), jnp.asarray(-jnp.inf, z.dtype)
        return lax.reduce_window(z, start, lax.max, window, window, "VALID")

    return run


PAIRS = {
    "pool": (pair(2, False), (3, 34, 38, 64), 96),
    "residual": (pair(1, True), (4, 37, 29, 72), 72),
    "strides and holes": (pair(2, False, window_strides=(2, 2), rhs_dilation=(3, 2)),
                          (4, 63, 61, 48), 144),
    "no padding": (pair(2, False, padding="VALID"), (5, 34, 34, 32), 256),
    "few rows, much of k": (pair(1, False), (1, 14, 14, 512), 512),
    "many rows": (pair(2, False), (16, 112, 112, 64), 128),
}


@pytest.mark.parametrize("name", PAIRS)
def test_two_layers_of_f32(name: str) -> None:
    fn, shape, features = PAIRS[name]
    keys = jax.random.split(jax.random.key(len(name)), 3)
    x = np.array(jax.random.normal(keys[0], shape, F32))
    x[0, 5, 7], x[-1, -1, -1, 0], x[0, 0, 0, -1] = np.nan, np.inf, -np.inf
    channels = shape[-1]
    u, w = (jax.random.normal(k, (3, 3, channels, n), F32) / np.sqrt(9 * channels)
            for k, n in zip(keys[1:], (channels, features), strict=True))
    with jax.default_matmul_precision("highest"):
        exact = np.asarray(jax.jit(fn)(x, u, w))
    mono = jaxmono.jit(fn, on_unsupported="error")
    assert "GemmTf32<" in mono.lower(x, u, w).as_text("cuda")
    found = [np.asarray(f(x, u, w)) for f in (mono, mono, jax.jit(fn))]
    np.testing.assert_array_equal(found[0], found[1])
    np.testing.assert_array_equal(np.isnan(found[0]), np.isnan(exact))
    np.testing.assert_array_equal(found[0][np.isinf(exact)], exact[np.isinf(exact)])
    there = np.isfinite(exact) & np.isfinite(found[2])
    ours, xla = (np.sqrt(((a[there] - exact[there]) ** 2).mean()) for a in (found[0], found[2]))
    size = np.sqrt((exact[there] ** 2).mean())
    assert ours <= max(1.1 * xla, 8e-4 * size)  # XLA may have chosen an exact algorithm


def channels_first(x: X, stem: X, w: X, half: X) -> X:
    """A stem with a pool, a residual, a projection that halves the image, a mean of pixels."""
    def conv(x: X, w: X, stride: int = 1) -> X:
        return lax.conv_general_dilated(x, w, (stride, stride), "SAME")

    y = lax.reduce_window(jax.nn.relu(conv(x, stem, 2)), jnp.asarray(-jnp.inf, x.dtype), lax.max,
                          (1, 1, 3, 3), (1, 1, 2, 2), "SAME")
    y = jax.nn.relu(conv(y, w) + y)
    z = jax.nn.relu(conv(conv(y, w), half, 2))
    return z, z.mean((2, 3))


@pytest.mark.parametrize("dtype", [BF16, F16, F32])
@pytest.mark.parametrize(("batch", "size"), [(4, 224), (1, 61)])
def test_channels_first(batch: int, size: int, dtype: Any) -> None:
    keys = jax.random.split(jax.random.key(batch), 4)
    shapes = (batch, 3, size, size), (64, 3, 7, 7), (64, 64, 3, 3), (128, 64, 1, 1)
    narrow = [(jax.random.normal(k, s, F32) / np.sqrt(np.prod(s[1:]) if i else 1)).astype(dtype)
              for i, (k, s) in enumerate(zip(keys, shapes, strict=True))]
    with jax.default_matmul_precision("highest"):
        exact = jax.jit(channels_first)(*(a.astype(F32) for a in narrow))
    mono = jaxmono.jit(channels_first, on_unsupported="error")
    text = mono.lower(*narrow).as_text("cuda")
    assert ("GemmTf32<" if dtype is F32 else "GemmWgmma<") in text and "gathered<" in text
    found = [f(*narrow) for f in (mono, mono, jax.jit(channels_first))]
    for want, first, second, xla in zip(exact, *found, strict=True):
        np.testing.assert_array_equal(first, second)
        size_, ours, theirs = (float(np.sqrt((np.asarray(a, np.float64) ** 2).mean())) for a in (
            want, np.asarray(first, F32) - want, np.asarray(xla, F32) - want))
        assert ours <= max(1.1 * theirs, 8e-4 * size_), (ours, theirs, size_)


TURNED = [((8, 64, 56, 56), (0, 2, 3, 1)), ((512, 128, 3, 3), (0, 2, 3, 1)), ((3000, 776), (1, 0)),
          ((5, 12, 33, 35), (0, 3, 2, 1)), ((40, 7, 1000), (2, 1, 0))]


@pytest.mark.parametrize("dtype", [BF16, F32, jnp.int8])
@pytest.mark.parametrize(("shape", "order"), TURNED)
def test_turned_copies(shape: tuple[int, ...], order: tuple[int, ...], dtype: Any) -> None:
    x = jnp.asarray(np.random.default_rng(0).integers(-100, 100, shape), dtype)
    mono = jaxmono.jit(lambda x: -x.transpose(order), on_unsupported="error")
    np.testing.assert_array_equal(mono(x), -np.asarray(x).transpose(order))
