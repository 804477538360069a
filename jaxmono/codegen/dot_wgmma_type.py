"""The C++ types of the tiles that warpgroups multiply."""

from __future__ import annotations

from typing import Any

from jaxmono.codegen.dot import DotCode
from jaxmono.codegen.dot_schedule import ImageSchedule
from jaxmono.codegen.dot_wgmma_shared import (
    BF16X6,
    BYTES,
    IMAGE,
    SWAPPED,
    TF32,
    deep,
    leaves_unstaged,
    pair_type,
    panel_columns,
    shifts,
    widths,
)
from jaxmono.codegen.emit import c_type
from jaxmono.codegen.names import stored_type


def gemm_type(code: DotCode) -> str:
    """That of a contraction's tile (device/gemm_wgmma.cuh and its neighbours)."""
    s = code.s
    assert code.element is not None
    if s.family == BYTES:
        assert code.rhs_element is not None
        lines, panel = deep(code) // 128, panel_columns(code) // s.bk
        stored, shift = stored_type(code.rhs_element), shifts(code)
        if shift is not None:
            stored = f"ShiftedRows<{stored}, {shift[0]}, {shift[1]}>"
        types = f"{stored}, {c_type(code.element)}"
        return (f"GemmBytes<{types}, {s.bm}, {s.bn}, "
                f"{s.stages}, {', '.join(map(str, s.warps))}, {_cpp(code.rhs.k_major)}"
                f"{f', {lines}' if panel or lines > 1 else ''}{f', {panel}' if panel else ''}>")
    if s.family == IMAGE:
        assert isinstance(s, ImageSchedule)
        return (f"GemmImage<{c_type(code.element)}, {s.bm}, {s.bn}, {s.bk}, {s.stages}, "
                f"{s.images}, {s.warps[0]}, {s.warps[1]}, {_cpp(code.rhs.k_major)}, "
                f"{code.arrangement.image.channels // s.bk}, {code.arrangement.shape()}"
                f"{f', {s.split_k}' if s.split_k > 1 else ''}>")
    if s.family == BF16X6:
        return (f"GemmBf16x6<{s.bm}, {s.bn}, {s.stages}, {s.warps[0]}, {s.warps[1]}, "
                f"{_cpp(code.lhs.k_major)}, {_cpp(code.rhs.k_major)}>")
    if s.family == TF32:
        return (f"GemmTf32<{s.bm}, {s.bn}, {s.stages}, {s.warps[0]}, {s.warps[1]}, "
                f"{_cpp(code.rhs.k_major)}>")
    kind, warps = ("GemmSwapped", s.warps[1:]) if s.family == SWAPPED else ("GemmWgmma", s.warps)
    args = [pair_type(code) or c_type(code.element), s.bm, s.bn, s.stages, *warps,
            _cpp(code.lhs.k_major), _cpp(code.rhs.k_major), panel_columns(code)]
    more: list[tuple[Any, Any]] = [(_cpp(width == 2), "false") for width in widths(code)]
    if s.family != SWAPPED:
        more = [(0, 0), (deep(code) // 32, 4), (code.k_tiles if s.resident else 0, 0), *more,
                (_cpp(not leaves_unstaged(code)), "true")]
    while more and more[-1][0] == more[-1][1]:  # as its default
        more.pop()
    return f"{kind}<{', '.join(map(str, [*args, *(x for x, _ in more)]))}>"


def _cpp(x: bool) -> str:
    return "true" if x else "false"
