"""Result types of Fourier transforms."""

from __future__ import annotations

from jaxmono.hlo import ops
from jaxmono.hlo.infer.rule import require, same
from jaxmono.hlo.types import PART, DType, TensorType

WHOLE = {part: whole for whole, part in PART.items()}
"""Complex numbers of such parts."""


def infer_fft(op: ops.Fft) -> tuple[TensorType, ...]:
    x, lengths = op.operand.type, op.fft_length
    require(op.kind in ("FFT", "IFFT", "RFFT", "IRFFT"), f"{op.kind} is no kind of transform")
    require(0 < len(lengths) <= x.rank, f"{len(lengths)} lengths of {x}")
    *rest, last = lengths
    if op.kind in ("FFT", "IFFT"):
        require(x.dtype.is_complex, f"transforms {x.dtype.value}, which is not complex")
        out = x
    elif op.kind == "RFFT":
        require(x.dtype in WHOLE, f"transforms {x.dtype.value}, which is no f32 or f64")
        out = TensorType((*x.dims[:-1], last // 2 + 1), WHOLE[x.dtype])
    else:
        require(x.dtype.is_complex, f"transforms {x.dtype.value}, which is not complex")
        same("the operand's last dimension", x.dims[-1], last // 2 + 1)
        out = TensorType((*x.dims[:-1], last), PART[x.dtype])
    if op.kind != "IRFFT":
        same("the operand's last dimension", x.dims[-1], last)
    same("the dimensions before it", x.dims[x.rank - len(lengths):-1], tuple(rest))
    return (out,)


def infer_fourier(op: ops.Fourier) -> tuple[TensorType, ...]:
    x, *more = (v.type for v in op.args)
    require(len(more) <= 1 and all(t == x for t in more), "takes parts of one type")
    require(x.dtype in (DType.F32, DType.F64), f"transforms {x.dtype.value}")
    require(0 <= op.axis < x.rank, f"{x} has no dimension {op.axis}")
    if op.half:
        require(op.axis == x.rank - 1 and op.real and op.back, "halves of what is no real line")
        require(op.kept == 2 * x.dims[-1] - 2 > 0, f"makes {op.kept} of {x.dims[-1]}")
    else:
        require(0 < op.kept <= x.dims[op.axis], f"keeps {op.kept} of {x.dims[op.axis]}")
    require(not op.twist or op.axis + 1 < x.rank, "has no next dimension")
    return (TensorType(op.made if op.real else (*op.made, 2), x.dtype),)
