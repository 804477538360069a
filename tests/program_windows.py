"""The steps of random programs that slide a window: convolutions and windowed reductions."""

from __future__ import annotations

import dataclasses
import math

from program_layers import STEPS, precision
from program_steps import step
from program_writer import NUMPY, Val, Writer

__all__ = ["STEPS"]
"""All steps, these and those of the files before."""


@dataclasses.dataclass(frozen=True)
class Slide:
    """A window along one dimension of size ``n``."""

    n: int
    size: int
    stride: int
    padding: tuple[int, int]
    hole: int
    dilation: int

    @property
    def places(self) -> int:
        """How many places the window takes; below 1: it does not fit."""
        base = (self.n - 1) * self.hole + 1 + sum(self.padding)
        return (base - (self.size - 1) * self.dilation - 1) // self.stride + 1


def _slide(w: Writer, n: int, least: int) -> Slide:
    """A random one that fits, with padding of at least ``least`` elements a side."""
    for _ in range(20):
        slide = Slide(n, w.rng.choice((1, 2, 2, 3, 3, 5)), w.rng.choice((1, 1, 2, 3)),
                      (w.rng.randint(least, 2), w.rng.randint(least, 2)),
                      w.rng.choice((1, 1, 1, 2)), w.rng.choice((1, 1, 1, 2)))
        if slide.places > 0:
            return slide
    return Slide(n, 1, 1, (0, 0), 1, 1)


def _divisor(w: Writer, *sizes: int) -> int:
    common = math.gcd(*sizes)
    return w.rng.choice([d for d in range(1, common + 1) if common % d == 0])


@step
def convolution(w: Writer) -> Val | None:
    x = w.pick(lambda v: len(v.shape) >= 2 and v.is_float and 0 < v.size <= w.max_elements)
    if x is None or w.special:  # whether padding meets an infinite weight (0 * inf) is open
        return None
    rank = len(x.shape)
    specs = [w.rng.sample(range(rank), rank) for _ in range(3)]
    if w.rng.random() < 0.5:  # features last, as most programs have them
        specs[0] = [0, rank - 1, *range(1, rank - 1)]
    lhs, rhs, out = specs
    batch, features = x.shape[lhs[0]], x.shape[lhs[1]]
    slides = [_slide(w, x.shape[d], -1) for d in lhs[2:]]
    # Features per group of the result, as many as there is room for.
    places = math.prod(s.places for s in slides)
    room = max(w.max_elements // (batch * places), 1)
    o = w.rng.choice([s for s in w.sizes if s <= room] or [1])
    groups = _divisor(w, features) if w.rng.random() < 0.4 else 1
    batches = _divisor(w, batch) if groups == 1 and w.rng.random() < 0.25 else 1
    o = -(-o // (groups * batches)) * groups * batches
    kernel = [0] * rank
    kernel[rhs[0]], kernel[rhs[1]] = o, features // groups
    for d, s in zip(rhs[2:], slides, strict=True):
        kernel[d] = s.size
    if math.prod(kernel) > 4 * w.max_elements:
        return None
    k = w.argument(kernel, x.dtype)
    shape = [0] * rank
    shape[out[0]], shape[out[1]] = batch // batches, o
    for d, s in zip(out[2:], slides, strict=True):
        shape[d] = s.places
    count = features // groups * math.prod(s.size for s in slides)
    wide = x.dtype in ("bf16", "f16") and "f32" in w.dtypes and w.rng.random() < 0.3
    preferred = ", preferred_element_type=jnp.float32" if wide else ""
    asked, eps = precision(w, x.dtype)
    numbers = f"lax.ConvDimensionNumbers({tuple(lhs)}, {tuple(rhs)}, {tuple(out)})"
    return w.emit(
        f"lax.conv_general_dilated({x.name}, {k.name}, {[s.stride for s in slides]}, "
        f"{[s.padding for s in slides]}, {[s.hole for s in slides]}, "
        f"{[s.dilation for s in slides]}, {numbers}, {groups}, {batches}{asked}{preferred})",
        [x, k], shape=shape, dtype="f32" if wide else x.dtype, bound=x.bound * k.bound * count,
        eps=eps)


@step
def convolution_gradient(w: Writer) -> Val | None:
    # Reversed kernels, groups of the batch and negative padding come from here.
    x = w.pick(lambda v: len(v.shape) >= 3 and v.dtype == "f32" and 0 < v.size <= 1024)
    if x is None or w.special:
        return None
    rank = len(x.shape)
    slides = [_slide(w, n, 0) for n in x.shape[1:-1]]
    groups = _divisor(w, x.shape[-1])
    k = w.argument((*(s.size for s in slides), x.shape[-1] // groups, 2 * groups), x.dtype)
    spec = (0, rank - 1, *range(1, rank - 1))
    numbers = f"lax.ConvDimensionNumbers({spec}, {(rank - 1, rank - 2, *range(rank - 2))}, {spec})"
    at = w.rng.randrange(2)
    of = (x, k)[at]
    count = k.size * math.prod(s.places for s in slides) * x.shape[0]
    return w.emit(
        f"jax.grad(lambda x, k: jnp.sum(jnp.sin(lax.conv_general_dilated(x, k, "
        f"{[s.stride for s in slides]}, {[s.padding for s in slides]}, None, "
        f"{[s.dilation for s in slides]}, {numbers}, {groups}, precision='highest'))), {at})"
        f"({x.name} * {1 / max(1.0, x.bound * 9 * k.size)!r}, {k.name})", [x, k], shape=of.shape,
        bound=3.0 * count)


REDUCERS = {  # start value, reducer
    "add": ("0", "lax.add"), "max": ("-jnp.inf", "lax.max"), "min": ("jnp.inf", "lax.min"),
    "shifted": ("1", "lax.add"), "lazy": ("-jnp.inf", "lambda a, b: jnp.where(a >= b, a, b)"),
}


@step
def reduce_window(w: Writer) -> Val | None:
    x = w.pick(lambda v: len(v.shape) > 0 and v.is_float and 0 < v.size <= w.max_elements)
    if x is None:
        return None
    slides = [_slide(w, n, 0) if w.rng.random() < 0.7 else Slide(n, 1, 1, (0, 0), 1, 1)
              for n in x.shape]
    if math.prod(s.places for s in slides) > 4 * w.max_elements:
        return None
    kind = w.rng.choice(list(REDUCERS) if x.exact else ["add", "max", "min", "shifted"])
    start, reducer = REDUCERS[kind]
    count = math.prod(s.size for s in slides)
    return w.emit(
        f"jnp.maximum(lax.reduce_window({x.name}, jnp.{NUMPY[x.dtype].name}({start}), {reducer}, "
        f"{[s.size for s in slides]}, {[s.stride for s in slides]}, "
        f"{[s.padding for s in slides]}, {[s.hole for s in slides]}, "
        f"{[s.dilation for s in slides]}), -{x.bound * count + 1!r})", [x],
        shape=[s.places for s in slides], bound=x.bound * count + 1,
        exact=kind in ("max", "min", "lazy"))
