"""A table of small programs between models, beside the standard table.

    python -m benchmarks.run --models=everyday_table

Those of some fifty that were furthest behind XLA by the time on the device, when they were first
timed by that, and not by calls from Python. ``batch`` multiplies the first dimension of the inputs.
"""

from __future__ import annotations

from functools import partial

import jax
import jax.numpy as jnp
from jax import lax

from benchmarks.workloads.function import of_function
from benchmarks.workloads.workload import Workload

_of = partial(of_function, table="everyday_table")


def turned(x: jax.Array) -> jax.Array:
    """[a, b, c] as [c, a, b]."""
    return jnp.transpose(x * 2, (2, 0, 1))


def channels_last(x: jax.Array) -> jax.Array:
    """[n, c, h, w] as [n, h, w, c]."""
    return jnp.transpose(x * 2, (0, 2, 3, 1))


def channels_first(x: jax.Array) -> jax.Array:
    """[n, h, w, c] as [n, c, h, w]."""
    return jnp.transpose(jnp.maximum(x, 0), (0, 3, 1, 2))


def residual_last(x: jax.Array, b: jax.Array, y: jax.Array) -> jax.Array:
    """A convolution's result with channels first, a bias, and what has channels last. x: [n, c, h,
    w], b: [c], y: [n, h, w, c]."""
    return jax.nn.relu(jnp.transpose(x, (0, 2, 3, 1)) + b + y)


def blurred(x: jax.Array) -> jax.Array:
    """An image by a Gaussian of 9 taps along each side. x: [n, h, w, 1]."""
    taps = jnp.exp(-jnp.arange(-4.0, 5.0) ** 2 / 4).astype(x.dtype)
    taps = taps / taps.sum()
    for shape in ((9, 1, 1, 1), (1, 9, 1, 1)):
        x = lax.conv_general_dilated(x, taps.reshape(shape), (1, 1), "SAME",
                                     dimension_numbers=("NHWC", "HWIO", "NHWC"))
    return x


def rotated(x: jax.Array) -> jax.Array:
    """Su et al. (2021): queries turned by their positions. x: [heads, positions, width]."""
    half = x.shape[-1] // 2
    frequency = 10000.0 ** (-jnp.arange(half) / half)
    angle = jnp.arange(x.shape[-2])[:, None] * frequency[None]
    c, s = jnp.cos(angle), jnp.sin(angle)
    a, b = jnp.split(x.astype(jnp.float32), 2, -1)
    return jnp.concatenate([a * c - b * s, a * s + b * c], -1).astype(x.dtype)


def rotated_pairs(x: jax.Array) -> jax.Array:
    """Rotary positions of neighbouring pairs, as GPT-J has them. x: [b, s, h, d]."""
    s, d = x.shape[1], x.shape[3]
    angle = jnp.arange(s)[:, None] / 10000.0 ** (jnp.arange(0, d, 2) / d)
    c, n = (f(angle)[:, None].astype(x.dtype) for f in (jnp.cos, jnp.sin))
    a, b = x[..., ::2], x[..., 1::2]
    return jnp.stack([a * c - b * n, a * n + b * c], -1).reshape(x.shape)


def likeliest(x: jax.Array) -> jax.Array:
    """x: [n, classes]."""
    return jnp.argmax(x, -1)


def warped(image: jax.Array, flow: jax.Array) -> jax.Array:
    """An image where a flow leads, between four places each. image: [n, h, w, c]; flow: [..., 2].
    """
    n, h, w, _ = image.shape
    y = jnp.arange(float(h))[None, :, None] + flow[..., 0]
    x = jnp.arange(float(w))[None, None] + flow[..., 1]
    y0, x0 = jnp.floor(y), jnp.floor(x)
    out = jnp.zeros_like(image)
    for i in (0, 1):
        for j in (0, 1):
            at = [jnp.clip(p + k, 0, m - 1).astype(jnp.int32)
                  for p, k, m in ((y0, i, h), (x0, j, w))]
            near = (1 - jnp.abs(y - y0 - i)) * (1 - jnp.abs(x - x0 - j))
            out = out + near[..., None] * image[jnp.arange(n)[:, None, None], at[0], at[1]]
    return out


def repelled(x: jax.Array) -> jax.Array:
    """Liu and Wang (2016), SVGD: a step of particles towards a normal distribution. x: [n, d]."""
    apart = x[:, None] - x[None]
    near = jnp.exp(-(apart ** 2).sum(-1) / 20)
    return (near @ -x + (near[..., None] * apart).sum(1) / 10) / x.shape[0]


def penalised(logits: jax.Array, words: jax.Array) -> jax.Array:
    """Keskar et al. (2019): logits of words that were said are made less. logits: [1, v]; words:
    [1, t], any numbers."""
    at = (jnp.abs(words) * 10000).astype(jnp.int32) % logits.shape[1]
    score = jnp.take_along_axis(logits, at, 1)
    return logits.at[jnp.arange(1)[:, None], at].set(
        jnp.where(score > 0, score / 1.3, score * 1.3))


def nearest(x: jax.Array, y: jax.Array) -> jax.Array:
    """The 8 nearest of y, for each of x. x: [m, d]; y: [n, d]."""
    squares = (x ** 2).sum(-1)[:, None] - 2 * x @ y.T + (y ** 2).sum(-1)[None]
    return lax.top_k(-squares, 8)[1]


def enlarged(image: jax.Array) -> jax.Array:
    """Twice as wide and as high, between the pixels. image: [n, h, w, c]."""
    n, h, w, c = image.shape
    return jax.image.resize(image, (n, 2 * h, 2 * w, c), "bilinear")


def bags(words: jax.Array, table: jax.Array) -> jax.Array:
    """Sums of each row's lines of a table. words: [n, t], any numbers; table: [v, d]."""
    return table[(jnp.abs(words) * 30000).astype(jnp.int32) % table.shape[0]].sum(1)


def shuffled(x: jax.Array) -> jax.Array:
    """Rows in another order."""
    return x[jnp.arange(x.shape[0]) * 7919 % x.shape[0]]


def summed(x: jax.Array) -> jax.Array:
    """Sums from each row's first element on."""
    return jnp.cumsum(x, -1)


def small_products(a: jax.Array, b: jax.Array) -> jax.Array:
    """A product of two small matrices, many times."""
    return a @ b


def batch_norm_gradients(x: jax.Array, scale: jax.Array,
                         offset: jax.Array) -> tuple[jax.Array, ...]:
    """Of a normalisation by the batch, and what it is made of. x: [n, h, w, c]."""
    def loss(x: jax.Array, scale: jax.Array, offset: jax.Array) -> jax.Array:
        y = x.astype(jnp.float32)
        y = (y - y.mean((0, 1, 2))) * lax.rsqrt(y.var((0, 1, 2)) + 1e-5)
        return (jax.nn.relu(y * scale + offset) ** 2).mean()

    return jax.grad(loss, (0, 1, 2))(x, scale, offset)


def pool_gradients(x: jax.Array) -> jax.Array:
    """Of the largest of 3x3 at each second place. x: [n, h, w, c]."""
    def loss(x: jax.Array) -> jax.Array:
        y = lax.reduce_window(x, -jnp.inf, lax.max, (1, 3, 3, 1), (1, 2, 2, 1), "SAME")
        return (y.astype(jnp.float32) ** 2).sum()

    return jax.grad(loss)(x)


def digits(images: jax.Array, c1: jax.Array, c2: jax.Array, d1: jax.Array,
           d2: jax.Array) -> tuple[jax.Array, ...]:
    """Gradients of two convolutions with pools and two dense layers. images: [n, 28, 28, 1]."""
    def loss(weights: tuple[jax.Array, ...]) -> jax.Array:
        y = images
        for w in weights[:2]:
            y = lax.conv_general_dilated(y, w, (1, 1), "SAME",
                                         dimension_numbers=("NHWC", "HWIO", "NHWC"))
            y = lax.reduce_window(jax.nn.relu(y), -jnp.inf, lax.max, (1, 2, 2, 1), (1, 2, 2, 1),
                                  "VALID")
        y = jax.nn.relu(y.reshape(y.shape[0], -1) @ weights[2]) @ weights[3]
        return (y ** 2).mean()

    return jax.grad(loss)((c1, c2, d1, d2))


def prices(s: jax.Array, k: jax.Array, t: jax.Array) -> tuple[jax.Array, tuple[jax.Array, ...]]:
    """Black and Scholes (1973): of calls, and their derivatives. s, k, t: [n]."""
    def one(s: jax.Array, k: jax.Array, t: jax.Array) -> jax.Array:
        s, k, t = jnp.abs(s) + 1, jnp.abs(k) + 1, jnp.abs(t) + 0.1
        spread = 0.2 * jnp.sqrt(t)
        d = (jnp.log(s / k) + 0.07 * t) / spread
        cdf = jax.scipy.stats.norm.cdf
        return s * cdf(d) - k * jnp.exp(-0.05 * t) * cdf(d - spread)

    return jax.vmap(jax.value_and_grad(one, (0, 2)))(s, k, t)


def prepared(images: jax.Array) -> jax.Array:
    """Each second image mirrored, all cut and normalised. images: [n, h, w, 3]."""
    n, h, w, _ = images.shape
    mirrored = (jnp.arange(n) % 2 == 0)[:, None, None, None]
    y = jnp.where(mirrored, images[:, :, ::-1], images)[:, 8:h - 8, 8:w - 8]
    return (y - jnp.array([0.48, 0.45, 0.4])) / jnp.array([0.22, 0.21, 0.23])


def resampled(weights: jax.Array, particles: jax.Array) -> jax.Array:
    """Particles, each as often as it weighs. weights: [n]; particles: [n, d]."""
    n = weights.shape[0]
    sums = jnp.cumsum(jax.nn.softmax(weights))
    return particles[jnp.minimum(jnp.searchsorted(sums, (jnp.arange(n) + 0.5) / n), n - 1)]


def spectrum(x: jax.Array, window: jax.Array, bank: jax.Array) -> jax.Array:
    """A mel spectrogram: frames of 400 of each 160 samples, by products. x: [n, samples]."""
    frames = x[:, jnp.arange((x.shape[1] - 400) // 160 + 1)[:, None] * 160 + jnp.arange(400)]
    angle = 2 * jnp.pi * jnp.arange(400)[:, None] * jnp.arange(201) / 400
    power = sum((frames * window @ f(angle)) ** 2 for f in (jnp.cos, jnp.sin))
    return jnp.log(jnp.maximum(power @ jnp.abs(bank), 1e-10))


def features(x: jax.Array, b: jax.Array) -> jax.Array:
    """Tancik et al. (2020): random Fourier features of points in space. x: [n, 3]."""
    angle = 2 * jnp.pi * (x @ b)
    return jnp.concatenate([jnp.sin(angle), jnp.cos(angle)], -1)


def siren(x: jax.Array, w1: jax.Array, w2: jax.Array, w3: jax.Array) -> jax.Array:
    """Sitzmann et al. (2020): an image as a network of sines. x: [n, 2], places."""
    return jnp.sin(30 * (jnp.sin(30 * (x @ w1)) @ w2)) @ w3


WORKLOADS: tuple[Workload, ...] = (
    _of("turned_64_256_1024", "dimensions in another order", turned, ((64, 256, 1024),),
        ((4, 8, 32),), {}, {}, dtype="f32"),
    *(_of(f"{fn.__name__}_{'_'.join(map(str, shape))}_{dtype}", "channels at the other end", fn,
          (shape,), ((2, 3, 4, 8),), {}, {}, dtype=dtype)
      for fn, shape in ((channels_last, (32, 256, 56, 56)), (channels_last, (8, 64, 112, 112)),
                        (channels_first, (32, 28, 28, 512)), (channels_last, (1, 768, 14, 14)))
      for dtype in ("f32", "bf16")),
    _of("turned_4096", "a matrix", turned, ((1, 4096, 4096),), ((1, 8, 32),), {}, {}),
    _of("residual_last_32_256_56", "a bias and a residual of another layout", residual_last,
        ((32, 256, 56, 56), (256,), (32, 56, 56, 256)), ((2, 8, 3, 4), (8,), (2, 3, 4, 8)), {}, {}),
    _of("blurred_1024", "a Gaussian blur", blurred, ((1, 1024, 1024, 1),), ((1, 16, 16, 1),), {},
        {}, dtype="f32"),
    _of("rotated_32_2048_128", "rotary positions", rotated, ((32, 2048, 128),), ((2, 8, 16),), {},
        {}),
    _of("rotated_pairs_4_1024_16_64", "rotary positions of pairs", rotated_pairs,
        ((4, 1024, 16, 64),), ((2, 8, 2, 16),), {}, {}),
    _of("likeliest_4096_1000", "the largest of each of 4096 rows", likeliest, ((4096, 1000),),
        ((8, 40),), {}, {}, search=True, dtype="f32"),
    _of("small_products_1024_32", "1024 products of 32x32", small_products, ((1024, 32, 32),) * 2,
        ((4, 16, 16),) * 2, {}, {}),
    _of("warped_4_128_16", "an image along a flow", warped, ((4, 128, 128, 16), (4, 128, 128, 2)),
        ((1, 8, 8, 4), (1, 8, 8, 2)), {}, {}, dtype="f32"),
    _of("repelled_256_64", "a step of SVGD", repelled, ((256, 64),), ((8, 4),), {}, {},
        dtype="f32"),
    _of("penalised_50257_256", "a penalty for words said", penalised, ((1, 50257), (1, 256)),
        ((1, 100), (1, 8)), {}, {}, dtype="f32"),
    _of("nearest_1024_64", "8 nearest of 1024", nearest, ((1024, 64), (1024, 64)),
        ((8, 4), (16, 4)), {}, {}, search=True, dtype="f32"),
    _of("enlarged_4_128_16", "an image twice as large", enlarged, ((4, 128, 128, 16),),
        ((1, 8, 8, 4),), {}, {}, dtype="f32"),
    _of("bags_4096_26_64", "sums of looked-up lines", bags, ((4096, 26),), ((8, 4),),
        {"table": (100_000, 64)}, {"table": (50, 8)}, dtype="f32"),
    _of("shuffled_65536_64", "rows in another order", shuffled, ((65536, 64),), ((16, 8),), {}, {},
        dtype="f32"),
    _of("summed_1024_4096", "cumulative sums of rows", summed, ((1024, 4096),), ((4, 40),), {}, {},
        dtype="f32"),
    _of("small_products_4096_16", "4096 products of 16x16", small_products,
        ((4096, 16, 16),) * 2, ((4, 16, 16),) * 2, {}, {}, dtype="f32"),
    _of("batch_norm_gradients_64_28_64", "of a norm by the batch", batch_norm_gradients,
        ((64, 28, 28, 64),), ((2, 4, 4, 8),), {"scale": (64,), "offset": (64,)},
        {"scale": (8,), "offset": (8,)}),
    _of("pool_gradients_32_56_64", "gradient of a max pool", pool_gradients, ((32, 56, 56, 64),),
        ((2, 9, 8, 4),), {}, {}),
    _of("digits_128", "gradients of two convolutions, two pools", digits, ((128, 28, 28, 1),),
        ((4, 28, 28, 1),), {"c1": (3, 3, 1, 32), "c2": (3, 3, 32, 64), "d1": (3136, 256),
                            "d2": (256, 10)},
        {"c1": (3, 3, 1, 8), "c2": (3, 3, 8, 8), "d1": (392, 16), "d2": (16, 4)}, dtype="f32"),
    _of("prices_1048576", "prices of calls and their derivatives", prices, ((1048576,),) * 3,
        ((64,),) * 3, {}, {}, dtype="f32"),
    _of("prepared_32_224", "images mirrored, cut, normalised", prepared, ((32, 224, 224, 3),),
        ((2, 24, 24, 3),), {}, {}, dtype="f32"),
    _of("resampled_4096_8", "particles as often as they weigh", resampled, ((4096,), (4096, 8)),
        ((32,), (32, 8)), {}, {}, dtype="f32"),
    _of("summed_256_2048", "cumulative sums of halves", summed, ((256, 2048),), ((4, 40),), {}, {}),
    _of("spectrum_8_16000", "a mel spectrogram", spectrum, ((8, 16000),), ((1, 800),),
        {"window": (400,), "bank": (201, 80)}, {"window": (400,), "bank": (201, 8)}, dtype="f32"),
    _of("features_65536_128", "Fourier features of points", features, ((65536, 3),), ((16, 3),),
        {"b": (3, 128)}, {"b": (3, 8)}, dtype="f32"),
    _of("siren_16384_256", "a network of sines", siren, ((16384, 2),), ((16, 2),),
        {"w1": (2, 256), "w2": (256, 256), "w3": (256, 3)},
        {"w1": (2, 16), "w2": (16, 16), "w3": (16, 3)}, dtype="f32"),
)
