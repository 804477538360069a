"""Where the scales of groups of summed elements are (fusion/scaled_weights.py), and how they come.

Streams of weights (gemv) bring them into shared memory with a task's first weights, as they lie in
memory, in front of a barrier where these are: loaded behind it, a decode step's stages waited for
them once more. Tiles (bytes) have them requested into the L2 by their producers.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from jaxmono.codegen.dot import DotCode
from jaxmono.codegen.dot_gemv_shape import Shape
from jaxmono.codegen.emit import BodyEmitter
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


def scale_of(code: DotCode) -> Scale | None:
    """Those of a dot's weights; None if there are none, or if they are computed."""
    by = code.rhs.scaled
    found = None if by is None else scales_of(code.sig.body, by)
    return None if by is None or found is None else Scale(found, by.group)


def width_of(code: DotCode, scale: Scale, of: Shape) -> int:
    """Bytes of them that lie beside each other, aligned, wherever a task begins."""
    size, k, n = scale.view.param.type.dtype.itemsize, code.form.k, code.form.n
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
