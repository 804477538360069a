"""Torch peers of the micro-graphs, by torch's own functions."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from benchmarks.peers.peer import Builder, TorchPeer
from benchmarks.workloads import kernels, micro

if TYPE_CHECKING:
    import torch


def _peer(fn: Callable[..., Any], x: tuple[int, ...], weights: dict[str, tuple[int, ...]],
          dtype: torch.dtype, device: str, *, images: bool = False,
          more: Sequence[tuple[int, ...]] = ()) -> TorchPeer:
    """``fn(x, *more, **weights)``; shapes of weights are torch's ([out, in, ...])."""
    import torch

    def weight(name: str, shape: tuple[int, ...]) -> torch.Tensor:
        noise = torch.randn(shape, device=device)
        if len(shape) == 1:
            return (1 + 0.1 * noise if name == "scale" else 0.1 * noise).to(dtype)
        noise = (noise * (2 / noise[0].numel()) ** 0.5).to(dtype)
        return noise.to(memory_format=torch.channels_last) if images else noise

    class Micro(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            for name, shape in weights.items():
                self.register_parameter(name, torch.nn.Parameter(weight(name, shape)))

        def forward(self, *x: torch.Tensor) -> torch.Tensor:
            return fn(*x, **{name: getattr(self, name) for name in weights})

    def inputs(seed: int) -> tuple[torch.Tensor, ...]:
        generator = torch.Generator(device).manual_seed(seed)
        data = [torch.randn(size, generator=generator, device=device, dtype=dtype)
                for size in (x, *more)]
        return tuple(a.to(memory_format=torch.channels_last) if images else a for a in data)

    return TorchPeer(Micro().eval(), inputs)


def _part(name: str, rows: int, size: int, *vectors: str) -> Builder:
    def build(batch: int, dtype: torch.dtype, device: str, tiny: bool = False) -> TorchPeer:
        import torch
        from torch.nn import functional as F

        m, n = (16, 24) if tiny else (batch * rows, size)
        fns: dict[str, Callable[..., Any]] = {
            "layer_norm": lambda x, scale, bias: F.layer_norm(x, (n,), scale, bias),
            "rms_norm": lambda x, scale: F.rms_norm(x, (n,), scale, 1e-5),
            "softmax": lambda x: torch.softmax(x, -1),
            "gelu_chain": lambda x: F.gelu(x, approximate="tanh"),
            "bias_activation": lambda x, bias: F.relu(x + bias),
        }
        return _peer(fns[name], (m, n), dict.fromkeys(vectors, (n,)), dtype, device)

    return build


def _mlp(batch: int, dtype: torch.dtype, device: str, tiny: bool = False) -> TorchPeer:
    from torch.nn import functional as F

    m, n, inner = (16, 24, 40) if tiny else (batch * 4096, 768, 3072)
    return _peer(lambda x, up, up_bias, down, down_bias:
                 F.linear(F.gelu(F.linear(x, up, up_bias)), down, down_bias), (m, n),
                 {"up": (inner, n), "up_bias": (inner,), "down": (n, inner), "down_bias": (n,)},
                 dtype, device)


def _gemm(m: int, n: int, k: int) -> Builder:
    def build(batch: int, dtype: torch.dtype, device: str, tiny: bool = False) -> TorchPeer:
        from torch.nn import functional as F

        rows, columns, inner = (16, 24, 40) if tiny else (batch * m, n, k)
        return _peer(lambda x, w: F.linear(x, w), (rows, inner), {"w": (columns, inner)}, dtype,
                     device)

    return build


def _b2b_gemm(m: int, n1: int, k1: int, n2: int) -> Builder:
    def build(batch: int, dtype: torch.dtype, device: str, tiny: bool = False) -> TorchPeer:
        from torch.nn import functional as F

        rows, middle, inner, last = (16, min(n1, 24), min(k1, 40), min(n2, 8)) if tiny else \
            (batch * m, n1, k1, n2)
        return _peer(lambda x, w1, w2: F.relu(F.linear(F.relu(F.linear(x, w1)), w2)),
                     (rows, inner), {"w1": (middle, inner), "w2": (last, middle)}, dtype, device)

    return build


def _b2b_conv(size: int, n_in: int, n_out: int, stride: int) -> Builder:
    def build(batch: int, dtype: torch.dtype, device: str, tiny: bool = False) -> TorchPeer:
        from torch.nn import functional as F

        h, c, d = (8, min(n_in, 8), 8) if tiny else (size, n_in, n_out)

        def fn(x: Any, w1: Any, bias1: Any, w2: Any, bias2: Any) -> Any:
            y = F.relu(F.conv2d(x, w1, bias1, stride=stride, padding=1))
            return F.relu(F.conv2d(y, w2, bias2))

        return _peer(fn, (batch, c, h, h),
                     {"w1": (d, c, 3, 3), "bias1": (d,), "w2": (d, d, 1, 1), "bias2": (d,)},
                     dtype, device, images=True)

    return build


def _padding(height: int, width: int, n_in: int, n_out: int, kernel: tuple[int, int],
             padding: tuple[int, int]) -> Builder:
    def build(batch: int, dtype: torch.dtype, device: str, tiny: bool = False) -> TorchPeer:
        from torch.nn import functional as F

        h, w, c, d = (kernel[0] + 1, kernel[1] + 1, 6, 8) if tiny else (height, width, n_in, n_out)
        return _peer(lambda x, w: F.conv2d(x, w, padding=padding), (batch, c, h, w),
                     {"w": (d, c, *kernel)}, dtype, device, images=True)

    return build


def _epilogue(kind: str, m: int, n: int, k: int) -> Builder:
    def build(batch: int, dtype: torch.dtype, device: str, tiny: bool = False) -> TorchPeer:
        from torch.nn import functional as F

        rows, columns, inner = (16, 24, 40) if tiny else (batch * m, n, k)
        fns: dict[str, Callable[[Any, Any], Any]] = {
            "bias": lambda y, other: y, "relu": lambda y, other: F.relu(y),
            "gelu": lambda y, other: F.gelu(y), "hardswish": lambda y, other: F.hardswish(y),
            "softplus": lambda y, other: F.softplus(y),
            "silu_mul": lambda y, other: F.silu(y) * other,
            "residual": lambda y, other: y + other,
        }
        more = ((rows, columns),) if kind in ("silu_mul", "residual") else ()
        return _peer(lambda x, *other, w, bias: fns[kind](F.linear(x, w, bias),
                                                          other[0] if other else None),
                     (rows, inner), {"w": (columns, inner), "bias": (columns,)}, dtype, device,
                     more=more)

    return build


def _attention(length: int, heads: int, features: int, causal: bool) -> Builder:
    def build(batch: int, dtype: torch.dtype, device: str, tiny: bool = False) -> TorchPeer:
        from torch.nn import functional as F

        s, h, d = (24, 2, 16) if tiny else (length, heads, features)
        shape = (batch, s, h, d)  # as JAX has it; torch wants the heads first, a view

        def fn(q: Any, k: Any, v: Any) -> Any:
            return F.scaled_dot_product_attention(
                q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2), is_causal=causal)

        return _peer(fn, shape, {}, dtype, device, more=(shape, shape))

    return build


PEERS: dict[str, Builder] = {
    "layer_norm": _part("layer_norm", 4096, 768, "scale", "bias"),
    "rms_norm": _part("rms_norm", 4096, 2048, "scale"),
    "softmax": _part("softmax", 49152, 128),
    "gelu_chain": _part("gelu_chain", 4096, 3072),
    "bias_activation": _part("bias_activation", 4096, 3072, "bias"),
    "mlp": _mlp,
    **{f"gemm_{m}_{n}_{k}": _gemm(m, n, k) for m, n, k in micro.GEMMS},
    **{f"b2b_gemm_{row}": _b2b_gemm(*sizes) for row, sizes in enumerate(micro.B2B_GEMMS, 1)},
    **{f"b2b_conv_{row}": _b2b_conv(*sizes) for row, sizes in enumerate(micro.B2B_CONVS, 1)},
    **{f"padding_{row}": _padding(*sizes) for row, (_, *sizes) in enumerate(micro.PADDINGS, 1)},
    **{f"dot_{m}_{n}_{k}": _gemm(m, n, k) for m, n, k in kernels.GEMMS},
    **{f"unaligned_{m}_{n}_{k}": _gemm(m, n, k) for m, n, k in kernels.UNALIGNED},
    **{f"{kind}_{m}_{n}_{k}": _epilogue(kind, m, n, k) if kind != "bare" else _gemm(m, n, k)
       for m, n, k in kernels.EPILOGUE_GEMMS for kind in kernels.EPILOGUES},
    **{f"attention_s{s}_{h}x{d}{'_causal' if causal else ''}": _attention(s, h, d, causal)
       for h, d in kernels.HEADS for s in kernels.LENGTHS for causal in (False, True)},
}
