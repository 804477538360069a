"""threefry2x32, and rng_bit_generator: the counter-based generators Threefry-2x32 and Philox-4x32.

Both are from Salmon et al., "Parallel random numbers: as easy as 1, 2, 3" (SC 2011); how a
state becomes counters and the words become elements follows what XLA does, bit for bit.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from jaxmono.hlo import ops
from jaxmono.hlo.interp.core import Context, Unsupported, implements

U32 = npt.NDArray[np.uint32]
U64 = npt.NDArray[np.uint64]

_THREEFRY_ROTATIONS = ((13, 15, 26, 6), (17, 29, 16, 24))
_THREEFRY_PARITY = np.uint32(0x1BD11BDA)


def _halves(x: U64) -> tuple[U32, U32]:
    """Low and high words."""
    return x.astype(np.uint32), (x >> np.uint64(32)).astype(np.uint32)


def _join(low: U32, high: U32) -> U64:
    return low.astype(np.uint64) | (high.astype(np.uint64) << np.uint64(32))


def threefry(counter: U64, key: U64) -> tuple[U32, U32]:
    """Twenty rounds of Threefry-2x32."""
    k0, k1 = _halves(key)
    return threefry2x32(k0, k1, *_halves(counter))


def threefry2x32(k0: U32, k1: U32, x0: U32, x1: U32) -> tuple[U32, U32]:
    """The same of words."""
    keys = (k0, k1, k0 ^ k1 ^ _THREEFRY_PARITY)
    with np.errstate(over="ignore"):  # of what has no dimensions NumPy says so
        x0, x1 = x0 + keys[0], x1 + keys[1]
        for i in range(5):
            for r in _THREEFRY_ROTATIONS[i % 2]:
                x0 = x0 + x1
                x1 = x0 ^ ((x1 << np.uint32(r)) | (x1 >> np.uint32(32 - r)))
            x0 = x0 + keys[(i + 1) % 3]
            x1 = x1 + keys[(i + 2) % 3] + np.uint32(i + 1)
    return x0, x1


def philox(low: U64, high: U64, key: U64) -> list[U32]:
    """Ten rounds of Philox-4x32 on 128-bit counters."""
    x = [*_halves(low), *_halves(high)]
    k0, k1 = _halves(key)
    for _ in range(10):
        first = x[0].astype(np.uint64) * np.uint64(0xD2511F53)
        second = x[2].astype(np.uint64) * np.uint64(0xCD9E8D57)
        (low0, high0), (low1, high1) = _halves(first), _halves(second)
        x = [high1 ^ x[1] ^ k0, low1, high0 ^ x[3] ^ k1, low0]
        k0, k1 = k0 + np.uint32(0x9E3779B9), k1 + np.uint32(0xBB67AE85)
    return x


def _threefry_bits(state: U64, shape: Sequence[int], bits: int) -> tuple[U64, npt.NDArray[Any]]:
    if bits == 64:
        half: list[int] = list(shape)
        split = 0
    else:
        # Two words per counter: pairs along one dimension, the first even one or the longest.
        dims = list(shape) or [1]
        even = [i for i, d in enumerate(dims) if d % 2 == 0]
        split = even[0] if even else dims.index(max(dims))
        half = [(d + 1) // 2 if i == split else d for i, d in enumerate(dims)]
    # Counters run fastest along the last dimension.
    count = math.prod(half)
    counter = state[1] + np.arange(count, dtype=np.uint64).reshape(half)
    x0, x1 = threefry(counter, state[0])
    new_state = np.array([state[0], state[1] + np.uint64(count)], np.uint64)
    if bits == 64:
        return new_state, _join(x0, x1)
    words = np.stack([x0, x1], axis=split + 1)
    words = words.reshape([2 * d if i == split else d for i, d in enumerate(half)])
    return new_state, words[tuple(slice(d) for d in shape or (1,))].reshape(shape)


def _philox_bits(state: U64, shape: Sequence[int], bits: int) -> tuple[U64, npt.NDArray[Any]]:
    size = math.prod(shape)
    words = size * 2 if bits == 64 else size
    count = -(-words // 4)
    # A state of two has its counter's high word as its second element and the key doubles as
    # the low word; a state of three holds key, low, high.
    low, high = (state[1], state[2]) if state.size >= 3 else (state[1], state[0])
    counter = low + np.arange(count, dtype=np.uint64)
    x = philox(counter, np.where(counter < low, high + np.uint64(1), high), state[0])
    end = low + np.uint64(count)
    carried = high + np.uint64(1) if end < low else high
    new_state = np.array([state[0], end, carried][:state.size], np.uint64)
    if bits == 64:
        flat: npt.NDArray[Any] = np.stack([_join(x[0], x[1]), _join(x[2], x[3])], axis=1)
    else:
        flat = np.stack(x, axis=1)
    return new_state, flat.reshape(-1)[:size].reshape(shape)


@implements(ops.Threefry2x32)
def _words(op: ops.Threefry2x32, ctx: Context) -> Sequence[Any]:
    return threefry2x32(*(ctx.get(v) for v in op.inputs))


@implements(ops.RngBitGenerator)
def rng_bit_generator(op: ops.RngBitGenerator, ctx: Context) -> Sequence[Any]:
    shape, dtype = op.results[1].type.dims, op.results[1].type.dtype
    state = ctx.get(op.state)
    if not dtype.is_integer or state.dtype != np.uint64:
        raise Unsupported(f"the reference interpreter has no rng_bit_generator of {dtype.value} "
                          f"from a {op.state.type} state ({op.loc})")
    bits = dtype.itemsize * 8
    # DEFAULT is up to the backend: XLA takes Philox on CPU and GPU.
    make = _threefry_bits if op.algorithm == "THREE_FRY" else _philox_bits
    new_state, values = make(state.reshape(-1), shape, bits)
    # Narrow types keep the low bits; signed ones reinterpret.
    return [new_state, values.astype(dtype.numpy)]
