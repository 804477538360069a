"""Where the scales of groups of summed elements are (fusion/scaled_weights.py), and how they come.

Streams of weights (gemv) bring them into shared memory with a task's first weights, as they lie in
memory, in front of a barrier where these are: loaded behind it, a decode step's stages waited for
them once more. Tiles (bytes) have them requested into the L2 by their producers.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from jaxmono.codegen.dot import DotCode
from jaxmono.codegen.dot_gemv_shape import Shape
from jaxmono.codegen.emit import BodyEmitter, c_type
from jaxmono.codegen.operand import View, scales_of
from jaxmono.codegen.writer import Writer
from jaxmono.fusion.indexing import Index, Var, contiguous, linearize
from jaxmono.hlo.ir import Value

_COLUMNS = 4
"""Of weights [k][n], whose scales lie beside each other in shared memory."""


@dataclass(frozen=True)
class Scale:
    """Where the scales are, demanded over (n, k), and how many elements of k share one."""

    view: View
    per: int

    @property
    def itemsize(self) -> int:
        return self.view.param.type.dtype.itemsize


def scale_of(code: DotCode) -> Scale | None:
    """Those of a dot's weights; None if there are none, or if they are computed."""
    by = code.rhs.scaled
    found = None if by is None else scales_of(code.sig.body, by)
    return None if by is None or found is None else Scale(found, by.group)


def extent_of(code: DotCode) -> tuple[int, int] | None:
    """How many elements of k share a scale, and its bytes; None if `scale_of` is."""
    scale = scale_of(code)
    return None if scale is None else (scale.per, scale.itemsize)


def width_of(code: DotCode, scale: Scale, of: Shape) -> int:
    """Bytes of them that lie beside each other, aligned, wherever a task begins."""
    size, k, n = scale.itemsize, code.form.k, code.form.n
    groups = Var("group", k.size // scale.per)
    offset = linearize(scale.view.index, scale.view.param.type.dims).substitute(
        {k: Index.of(groups) * scale.per})
    if not code.rhs.k_major:
        return min(_COLUMNS * size, 16) if contiguous(offset, n, _COLUMNS) else size
    own = of.share // scale.per
    return next((count * size for count in (16, 8, 4, 2) if 4 <= count * size <= 16
                 and of.share % scale.per == 0 and own % count == 0
                 and contiguous(offset, groups, count)), size)


def emit_address(w: Writer, code: DotCode, scale: Scale, pointers: Mapping[Value, str]) -> None:
    """``scale_address(int o, int k)``."""
    with w.block("const auto scale_address = [&](int o, int k)", "};"):
        em = BodyEmitter(w, code.sig.body, pointers, var_names={
            code.form.batch: "b", code.form.n: "o", code.form.k: "k"})
        at = em.code(linearize(scale.view.index, scale.view.param.type.dims))
        w.line(f"return {pointers[scale.view.param]} + {at};")


def emit_touch(w: Writer, code: DotCode, pointers: Mapping[Value, str],
               read_only: Sequence[Value]) -> None:
    """What a tile's producers request into the L2, where no stage writes it."""
    scale = scale_of(code)
    if scale is not None and scale.view.param in read_only:
        emit_address(w, code, scale, pointers)
        n, k = code.form.n.size, code.form.k.size
        w.line(f"G::touch_scales<{n}, {k}, {scale.per}>(n0, k0, k_tiles, scale_address);")


def emit_scales(w: Writer, code: DotCode, pointers: Mapping[Value, str], names: Mapping[Var, str],
                read_only: Sequence[Value]) -> str:
    """``scale(int c, int k)``: of a column of a tile, what its consumers multiply weights with;
    returns the ``Scales`` of device/weights_left.cuh."""
    form, by = code.form, code.rhs.scaled
    assert by is not None and code.element is not None
    with w.block("const auto scale_of = [&](int o, int k)", "};"):
        em = BodyEmitter(w, code.sig.body, pointers, read_only=read_only,
                         var_names={**names, code.rhs.outer: "o", code.rhs.k: "k"})
        w.line(f"return static_cast<float>({em.emit(by.scale, by.scale_index)});")
    with w.block("const auto scale = [&](int c, int k)", "};"):
        w.line(f"const bool there = (n0 + c < {form.n.size}) & (k0 + k < {form.k.size});")
        w.line(f"return there ? twice<{c_type(code.element)}>(scale_of(n0 + c, k0 + k)) : 0u;")
    return f"Scales<{by.group}, decltype(scale)>{{scale}}"
