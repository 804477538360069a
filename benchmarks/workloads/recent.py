"""A table of layers of recent models, and of what their users write beside them.

    python -m benchmarks.run --models=recent_table

Those of some seventy that were furthest behind XLA when they were first timed, and some that are as
common. ``batch`` multiplies the first dimension of the inputs.
"""

from __future__ import annotations

from functools import partial

import jax
import jax.numpy as jnp
from jax import lax

from benchmarks.workloads.function import of_function
from benchmarks.workloads.workload import Workload

_of = partial(of_function, table="recent_table")
F32 = jnp.float32


def rms_norm(x: jax.Array, scale: jax.Array) -> jax.Array:
    """Zhang and Sennrich (2019)."""
    y = x.astype(F32)
    return (y * lax.rsqrt((y * y).mean(-1, keepdims=True) + 1e-6)).astype(x.dtype) * scale


def channel_norm(x: jax.Array, scale: jax.Array, offset: jax.Array) -> jax.Array:
    """A layer norm over channels that come first, last in its result. x: [n, c, h, w]."""
    y = x.transpose(0, 2, 3, 1).astype(F32)
    y = y - y.mean(-1, keepdims=True)
    return (y * lax.rsqrt((y * y).mean(-1, keepdims=True) + 1e-5)).astype(x.dtype) * scale + offset


def tied_head(x: jax.Array, embedding: jax.Array) -> jax.Array:
    """Logits by the embedding of words. x: [n, d]; embedding: [words, d]."""
    return x @ embedding.T


def gated(x: jax.Array, scale: jax.Array, gate: jax.Array, up: jax.Array,
          down: jax.Array) -> jax.Array:
    """Llama's half of a layer: a norm and SwiGLU. x: [n, d]."""
    y = rms_norm(x, scale)
    return x + (jax.nn.silu(y @ gate) * (y @ up)) @ down


def experts(x: jax.Array, router: jax.Array, gate: jax.Array, up: jax.Array,
            down: jax.Array) -> jax.Array:
    """Mixtral's, all experts of each text. x: [n, d]; router: [d, e]; gate, up: [e, d, f]."""
    value, which = lax.top_k(jax.nn.softmax((x @ router).astype(F32)), 2)
    share = jnp.einsum("tk,tke->te", value / value.sum(-1, keepdims=True),
                       jax.nn.one_hot(which, router.shape[1], dtype=F32)).astype(x.dtype)
    hidden = jax.nn.silu(jnp.einsum("td,edf->etf", x, gate)) * jnp.einsum("td,edf->etf", x, up)
    return jnp.einsum("etf,efd,te->td", hidden, down, share)


def state_space(x: jax.Array, steps: jax.Array, decay: jax.Array, b: jax.Array,
                c: jax.Array) -> jax.Array:
    """Dao and Gu (2024), Mamba-2: chunks of 256, states between them. x: [s, heads, features];
    steps: [s, heads]; decay: [heads]; b, c: [s, states]."""
    chunk = min(256, x.shape[0] // 2)
    heads, features, t = x.shape[1], x.shape[2], x.dtype
    steps = jax.nn.softplus(steps.astype(F32))
    x = (x * steps[..., None].astype(t)).reshape(-1, chunk, heads, features)
    b, c = (y.reshape(-1, chunk, y.shape[-1]) for y in (b, c))
    sums = jnp.cumsum((-steps * jnp.abs(decay).astype(F32)).reshape(-1, chunk, heads), 1)
    past = jnp.tril(jnp.ones((chunk, chunk), bool))[None, :, :, None]
    decays = jnp.where(past, jnp.exp(sums[:, :, None] - sums[:, None]), 0).astype(t)
    inside = jnp.einsum("cln,csn,clsh,cshp->clhp", c, b, decays, x)
    made = jnp.einsum("cln,clh,clhp->chpn", b, jnp.exp(sums[:, -1:] - sums).astype(t), x)

    def step(state: jax.Array, now: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
        new, kept = now
        return state * kept[:, None, None] + new.astype(F32), state

    first = jnp.zeros((heads, features, b.shape[-1]), F32)
    before = lax.scan(step, first, (made, jnp.exp(sums[:, -1])))[1].astype(t)
    return inside + jnp.einsum("cln,chpn,clh->clhp", c, before, jnp.exp(sums).astype(t))


def linear_attention(q: jax.Array, k: jax.Array, v: jax.Array) -> jax.Array:
    """Yang et al. (2024): chunks of 64, states between them. q, k, v: [s, heads, features]."""
    chunk = min(64, q.shape[0] // 2)
    past = jnp.tril(jnp.ones((chunk, chunk), q.dtype))

    def step(state: jax.Array, now: tuple[jax.Array, ...]) -> tuple[jax.Array, jax.Array]:
        q, k, v = now
        out = jnp.einsum("lhd,hde->lhe", q, state.astype(q.dtype))
        scores = jnp.einsum("lhd,mhd->hlm", q, k) * past
        return (0.9 * state + jnp.einsum("lhd,lhe->hde", k, v).astype(F32),
                out + jnp.einsum("hlm,mhe->lhe", scores, v))

    first = jnp.zeros((q.shape[1], q.shape[2], q.shape[2]), F32)
    chunks = tuple(x.reshape(-1, chunk, *x.shape[1:]) for x in (q, k, v))
    return lax.scan(step, first, chunks)[1].reshape(q.shape)


def grouped_queries(q: jax.Array, k: jax.Array, v: jax.Array) -> jax.Array:
    """A decode step's attention. q: [n, heads, d]; k, v: [n, keys, groups, d]."""
    n, heads, d = q.shape
    q = q.reshape(n, k.shape[2], -1, d)
    scores = jnp.einsum("ngrd,nkgd->ngrk", q, k, preferred_element_type=F32) / d ** 0.5
    shares = jax.nn.softmax(scores, -1).astype(q.dtype)
    return jnp.einsum("ngrk,nkgd->ngrd", shares, v).reshape(n, heads, d)


def latent_attention(q: jax.Array, turned: jax.Array, latent: jax.Array,
                     keys: jax.Array) -> jax.Array:
    """DeepSeek-V2's, a decode step. q: [n, heads, c]; latent: [n, keys, c]; turned: [n, heads, r];
    keys: [n, keys, r]."""
    scores = jnp.einsum("nhc,nkc->nhk", q, latent, preferred_element_type=F32) \
        + jnp.einsum("nhr,nkr->nhk", turned, keys, preferred_element_type=F32)
    return jnp.einsum("nhk,nkc->nhc", jax.nn.softmax(scores * 0.07, -1).astype(q.dtype), latent)


def soft_capped(q: jax.Array, k: jax.Array, v: jax.Array) -> jax.Array:
    """Gemma 2's attention: scores below 50, the last 512 keys. q, k, v: [s, heads, d]."""
    scores = jnp.einsum("qhd,khd->hqk", q, k, preferred_element_type=F32) / q.shape[-1] ** 0.5
    at, key = jnp.arange(q.shape[0])[:, None], jnp.arange(k.shape[0])
    scores = jnp.where((key <= at) & (key > at - 512), jnp.tanh(scores / 50) * 50, -1e9)
    return jnp.einsum("hqk,khd->qhd", jax.nn.softmax(scores, -1).astype(q.dtype), v)


def lattice(f: jax.Array) -> jax.Array:
    """A step of a lattice Boltzmann method, nine directions. f: [9, h, w]."""
    ways = ((0, 0), (1, 0), (0, 1), (-1, 0), (0, -1), (1, 1), (-1, 1), (-1, -1), (1, -1))
    shares = (4 / 9, *[1 / 9] * 4, *[1 / 36] * 4)
    f = jnp.stack([jnp.roll(jnp.abs(x) + 1, way, (0, 1)) for x, way in zip(f, ways, strict=True)])
    mass = f.sum(0)
    u, v = (sum(way[i] * x for way, x in zip(ways, f, strict=True)) / mass for i in range(2))
    slow = 1.5 * (u * u + v * v)
    along = [3 * (a * u + b * v) for a, b in ways]
    return jnp.stack([x - (x - w * mass * (1 + y + y * y / 2 - slow)) / 0.6
                      for x, w, y in zip(f, shares, along, strict=True)])


def newton_schulz(gradient: jax.Array) -> jax.Array:
    """Jordan et al. (2024), Muon: five steps towards an orthogonal matrix."""
    x = gradient / (jnp.linalg.norm(gradient.astype(F32)) + 1e-7).astype(gradient.dtype)
    for _ in range(5):
        a = x @ x.T
        x = 3.4445 * x + (-4.775 * a + 2.0315 * (a @ a)) @ x
    return x


def of_classes(logits: jax.Array, at: jax.Array) -> tuple[jax.Array, jax.Array]:
    """A segmentation's loss and its gradient. logits: [n, h, w, classes]; at: [n, h, w]."""
    words = (jnp.abs(at.astype(F32)) * 1000).astype(jnp.int32) % logits.shape[-1]

    def loss(logits: jax.Array) -> jax.Array:
        found = jax.nn.log_softmax(logits.astype(F32), -1)
        return -jnp.take_along_axis(found, words[..., None], -1).mean()

    return jax.value_and_grad(loss)(logits)


def _gated(rows: int) -> Workload:
    return _of(f"gated_{rows}_4096_11008", "Llama-2-7B's SwiGLU", gated, ((rows, 4096),),
               ((4, 32),), {"scale": (4096,), "gate": (4096, 11008), "up": (4096, 11008),
                            "down": (11008, 4096)},
               {"scale": (32,), "gate": (32, 48), "up": (32, 48), "down": (48, 32)})


def _experts(rows: int) -> Workload:
    return _of(f"experts_{rows}_8_1024_1792", "eight experts", experts, ((rows, 1024),), ((4, 32),),
               {"router": (1024, 8), "gate": (8, 1024, 1792), "up": (8, 1024, 1792),
                "down": (8, 1792, 1024)},
               {"router": (32, 4), "gate": (4, 32, 16), "up": (4, 32, 16), "down": (4, 16, 32)})


WORKLOADS: tuple[Workload, ...] = (
    *(_of(f"channel_norm_{'_'.join(map(str, shape))}_{dtype}", "a norm over channels",
          channel_norm, (shape,), ((2, 8, 3, 4),), {"scale": shape[1:2], "offset": shape[1:2]},
          {"scale": (8,), "offset": (8,)}, dtype=dtype)
      for shape, dtype in (((32, 96, 56, 56), "bf16"), ((64, 768, 14, 14), "bf16"),
                           ((16, 192, 28, 28), "f32"))),
    *(_of(f"tied_{rows}_{words}_768", "logits by an embedding", tied_head, ((rows, 768),),
          ((8, 32),), {"embedding": (words, 768)}, {"embedding": (43, 32)})
      for words, every in ((50257, (16, 128, 512, 2048)), (50304, (512, 2048))) for rows in every),
    *map(_gated, (1, 2, 4, 8, 64)),
    *map(_experts, (16, 256)),
    _of("state_space_1024_24_64_128", "Mamba-2's layer", state_space,
        ((1024, 24, 64), (1024, 24), (24,), (1024, 128), (1024, 128)),
        ((16, 3, 8), (16, 3), (3,), (16, 8), (16, 8)), {}, {}),
    _of("linear_attention_2048_8_64", "chunks with a state", linear_attention,
        ((2048, 8, 64),) * 3, ((16, 2, 8),) * 3, {}, {}),
    _of("grouped_queries_8_4096_32_8", "a decode step's attention", grouped_queries,
        ((8, 32, 128), (8, 4096, 8, 128), (8, 4096, 8, 128)),
        ((2, 4, 8), (2, 24, 2, 8), (2, 24, 2, 8)), {}, {}),
    _of("latent_attention_4_4096_16", "DeepSeek-V2's attention", latent_attention,
        ((4, 16, 512), (4, 16, 64), (4, 4096, 512), (4, 4096, 64)),
        ((2, 4, 16), (2, 4, 8), (2, 24, 16), (2, 24, 8)), {}, {}),
    _of("soft_capped_1024_8_256", "Gemma 2's attention", soft_capped, ((1024, 8, 256),) * 3,
        ((24, 2, 16),) * 3, {}, {}),
    _of("lattice_512", "a fluid's step", lattice, ((9, 512, 512),), ((9, 8, 12),), {}, {},
        dtype="f32"),
    _of("newton_schulz_768_3072", "Muon's direction", newton_schulz, ((768, 3072),), ((16, 24),),
        {}, {}),
    _of("of_classes_8_256_21", "a segmentation's loss", of_classes,
        ((8, 256, 256, 21), (8, 256, 256)), ((2, 4, 4, 5), (2, 4, 4)), {}, {}),
)
