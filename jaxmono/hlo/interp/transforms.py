"""Fourier transforms."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from jaxmono.hlo import ops
from jaxmono.hlo.interp.core import Context, implements


@implements(ops.Fft)
def fft(op: ops.Fft, ctx: Context) -> Sequence[Any]:
    x = ctx.get(op.operand)
    axes = range(x.ndim - len(op.fft_length), x.ndim)
    function = getattr(np.fft, {"FFT": "fftn", "IFFT": "ifftn", "RFFT": "rfftn",
                                "IRFFT": "irfftn"}[op.kind])
    wide = x.astype(np.complex128 if np.iscomplexobj(x) else np.float64)
    return [function(wide, op.fft_length, axes).astype(op.result.type.dtype.numpy)]


@implements(ops.Fourier)
def fourier(op: ops.Fourier, ctx: Context) -> Sequence[Any]:
    parts = [ctx.get(v).astype(np.float64) for v in op.args]
    z = parts[0] + 1j * parts[1] if len(parts) > 1 else parts[0]
    n, axis = z.shape[op.axis], op.axis
    if op.half:
        return [(np.fft.irfft(z, op.kept) * op.kept / op.divisor).astype(
            op.result.type.dtype.numpy)]
    # The inverse one is divided by its length.
    found = np.fft.ifft(z, axis=axis) * n if op.back else np.fft.fft(z, axis=axis)
    found = np.take(found, np.arange(op.kept), axis) / op.divisor
    if op.twist:
        turns = np.outer(np.arange(op.kept), np.arange(z.shape[axis + 1])) / op.twist
        turned = np.exp((2j if op.back else -2j) * np.pi * turns)
        found = found * turned.reshape(*turned.shape, *[1] * (z.ndim - axis - 2))
        found = np.swapaxes(found, axis, axis + 1)
    made = found.real if op.real else np.stack([found.real, found.imag], -1)
    return [made.astype(op.result.type.dtype.numpy)]
