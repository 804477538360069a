"""Programs with complex numbers, beside the standard table.

    python -m benchmarks.run --models=complex_table

State spaces, rotations, circuits, spectra. Parts are f32. ``batch`` multiplies the first dimension
of the inputs.
"""

from __future__ import annotations

from functools import partial

import jax
import jax.numpy as jnp
from jax import lax

from benchmarks.workloads.function import of_function
from benchmarks.workloads.workload import Workload

_complex = partial(of_function, table="complex_table", dtype="f32")


def rotary(x: jax.Array, turns: jax.Array) -> jax.Array:
    """Rotary embeddings as products (EasyLM's and Meta's Llama). x: [b, s, heads, d]; turns:
    complex [s, d / 2]."""
    z = lax.complex(x[..., 0::2], x[..., 1::2]) * turns[None, :, None]
    return jnp.stack([z.real, z.imag], -1).reshape(x.shape)


def _linear_recurrent_unit(u: jax.Array, nu: jax.Array, theta: jax.Array, b: jax.Array,
                           c: jax.Array, *, parallel: bool) -> jax.Array:
    """A layer of Orvieto et al. 2023, section 3. u: [t, batch, d]; nu, theta: [n]; b: complex
    [d, n]; c: complex [n, d]."""
    decay = jnp.exp(lax.complex(-jnp.exp(nu), theta))
    entering = (u.astype(b.dtype) @ b) * jnp.sqrt(1 - jnp.abs(decay) ** 2)

    def join(p: tuple[jax.Array, jax.Array], q: tuple[jax.Array, jax.Array],
             ) -> tuple[jax.Array, jax.Array]:
        return p[0] * q[0], q[0] * p[1] + q[1]

    def step(h: jax.Array, x: jax.Array) -> tuple[jax.Array, jax.Array]:
        h = decay * h + x
        return h, h

    if parallel:
        every = jnp.broadcast_to(decay, entering.shape)
        states = lax.associative_scan(join, (every, entering))[1]
    else:
        states = lax.scan(step, jnp.zeros_like(entering[0]), entering)[1]
    return (states @ c).real + u


def diagonal_kernel(log_step: jax.Array, a: jax.Array, c: jax.Array) -> jax.Array:
    """The kernel of S4D (Gu et al. 2022, section 3.2), 1024 of its elements. log_step: [d, 1]; a,
    c: complex [d, n]."""
    poles = lax.complex(-jnp.exp(a.real), a.imag) * jnp.exp(0.1 * log_step - 4)
    powers = jnp.exp(poles[..., None] * jnp.arange(1024))
    return 2 * jnp.einsum("dn,dnl->dl", c * (jnp.exp(poles) - 1) / poles, powers).real


def circuit(state: jax.Array, gates: jax.Array) -> jax.Array:
    """Chances of what a register is measured to be, behind a gate on each qubit and phases of
    neighbours. state: complex [1, 2^n]; gates: complex [n, 2, 2]."""
    bits = gates.shape[0]
    s = (state[0] / jnp.linalg.norm(state)).reshape((2,) * bits)
    for i in range(bits):
        s = jnp.moveaxis(jnp.tensordot(gates[i], s, ((1,), (i,))), 0, i)
    places = jnp.arange(2 ** bits)
    both = (places & places >> 1).reshape(s.shape)
    return jnp.abs(jnp.where(both % 2 == 1, -s, s)).reshape(-1) ** 2


def spectral_layer(x: jax.Array, w: jax.Array) -> jax.Array:
    """What a Fourier neural operator (Li et al. 2021) does between its transforms. x: complex
    [b, modes, i]; w: complex [modes, i, o]."""
    return jnp.einsum("bki,kio->bko", x, w)


def cauchy_kernel(x: jax.Array, a: jax.Array, c: jax.Array) -> jax.Array:
    """S4's sums over poles (Gu et al. 2021, section 3.2), at 1024 places. x: [d, 1]; a, c: complex
    [d, n]."""
    poles = lax.complex(-jnp.exp(a.real), 10 * a.imag)
    places = jnp.exp(x) * lax.complex(jnp.zeros(1024), jnp.linspace(-20, 20, 1024))
    return (c[..., None] / (places[:, None] - poles[..., None])).sum(1)


def beams(x: jax.Array, steering: jax.Array) -> jax.Array:
    """Power from each direction (Bartlett): of a covariance. x: complex [sensors, t]; steering:
    complex [directions, sensors]."""
    covariance = x @ x.conj().T / x.shape[1]
    return jnp.einsum("ds,sr,dr->d", steering.conj(), covariance, steering).real


def evolution(psi: jax.Array, potential: jax.Array) -> jax.Array:
    """Half a step of a wave function in a potential, normalised. psi: complex [n]; potential:
    [n]."""
    psi = psi * jnp.exp(-0.05j * potential)
    return psi / jnp.linalg.norm(psi)


def dense(z: jax.Array, w: jax.Array, bias: jax.Array) -> jax.Array:
    """A complex layer with modReLU (Arjovsky et al. 2016). z: complex [m, k]; w: complex [k, n]."""
    y = z @ w
    size = jnp.abs(y)
    return jnp.where(size + bias > 0, y * (1 + bias / (size + 1e-6)), 0)


def functions(z: jax.Array, w: jax.Array) -> jax.Array:
    """A few of them, element by element. z, w: complex [n]."""
    return jnp.log(z) * jnp.sqrt(w) / (z + jnp.exp(w))


def spectrogram(x: jax.Array, bands: jax.Array) -> jax.Array:
    """Logarithms of a bank of filters on the spectrum of each frame. x: [frames, n]; bands:
    [n / 2 + 1, m]."""
    power = jnp.abs(jnp.fft.rfft(x * jnp.hanning(x.shape[1]).astype(x.dtype))) ** 2
    return jnp.log(power @ jnp.abs(bands) + 1e-6)


_LRU, _SMALL_LRU = ({"nu": (256,), "theta": (256,), "b": (128, 256), "c": (256, 128)},
                    {"nu": (8,), "theta": (8,), "b": (16, 8), "c": (8, 16)})

WORKLOADS: tuple[Workload, ...] = (
    _complex("rotary_complex_4_1024_32", "rotary embeddings of 4x1024x32x128 as complex products",
             rotary, ((4, 1024, 32, 128),), ((2, 6, 2, 8),), {"turns": (1024, 64)},
             {"turns": (6, 4)}, pairs=["turns"]),
    _complex("lru_scan_1024_8_256", "a linear recurrent unit, 1024 steps of 8x256 by a scan",
             partial(_linear_recurrent_unit, parallel=False), ((1024, 8, 128),), ((16, 2, 16),),
             _LRU, _SMALL_LRU, pairs=["b", "c"]),
    _complex("lru_parallel_1024_8_256", "the same by an associative scan",
             partial(_linear_recurrent_unit, parallel=True), ((1024, 8, 128),), ((16, 2, 16),),
             _LRU, _SMALL_LRU, pairs=["b", "c"]),
    _complex("s4d_256_32_1024", "S4D's kernels of 256 features, 32 states, 1024 elements",
             diagonal_kernel, ((256, 1),), ((3, 1),), {"a": (256, 32), "c": (256, 32)},
             {"a": (3, 4), "c": (3, 4)}, pairs=["a", "c"]),
    _complex("circuit_14", "gates on 14 qubits", circuit, ((1, 1 << 14),), ((1, 16),),
             {"gates": (14, 2, 2)}, {"gates": (4, 2, 2)}, pairs=[0, "gates"]),
    _complex("spectral_8_256_32", "a Fourier operator's product of 256 modes, 8x32x32",
             spectral_layer, ((8, 256, 32),), ((2, 3, 4),), {"w": (256, 32, 32)}, {"w": (3, 4, 4)},
             pairs=[0, "w"]),
    _complex("cauchy_256_32_1024", "S4's Cauchy kernels of 256 features, 32 poles, 1024 places",
             cauchy_kernel, ((256, 1),), ((3, 1),), {"a": (256, 32), "c": (256, 32)},
             {"a": (3, 4), "c": (3, 4)}, pairs=["a", "c"]),
    _complex("beams_64_4096", "64 sensors, 4096 samples, 181 directions", beams, ((64, 4096),),
             ((8, 16),), {"steering": (181, 64)}, {"steering": (5, 8)}, pairs=[0, "steering"]),
    _complex("evolution_1048576", "a wave function of 2^20 points", evolution, ((1 << 20,),),
             ((64,),), {"potential": (1 << 20,)}, {"potential": (64,)}, pairs=[0]),
    _complex("complex_dense_512_1024", "a complex layer, 512x1024x1024, modReLU", dense,
             ((512, 1024),), ((8, 16),), {"w": (1024, 1024), "bias": (1024,)},
             {"w": (16, 16), "bias": (16,)}, pairs=[0, "w"]),
    _complex("complex_functions_1048576", "logarithm, root, quotient of 2^20 complex numbers",
             functions, ((1 << 20,),) * 2, ((64,),) * 2, {}, {}, pairs=[0, 1]),
    _complex("spectrogram_1024_400", "spectra of 1024 frames of 400 samples, 80 bands", spectrogram,
             ((1024, 400),), ((4, 16),), {"bands": (201, 80)}, {"bands": (9, 4)}),
)
