"""Programs with Fourier transforms, beside the standard table.

    python -m benchmarks.run --models=transforms_table

Spectra of sound, layers that mix by transforms, convolutions by way of them, and transforms alone.
``batch`` multiplies the first dimension of the inputs.
"""

from __future__ import annotations

from functools import partial

import jax
import jax.numpy as jnp

from benchmarks.workloads.function import of_function
from benchmarks.workloads.workload import Workload

_transform = partial(of_function, table="transforms_table", dtype="f32")


def mel_spectrogram(x: jax.Array, bands: jax.Array) -> jax.Array:
    """What Whisper (Radford et al. 2022, section 2.2) hears: logarithms of bands of the spectra of
    400 samples each, every 160. x: [b, t]; bands: [201, 80]."""
    n = 2 * (bands.shape[0] - 1)
    step = 2 * n // 5
    frames = 1 + (x.shape[1] - n) // step
    places = jnp.arange(frames)[:, None] * step + jnp.arange(n)
    power = jnp.abs(jnp.fft.rfft(x[:, places] * jnp.hanning(n).astype(x.dtype))) ** 2
    log = jnp.log10(jnp.maximum(power @ jnp.abs(bands), 1e-10))
    return (jnp.maximum(log, log.max() - 8) + 4) / 4


def fnet_mixing(x: jax.Array, scale: jax.Array, bias: jax.Array) -> jax.Array:
    """The mixing half of a layer of FNet (Lee-Thorp et al. 2021). x: [b, t, d]; scale, bias:
    [d]."""
    y = x + jnp.fft.fft2(x).real
    y = y - y.mean(-1, keepdims=True)
    return y * jax.lax.rsqrt(jnp.square(y).mean(-1, keepdims=True) + 1e-6) * scale + bias


def long_convolution(u: jax.Array, k: jax.Array, d: jax.Array) -> jax.Array:
    """A causal convolution as long as its input (S4, Gu et al. 2021; Hyena, Poli et al. 2023).
    u: [b, d, t]; k: [d, t]; d: [d]."""
    n = 2 * u.shape[-1]
    y = jnp.fft.irfft(jnp.fft.rfft(u, n=n) * jnp.fft.rfft(k, n=n), n=n)[..., :u.shape[-1]]
    return jax.nn.gelu(y + u * d[:, None])


def operator_layer(x: jax.Array, w: jax.Array, own: jax.Array) -> jax.Array:
    """A layer of a Fourier neural operator (Li et al. 2021, section 4) in two dimensions. x: [b, h,
    w, c]; w: complex [modes, modes, c, c]; own: [c, c]."""
    modes = w.shape[0]
    z = jnp.fft.rfft2(x, axes=(1, 2))
    low = jnp.einsum("bxyi,xyio->bxyo", z[:, :modes, :modes], w)
    whole = jnp.zeros(z.shape[:-1] + low.shape[-1:], z.dtype).at[:, :modes, :modes].set(low)
    return jax.nn.gelu(jnp.fft.irfft2(whole, x.shape[1:3], axes=(1, 2)) + x @ own)


def poisson(f: jax.Array) -> jax.Array:
    """Poisson's equation on a torus. f: [b, n, n]."""
    n = f.shape[-1]
    k = jnp.fft.fftfreq(n).astype(f.dtype) * n
    far = k[:, None] ** 2 + k[: n // 2 + 1] ** 2 * 1.0
    return jnp.fft.irfft2(jnp.fft.rfft2(f) / jnp.where(far == 0, 1, -far), (n, n))


WORKLOADS: tuple[Workload, ...] = (
    _transform("whisper_mel_480000", "Whisper's input of 30 seconds", mel_spectrogram,
               ((1, 480_400),), ((1, 120),), {"bands": (201, 80)}, {"bands": (9, 4)}),
    _transform("fnet_mixing_512_768", "FNet's mixing of 512 x 768, a norm", fnet_mixing,
               ((1, 512, 768),), ((2, 8, 12),), {"scale": (768,), "bias": (768,)},
               {"scale": (12,), "bias": (12,)}),
    _transform("long_convolution_256_1024", "S4's convolutions of 256 features, 1024 steps",
               long_convolution, ((8, 256, 1024),), ((2, 3, 16),), {"k": (256, 1024), "d": (256,)},
               {"k": (3, 16), "d": (3,)}),
    _transform("long_convolution_768_4096", "Hyena's of 768 features, 4096 steps",
               long_convolution, ((1, 768, 4096),), ((2, 3, 16),), {"k": (768, 4096), "d": (768,)},
               {"k": (3, 16), "d": (3,)}),
    _transform("fourier_operator_64_32", "a Fourier operator's layer, 64 x 64, 12 modes",
               operator_layer, ((4, 64, 64, 32),), ((2, 8, 6, 4),),
               {"w": (12, 12, 32, 32), "own": (32, 32)}, {"w": (3, 3, 4, 4), "own": (4, 4)},
               pairs=["w"]),
    _transform("poisson_512", "Poisson's equation on 512 x 512", poisson, ((1, 512, 512),),
               ((1, 12, 12),), {}, {}),
    _transform("fft_512", "one transform of 512", jnp.fft.fft, ((1, 512),), ((1, 16),), {}, {},
               pairs=[0]),
    _transform("fft_4096_1024", "4096 transforms of 1024", jnp.fft.fft, ((4096, 1024),),
               ((4, 16),), {}, {}, pairs=[0]),
    _transform("fft_1048576", "one of 2^20", jnp.fft.fft, ((1, 1 << 20),), ((1, 24),), {}, {},
               pairs=[0]),
    _transform("rfft_8192_400", "8192 of 400 real numbers", jnp.fft.rfft, ((8192, 400),),
               ((4, 20),), {}, {}),
)
