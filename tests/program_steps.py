"""The steps that random programs are made of: each writes statements, or None if none fits."""

from __future__ import annotations

import math
from collections.abc import Callable

from program_writer import FLOATS, NUMPY, Val, Writer

Step = Callable[[Writer], Val | None]
STEPS: dict[str, Step] = {}
WEIGHTS: dict[str, float] = {"unary": 3, "binary": 3, "dot_general": 2, "reduce": 2,
                            "integer": 2, "logical": 2}
NEEDS = {"integer": ("s32",), "logical": ("pred",), "reduce_pred": ("pred",)}
"""Steps that no float fits, and element types that do."""


def step(f: Step) -> Step:
    STEPS[f.__name__.rstrip("_")] = f
    return f


def _any_float(v: Val) -> bool:
    return v.is_float


def _axes(w: Writer, rank: int, least: int = 1) -> tuple[int, ...]:
    return tuple(sorted(w.rng.sample(range(rank), w.rng.randint(min(least, rank), rank))))


# Element by element

UNARY = {  # expression, bound of the result from that of x
    "jnp.tanh({x})": lambda b: 1.0, "jnp.sin({x})": lambda b: 1.0, "jnp.cos({x})": lambda b: 1.0,
    "jax.nn.sigmoid({x})": lambda b: 1.0, "lax.erf({x})": lambda b: 1.0,
    "lax.erfc({x})": lambda b: 2.0, "jnp.sqrt(jnp.abs({x}) + 0.1)": lambda b: max(1.0, b),
    "lax.rsqrt(jnp.abs({x}) + 0.5)": lambda b: 1.5,
    "jnp.log(jnp.abs({x}) + 0.5)": lambda b: max(1.0, b),
    "jnp.log1p(jnp.abs({x}))": lambda b: b, "jnp.square({x})": lambda b: b * b,
    "jnp.arctan({x})": lambda b: 1.6, "jax.nn.gelu({x})": lambda b: b,
    "jax.nn.gelu({x}, approximate=False)": lambda b: b, "jax.nn.silu({x})": lambda b: b,
    "{x} * 0.5 + 1.0": lambda b: b + 1, "1.0 - {x}": lambda b: b + 1,
    "{x} ** 3": lambda b: b ** 3, "jnp.exp(-jnp.abs({x}))": lambda b: 1.0,
}
UNARY_STEEP = {  # at zero, where what a contraction rounds would grow without limit
    "lax.cbrt({x})": lambda b: max(1.0, b), "jnp.sqrt(jnp.abs({x}))": lambda b: max(1.0, b),
    "jnp.sqrt({x})": lambda b: max(1.0, b), "jnp.log({x})": lambda b: 18.0,
    "lax.rsqrt({x})": lambda b: 16.0,
}
UNARY_SMALL = {"jnp.exp({x})": math.exp, "jnp.expm1({x})": math.exp, "jnp.sinh({x})": math.exp,
               "jnp.cosh({x})": math.exp}
UNARY_EXACT = ("-{x}", "jnp.abs({x})", "jax.nn.relu({x})")
UNARY_JUMP = ("jnp.floor({x})", "jnp.ceil({x})", "lax.sign({x})",
              "lax.round({x}, lax.RoundingMethod.TO_NEAREST_EVEN)",
              "lax.round({x}, lax.RoundingMethod.AWAY_FROM_ZERO)")


@step
def unary(w: Writer) -> Val | None:
    x = w.pick(_any_float)
    if x is None:
        return None
    kind = w.rng.random()
    if kind < 0.2 and x.bound <= 3:
        form, bound = w.rng.choice(sorted(UNARY_SMALL.items(), key=str))
        return w.emit(form.format(x=x.name), [x], bound=bound(x.bound))
    if kind < (0.5 if x.exact else 0.35):
        forms = UNARY_EXACT + (UNARY_JUMP if x.exact else ())
        return w.emit(w.rng.choice(forms).format(x=x.name), [x], bound=x.bound + 1, exact=True)
    forms = UNARY | (UNARY_STEEP if x.exact and x.dtype != "f16" else {})
    form = w.rng.choice(sorted(forms))
    return w.emit(form.format(x=x.name), [x], bound=forms[form](x.bound))


BINARY = {
    "{x} + {y}": lambda a, b: a + b, "{x} - {y}": lambda a, b: a + b,
    "{x} * {y}": lambda a, b: a * b, "{x} / (jnp.abs({y}) + 1)": lambda a, b: a,
    "jnp.maximum({x}, {y})": max, "jnp.minimum({x}, {y})": max,
    "jnp.arctan2({x}, jnp.abs({y}) + 0.5)": lambda a, b: 3.2,
    "jnp.power(jnp.abs({x}) * 0.25 + 0.5, jnp.tanh({y}))": lambda a, b: max(2.0, a),
}


@step
def binary(w: Writer) -> Val | None:
    x = w.pick(_any_float)
    if x is None:
        return None
    y = w.peer(x)
    form = w.rng.choice(sorted(BINARY))
    return w.emit(form.format(x=x.name, y=y.name), [x, y], bound=BINARY[form](x.bound, y.bound),
                  exact=form.startswith("jnp.m"))


INTEGER = ("{x} + {y}", "{x} - {y}", "{x} * {y}", "{x} & {y}", "{x} | {y}", "{x} ^ {y}", "~{x}",
           "lax.div({x}, {y})", "lax.rem({x}, {y})", "lax.shift_left({x}, {y})",
           "lax.shift_right_logical({x}, {y})", "lax.shift_right_arithmetic({x}, {y})",
           "jnp.maximum({x}, {y})", "jnp.minimum({x}, {y})", "lax.population_count({x})",
           "lax.clz({x})", "{x} * 3 + 1")
SIGNED = ("-{x}", "jnp.abs({x})", "jnp.sign({x})")


@step
def integer(w: Writer) -> Val | None:
    x = w.pick(lambda v: v.is_integer)
    if x is None:
        return None
    y = w.peer(x)
    form = w.rng.choice(INTEGER + (SIGNED if x.dtype.startswith("s") else ()))
    if x.name == y.name and form.startswith(("lax.div", "lax.rem")):
        form = "{x} * {y}"  # XLA of JAX 0.11 folds x / x to 1, 0 / 0 included
    return w.emit(form.format(x=x.name, y=y.name), [x, y])


@step
def logical(w: Writer) -> Val | None:
    x = w.pick(lambda v: v.dtype == "pred")
    if x is None:
        return None
    form = w.rng.choice(("{x} & {y}", "{x} | {y}", "{x} ^ {y}", "~{x}"))
    y = w.peer(x)
    return w.emit(form.format(x=x.name, y=y.name), [x, y])


@step
def compare(w: Writer) -> Val | None:
    x = w.pick(lambda v: v.exact)
    if x is None:
        return None
    if x.is_float and w.rng.random() < 0.3:
        form = w.rng.choice(("jnp.isfinite({x})", "jnp.isnan({x})", "jnp.isinf({x})"))
        return w.emit(form.format(x=x.name), [x], dtype="pred")
    y = w.peer(x, exact=True)
    direction = w.rng.choice(("eq", "ne", "lt", "le", "gt", "ge"))
    return w.emit(f"lax.{direction}({x.name}, {y.name})", [x, y], dtype="pred")


@step
def select(w: Writer) -> Val | None:
    x = w.pick()
    if x is None:
        return None
    y = w.peer(x)
    p = w.pick(lambda v: v.dtype == "pred" and v.shape in (x.shape, ())) \
        or w.argument(x.shape, "pred")
    call = "lax.select" if w.rng.random() < 0.5 else "jnp.where"
    return w.emit(f"{call}({p.name}, {x.name}, {y.name})", [x, y], exact=True)


@step
def clamp(w: Writer) -> Val | None:
    x = w.pick(lambda v: v.dtype != "pred")
    if x is None:
        return None
    low, high = w.argument((), x.dtype), w.peer(x)
    if w.rng.random() < 0.5:
        high = w.argument((), x.dtype)
        return w.emit(f"lax.clamp({low.name}, {x.name}, {high.name})", [x, low, high],
                      exact=True)
    return w.emit(f"lax.clamp({x.name}, {x.name}, {high.name})", [x, high], exact=True)


@step
def convert(w: Writer) -> Val | None:
    target = w.rng.choice(w.dtypes)
    x = w.pick(lambda v: v.dtype != target and (v.exact or target in FLOATS))
    if x is None:
        return None
    wide = x.is_integer and NUMPY[x.dtype].itemsize > 1 and target in FLOATS
    source = f"({x.name} % 16)" if wide else x.name
    bound = 128.0 if x.dtype in ("s8", "u8") else 16.0 if wide else x.bound
    if x.dtype == "u8":
        bound = 256.0
    # A narrowing conversion is exact in itself, but XLA may keep the wider value.
    exact = not (x.is_float and target in FLOATS)
    return w.emit(f"{source}.astype(jnp.{NUMPY[target].name})", [x], dtype=target, bound=bound,
                  exact=exact)


@step
def bitcast(w: Writer) -> Val | None:
    pairs = {"f32": "s32", "s32": "u32", "u32": "s32", "f16": "u16", "bf16": "s16", "s8": "u8",
             "u8": "s8", "s16": "u16", "u16": "s16"}
    x = w.pick(lambda v: v.exact and v.dtype in pairs and pairs[v.dtype] in w.dtypes)
    if x is None:
        return None
    target = pairs[x.dtype]
    # The payload and sign of a NaN are nobody's promise.
    source = f"jnp.nan_to_num({x.name})" if x.is_float else x.name
    return w.emit(f"lax.bitcast_convert_type({source}, jnp.{NUMPY[target].name})", [x],
                  dtype=target)


# Movement


@step
def broadcast(w: Writer) -> Val | None:
    x = w.pick(lambda v: len(v.shape) < 4)
    if x is None:
        return None
    shape, places = list(x.shape), list(range(len(x.shape)))
    for _ in range(w.rng.randint(1, 4 - len(x.shape))):
        room = w.max_elements // max(1, math.prod(shape))
        at = w.rng.randint(0, len(shape))
        shape.insert(at, w.rng.choice([s for s in w.sizes if s <= room] or [1]))
        places = [p + (p >= at) for p in places]
    return w.emit(f"lax.broadcast_in_dim({x.name}, {tuple(shape)}, {tuple(places)})", [x],
                  shape=shape, exact=True)


@step
def expand(w: Writer) -> Val | None:
    # The keepdims pattern: a size-1 dimension broadcast against a peer.
    x = w.pick(lambda v: 1 in v.shape)
    if x is None:
        return None
    at = x.shape.index(1)
    room = w.max_elements // max(1, x.size)
    shape = list(x.shape)
    shape[at] = w.rng.choice([s for s in w.sizes if s <= room] or [1])
    return w.emit(f"jnp.broadcast_to({x.name}, {tuple(shape)})", [x], shape=shape, exact=True)


@step
def reshape(w: Writer) -> Val | None:
    x = w.pick()
    if x is None or (0 in x.shape):
        return None
    rest, shape = x.size, list[int]()
    while rest > 1 and len(shape) < 3:
        divisors = [d for d in range(2, rest + 1) if rest % d == 0]
        shape.append(w.rng.choice(divisors))
        rest //= shape[-1]
    shape += [rest] if rest > 1 else []
    for _ in range(w.rng.randint(0, 4 - len(shape)) if len(shape) < 4 else 0):
        shape.insert(w.rng.randint(0, len(shape)), 1)
    return w.emit(f"jnp.reshape({x.name}, {tuple(shape)})", [x], shape=shape, exact=True)


@step
def transpose(w: Writer) -> Val | None:
    x = w.pick(lambda v: len(v.shape) > 1)
    if x is None:
        return None
    order = w.rng.sample(range(len(x.shape)), len(x.shape))
    return w.emit(f"jnp.transpose({x.name}, {tuple(order)})", [x],
                  shape=[x.shape[i] for i in order], exact=True)


@step
def slice_(w: Writer) -> Val | None:
    x = w.pick(lambda v: v.size > 1)
    if x is None:
        return None
    parts, shape = list[str](), list[int]()
    for n in x.shape:
        start = w.rng.randint(0, n - 1)
        stop, stride = w.rng.randint(start + 1, n), w.rng.choice((1, 1, 1, 2, 3))
        parts.append(f"{start}:{stop}:{stride}" if w.rng.random() < 0.7 else ":")
        shape.append(n if parts[-1] == ":" else -(-(stop - start) // stride))
    return w.emit(f"{x.name}[{', '.join(parts)}]", [x], shape=shape, exact=True)


@step
def pad(w: Writer) -> Val | None:
    x = w.pick(lambda v: len(v.shape) > 0 and 0 < v.size <= 512)
    if x is None:
        return None
    value, config, shape = w.argument((), x.dtype), list[tuple[int, int, int]](), list[int]()
    for n in x.shape:
        low, high, inner = w.rng.randint(-1, 2), w.rng.randint(-1, 2), w.rng.choice((0, 0, 1))
        size = low + high + (n - 1) * (inner + 1) + 1
        if size < 1:
            low, high, size = 0, 0, (n - 1) * (inner + 1) + 1
        config.append((low, high, inner))
        shape.append(size)
    return w.emit(f"lax.pad({x.name}, {value.name}, {config})", [x, value], shape=shape,
                  exact=True)


@step
def concatenate(w: Writer) -> Val | None:
    x = w.pick(lambda v: len(v.shape) > 0 and v.size <= 1024)
    if x is None:
        return None
    at = w.rng.randrange(len(x.shape))
    parts, total = [x], x.shape[at]
    for _ in range(w.rng.randint(1, 2)):
        size = w.rng.choice((1, 2, 3, x.shape[at]))
        parts.append(w.argument([size if i == at else n for i, n in enumerate(x.shape)],
                                x.dtype))
        total += size
    w.rng.shuffle(parts)
    return w.emit(f"jnp.concatenate([{', '.join(p.name for p in parts)}], {at})", parts,
                  shape=[total if i == at else n for i, n in enumerate(x.shape)], exact=True)


@step
def reverse(w: Writer) -> Val | None:
    x = w.pick(lambda v: len(v.shape) > 0)
    if x is None:
        return None
    return w.emit(f"lax.rev({x.name}, {_axes(w, len(x.shape))})", [x], exact=True)


@step
def iota(w: Writer) -> Val | None:
    x = w.pick(lambda v: len(v.shape) > 0 and v.dtype in ("f32", "s32"))
    if x is None:
        return None
    at = w.rng.randrange(len(x.shape))
    scale = "0.125" if x.is_float else "1"
    return w.emit(f"{x.name} + {scale} * lax.broadcasted_iota(jnp.{NUMPY[x.dtype].name}, "
                  f"{x.shape}, {at})", [x], bound=x.bound + x.shape[at] / 8)


# Indices


def _index(w: Writer, shape: tuple[int, ...], n: int) -> Val:
    """Integer indices, some out of range."""
    return w.argument(shape, w.rng.choice([d for d in ("s32", "s8", "u8") if d in w.dtypes]
                                          or ["s32"]),
                      low=0, high=max(1, n + 2))


@step
def dynamic_slice(w: Writer) -> Val | None:
    x = w.pick(lambda v: len(v.shape) > 0 and v.size > 0 and not v.clamped)
    if x is None:
        return None
    shape = [w.rng.randint(1, n) for n in x.shape]
    starts = [w.argument((), "s32", low=-2, high=n + 2) for n in x.shape]
    return w.emit(f"lax.dynamic_slice({x.name}, ({', '.join(s.name for s in starts)},), "
                  f"{tuple(shape)})", [x], shape=shape, exact=True, clamped=True)


@step
def dynamic_update_slice(w: Writer) -> Val | None:
    x = w.pick(lambda v: len(v.shape) > 0 and v.size > 0)
    if x is None:
        return None
    update = w.pick(lambda v: v.dtype == x.dtype and len(v.shape) == len(x.shape) and v != x
                    and all(0 < m <= n for m, n in zip(v.shape, x.shape, strict=True)))
    if update is None or w.rng.random() < 0.4:
        update = w.argument([w.rng.randint(1, n) for n in x.shape], x.dtype)
    starts = [w.argument((), "s32", low=-2, high=n + 2) for n in x.shape]
    return w.emit(f"lax.dynamic_update_slice({x.name}, {update.name}, "
                  f"({', '.join(s.name for s in starts)},))", [x, update], exact=True,
                  clamped=True)


@step
def cache_update(w: Writer) -> Val | None:
    # An argument with a slice replaced, which may happen in the argument's own memory.
    x = w.pick(lambda v: v.name.startswith("a") and len(v.shape) > 1 and v.size > 0)
    if x is None:
        x = w.argument((*w.shape(1, 2), w.rng.choice((4, 8))))
    if x.size == 0:
        return None
    at = w.rng.randrange(len(x.shape))
    shape = tuple(1 if i == at else n for i, n in enumerate(x.shape))
    update = w.pick(lambda v: v.shape == shape and v.dtype == x.dtype) \
        or w.argument(shape, x.dtype)
    if w.rng.random() < 0.5:
        update = w.emit(f"{update.name} + {update.name}", [update], bound=2 * update.bound) \
            if x.dtype != "pred" else update
    start = w.argument((), "s32", low=-1, high=x.shape[at] + 1)
    return w.emit(f"lax.dynamic_update_slice_in_dim({x.name}, {update.name}, {start.name}, {at})",
                  [x, update], exact=True, clamped=True)


@step
def gather(w: Writer) -> Val | None:
    x = w.pick(lambda v: len(v.shape) > 0 and v.size > 0 and not v.clamped)
    if x is None:
        return None
    at = w.rng.randrange(len(x.shape))
    room = w.max_elements * x.shape[at] // x.size
    count = w.rng.choice([s for s in w.sizes if s <= room] or [1])
    index = _index(w, w.rng.choice(((), (count,), (1, count))), x.shape[at])
    mode = w.rng.choice(("clip", "fill") if x.is_float else ("clip",))
    shape = (*x.shape[:at], *index.shape, *x.shape[at + 1:])
    return w.emit(f"jnp.take({x.name}, {index.name}, axis={at}, mode={mode!r})", [x],
                  shape=shape, exact=True)


@step
def gather_along(w: Writer) -> Val | None:
    # A gather with batching dimensions.
    x = w.pick(lambda v: len(v.shape) > 0 and 0 < v.size <= w.max_elements)
    if x is None:
        return None
    at = w.rng.randrange(len(x.shape))
    count = w.rng.randint(1, x.shape[at])
    shape = [count if i == at else n for i, n in enumerate(x.shape)]
    index = w.argument(shape, "s32", low=0, high=x.shape[at])
    return w.emit(f"jnp.take_along_axis({x.name}, {index.name}, axis={at})", [x], shape=shape,
                  exact=True)


@step
def gather_points(w: Writer) -> Val | None:
    # A gather of whole index vectors.
    x = w.pick(lambda v: len(v.shape) > 1 and v.size > 0)
    if x is None:
        return None
    count = w.rng.randint(1, 9)
    first, second = (w.argument((count,), "s32", low=-n, high=n) for n in x.shape[:2])
    if count * math.prod(x.shape[2:]) > w.max_elements:
        return None
    return w.emit(f"{x.name}[{first.name}, {second.name}]", [x], shape=(count, *x.shape[2:]),
                  exact=True)


# Reductions


@step
def reduce(w: Writer) -> Val | None:
    x = w.pick(lambda v: len(v.shape) > 0 and (v.is_float or v.dtype == "s32"))
    if x is None:
        return None
    axes, keep = _axes(w, len(x.shape)), w.rng.random() < 0.4
    count = math.prod(x.shape[i] for i in axes)
    shape = [1 if i in axes else n for i, n in enumerate(x.shape) if keep or i not in axes]
    kinds = ["sum"] if count == 0 else ["sum", "max", "min"]
    if x.is_float and 0 < count <= 64:
        kinds += ["prod", "mean"]
    kind = w.rng.choice(kinds)
    # Products of many stay near one.
    source = f"(1 + 0.01 * jnp.tanh({x.name}))" if kind == "prod" and x.is_float else x.name
    bound = {"sum": x.bound * max(count, 1), "prod": 2.0}.get(kind, x.bound)
    dtype = "" if kind in ("max", "min") else f", dtype=jnp.{NUMPY[x.dtype].name}"
    return w.emit(f"jnp.{kind}({source}, axis={axes}{dtype}, keepdims={keep})", [x],
                  shape=shape, bound=bound, exact=kind in ("max", "min"))


@step
def reduce_pred(w: Writer) -> Val | None:
    x = w.pick(lambda v: len(v.shape) > 0 and v.dtype == "pred")
    if x is None:
        return None
    axes = _axes(w, len(x.shape))
    return w.emit(f"jnp.{w.rng.choice(('any', 'all'))}({x.name}, axis={axes})", [x],
                  shape=[n for i, n in enumerate(x.shape) if i not in axes])


@step
def argmax(w: Writer) -> Val | None:
    x = w.pick(lambda v: len(v.shape) > 0 and v.exact and v.dtype != "pred" and v.size > 0)
    if x is None or "s32" not in w.dtypes:
        return None
    at = w.rng.randrange(len(x.shape))
    return w.emit(f"lax.{w.rng.choice(('argmax', 'argmin'))}({x.name}, {at}, jnp.int32)", [x],
                  shape=[n for i, n in enumerate(x.shape) if i != at], dtype="s32")


@step
def reduce_bits(w: Writer) -> Val | None:
    # Integers, with every monoid that has an identity among them.
    x = w.pick(lambda v: len(v.shape) > 0 and v.is_integer)
    if x is None:
        return None
    axes = _axes(w, len(x.shape))
    low, high = (f"jnp.iinfo(jnp.{NUMPY[x.dtype].name}).{end}" for end in ("min", "max"))
    form, init = w.rng.choice((("bitwise_and", "~0" if x.dtype.startswith("s") else high),
                               ("bitwise_or", "0"), ("bitwise_xor", "0"), ("add", "0"),
                               ("mul", "1"), ("max", low), ("min", high)))
    return w.emit(f"lax.reduce({x.name}, jnp.{NUMPY[x.dtype].name}({init}), lax.{form}, {axes})",
                  [x], shape=[n for i, n in enumerate(x.shape) if i not in axes])


@step
def reduce_pair(w: Writer) -> Val | None:
    # One reduction with two accumulators, of which one or both are used.
    x = w.pick(lambda v: len(v.shape) > 0 and v.is_float and v.size > 0)
    if x is None:
        return None
    y, axes = w.peer(x), _axes(w, len(x.shape))
    dtype = f"jnp.{NUMPY[x.dtype].name}"
    pair = (f"lax.reduce(({x.name}, {y.name}), ({dtype}(-jnp.inf), {dtype}(jnp.inf)), lambda a, b: "
            f"(jnp.maximum(a[0], b[0]), jnp.minimum(a[1], b[1])), {axes})")
    form = w.rng.choice(("{}[0]", "{}[1]", "(lambda p: p[0] - p[1])({})"))
    return w.emit(form.format(pair), [x, y], bound=x.bound + y.bound, exact="lambda p" not in form,
                  shape=[n for i, n in enumerate(x.shape) if i not in axes])
