"""The steps of random programs that contract or normalise: what networks are made of."""

from __future__ import annotations

import math

from program_steps import STEPS, step
from program_writer import NUMPY, TF32, Val, Writer

__all__ = ["STEPS"]
"""All steps, these and those of `program_steps`."""


# Contractions


def precision(w: Writer, dtype: str) -> tuple[str, float]:
    """A keyword argument that asks for a precision, and the epsilon that it allows."""
    if w.rng.random() < 0.5:
        return ", precision='highest'", 0.0
    return "", TF32 if dtype == "f32" else 0.0


@step
def dot_general(w: Writer) -> Val | None:
    x = w.pick(lambda v: len(v.shape) > 0 and v.is_float and v.size > 0)
    if x is None:
        return None
    rank = len(x.shape)
    kinds = [w.rng.choice("bcf") for _ in range(rank)]
    if "c" not in kinds:
        kinds[-1] = "c"
    free = list(w.shape(0, 2)) if not w.zero_size else [3]
    while free and math.prod(free) * x.size > 8 * w.max_elements:
        free.pop()
    # The other operand's dimensions: those batched and contracted, and its own, in any order.
    dims = [(i, n) for i, n in enumerate(x.shape) if kinds[i] != "f"] + [(-1, n) for n in free]
    w.rng.shuffle(dims)
    y = w.argument([n for _, n in dims], x.dtype)
    where = {i: at for at, (i, _) in enumerate(dims) if i >= 0}
    batch, contract = ([i for i in range(rank) if kinds[i] == k] for k in "bc")
    shape = ([x.shape[i] for i in batch] + [n for i, n in enumerate(x.shape) if kinds[i] == "f"]
             + [n for i, n in dims if i < 0])
    count = math.prod(x.shape[i] for i in contract)
    lists = (f"(({contract}, {[where[i] for i in contract]}), "
             f"({batch}, {[where[i] for i in batch]}))")
    wide = x.dtype in ("bf16", "f16") and "f32" in w.dtypes and w.rng.random() < 0.5
    preferred = ", preferred_element_type=jnp.float32" if wide else ""
    asked, eps = precision(w, x.dtype)
    return w.emit(f"lax.dot_general({x.name}, {y.name}, {lists}{asked}{preferred})", [x, y],
                  shape=shape, dtype="f32" if wide else x.dtype,
                  bound=x.bound * y.bound * count, eps=eps)


@step
def matmul(w: Writer) -> Val | None:
    # Plain x @ weight with bias, the layer of every network.
    x = w.pick(lambda v: len(v.shape) > 0 and v.is_float and v.size > 0)
    if x is None:
        return None
    n = w.rng.choice([s for s in w.sizes if s * x.size // x.shape[-1] <= w.max_elements] or [1])
    weight, bias = w.argument((x.shape[-1], n), x.dtype), w.argument((n,), x.dtype)
    asked, eps = precision(w, x.dtype)
    return w.emit(f"jnp.matmul({x.name}, {weight.name}{asked}) + {bias.name}", [x, weight, bias],
                  shape=(*x.shape[:-1], n), bound=x.bound * 3 * x.shape[-1] + 3, eps=eps)


@step
def quantised(w: Writer) -> Val | None:
    # Weights of 4 or 8 bits, a scale for each feature, or for some of its elements.
    x = w.pick(lambda v: len(v.shape) > 0 and v.is_float and v.dtype != "f64" and v.size > 0)
    if x is None:
        return None
    groups = [g for g in (1, 2, 4, 8) if x.shape[-1] % g == 0]
    n = w.rng.choice([s for s in w.sizes if s * x.size // x.shape[-1] <= w.max_elements] or [1])
    if w.rng.random() < 0.6:  # of whole pieces, as layers have them
        x = w.argument((w.rng.choice((1, 2, 5, 17)), w.rng.choice((64, 96, 256))), x.dtype)
        groups, n = [1, x.shape[-1] // 32], w.rng.choice((32, 64, 96))
    k, t = x.shape[-1], f"jnp.{NUMPY[x.dtype].name}"
    kind, low, high = w.rng.choice((("int4", -8, 8), ("uint4", 0, 16), ("int8", -20, 21)))
    rows, count = w.rng.random() < 0.5, w.rng.choice(groups)
    q = w.argument((n, k) if rows else (k, n), "u8" if low == 0 else "s8", low=low, high=high)
    # Finite: behind the product, where those of features go, an infinity meets no single zero.
    scale = w.argument((n, count) if rows else (count, n), x.dtype, low=0, high=1)
    few = f"{q.name}.astype(jnp.{kind})"
    parts = f"({n}, {count}, -1)" if rows else f"({count}, -1, {n})"
    wide = f"({few}.reshape({parts}).astype({t}) * {scale.name}" \
           f"{'[..., None]' if rows else '[:, None]'}).reshape({few}.shape)"
    asked, eps = precision(w, x.dtype)
    return w.emit(f"jnp.matmul({x.name}, {wide}{'.T' if rows else ''}{asked})", [x, q, scale],
                  shape=(*x.shape[:-1], n), bound=x.bound * max(-low, high) * 3 * k, eps=eps)


# Chains of networks


@step
def softmax(w: Writer) -> Val | None:
    x = w.pick(lambda v: len(v.shape) > 0 and v.is_float and v.size > 0)
    if x is None:
        return None
    form = w.rng.choice(("jax.nn.softmax", "jax.nn.log_softmax"))
    return w.emit(f"{form}({x.name}, axis={w.rng.randrange(len(x.shape))})", [x],
                  bound=1.0 if form.endswith(".softmax") else 2 * x.bound + 8)


@step
def layer_norm(w: Writer) -> Val | None:
    x = w.pick(lambda v: len(v.shape) > 0 and v.is_float and v.size > 0)
    if x is None:
        return None
    scale = w.argument(x.shape[-1:], x.dtype)
    wide = w.emit(f"{x.name}.astype(jnp.float32)" if x.dtype != "f64" else f"{x.name} * 1.0",
                  [x], dtype=x.dtype if x.dtype == "f64" else "f32")
    center = wide
    if w.rng.random() < 0.6:
        center = w.emit(f"{wide.name} - jnp.mean({wide.name}, -1, keepdims=True)", [wide],
                        bound=2 * wide.bound)
    # The 0.1 keeps a nearly constant row from amplifying its rounding errors.
    power = w.emit(f"jnp.mean(jnp.square({center.name}), -1, keepdims=True) + 0.1", [center],
                   shape=(*x.shape[:-1], 1), bound=center.bound ** 2)
    factor = 4.0 if power.bound == 4.0 else 1.0
    return w.emit(f"({center.name} * lax.rsqrt({power.name})).astype("
                  f"jnp.{NUMPY[x.dtype].name}) * {scale.name}", [center, power, scale],
                  shape=x.shape, dtype=x.dtype, bound=center.bound * 3.2 * 3 * factor)


@step
def attention(w: Writer) -> Val | None:
    x = w.pick(lambda v: len(v.shape) >= 2 and v.is_float and v.size > 0)
    if x is None:
        return None
    *batch, rows, width = x.shape
    keys = w.rng.choice([s for s in w.sizes if s * x.size // width <= w.max_elements
                         and s * x.size // rows <= w.max_elements] or [1])
    k, v = (w.argument((*batch, keys, width), x.dtype) for _ in range(2))
    axes = "bcdefg"[:len(batch)]
    asked, eps = precision(w, x.dtype)
    scores = w.emit(f"jnp.einsum('{axes}qx,{axes}kx->{axes}qk', {x.name}, {k.name}{asked}) * "
                    f"{1 / (width * max(1.0, x.bound))!r}", [x, k], shape=(*batch, rows, keys),
                    bound=3.0, eps=eps)
    if w.rng.random() < 0.6:
        mask = w.argument((rows, keys), "pred")
        scores = w.emit(f"jnp.where({mask.name}, {scores.name}, -30.0)", [scores, mask],
                        bound=4.0)
    weights = w.emit(f"jax.nn.softmax({scores.name}, -1)", [scores], bound=1.0)
    return w.emit(f"jnp.einsum('{axes}qk,{axes}kx->{axes}qx', {weights.name}, {v.name}{asked})",
                  [weights, v], shape=x.shape, bound=3.0, eps=eps)
