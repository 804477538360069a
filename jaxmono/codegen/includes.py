"""The device headers that a kernel needs."""

from __future__ import annotations

from collections.abc import Collection

from jaxmono.codegen.calls import Unit
from jaxmono.codegen.dot import DotCode
from jaxmono.codegen.dot_schedule import DotSchedule
from jaxmono.codegen.dot_schedule_fma import FMA
from jaxmono.codegen.dot_wgmma_shared import BF16X6, BYTES, IMAGE, SWAPPED, TF32
from jaxmono.codegen.staggered import staggered
from jaxmono.hlo import ops
from jaxmono.hlo.ir import Op
from jaxmono.hlo.types import FOUR_BITS

_KINDS = {
    "loop": ("padded",), "row": ("opaque", "reduce"),
    "dot": ("gemm", "gemm_simt", "reduce", "split_k"),
    "attention": ("attention", "attention_flash", "reduce"),
}
_FAMILIES = {"gemv": ("gemv",), FMA: ("gemm_fma",), "few": ("attention_few",),
             SWAPPED: ("gemm_swapped",), TF32: ("gemm_tf32",), BYTES: ("gemm_bytes",),
             BF16X6: ("gemm_bf16x6",), IMAGE: ("gemm_image",)}
"""Besides those of their kind."""
_TIERS = {"slice": {"row_tile"}, "short": {"short_rows"}}
_OPS: dict[type[Op], str] = {ops.Accumulate: "accumulate", ops.Prefix: "prefix",
                             ops.Fourier: "fourier"}


def _is_staggered(u: Unit) -> bool:
    return isinstance(u.schedule, DotSchedule) and u.sig.kind == "dot" \
        and staggered(DotCode.of(u.sig, u.schedule)) is not None


def needed(units: Collection[Unit], *, open_borders: bool, roles: bool) -> set[str]:
    """Names in ``device/``, without ".cuh".

    Args:
      open_borders: some stages have flags on values in place of a barrier between them.
      roles: there are producer warps.
    """
    found = {"kernel", "vec"}.union(*(_KINDS[u.sig.kind] for u in units))
    for u in units:
        if any(v.type.dtype in FOUR_BITS for v in u.sig.body.inputs):
            found.add("four_bits")
        found.update(_FAMILIES.get(getattr(u.schedule, "family", ""), ()))
        found |= _TIERS.get(getattr(u.schedule, "tier", ""), set())
        found |= {"tile_reduce"} if getattr(u.sig.form, "reduced", ()) else set()
        if any(isinstance(o, ops.Elementwise) and o.kind in ops.QUATERNARY
               for o in u.sig.body.ops):
            found.add("threefry")
        found.update(_OPS[type(o)] for o in u.sig.body.ops if type(o) in _OPS)
    if open_borders:
        found.add("flagged")
    if roles:
        found |= {"gemm_wgmma", "roles"}
        found |= {"staggered"} if any(map(_is_staggered, units)) else set()
        if any(u.load and u.sig.kind == "attention" for u in units):
            found |= {"attention_wgmma", "back_to_back"}
    return found
