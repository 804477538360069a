"""Passes: each takes a Graph and returns one with the same meaning, itself if nothing changed."""

from __future__ import annotations

from jaxmono.hlo.passes.algebraic import algebraic
from jaxmono.hlo.passes.align import align
from jaxmono.hlo.passes.canonicalise import canonicalise
from jaxmono.hlo.passes.channels_last import channels_last
from jaxmono.hlo.passes.common_subexpressions import common_subexpressions
from jaxmono.hlo.passes.constant_folding import constant_folding
from jaxmono.hlo.passes.dead_code import dead_code
from jaxmono.hlo.passes.dequantise import dequantise
from jaxmono.hlo.passes.expand import expand
from jaxmono.hlo.passes.outer_products import outer_products
from jaxmono.hlo.passes.pipeline import simplify
from jaxmono.hlo.passes.unroll import unroll

__all__ = ["algebraic", "align", "canonicalise", "channels_last", "common_subexpressions",
           "constant_folding", "dead_code", "dequantise", "expand", "outer_products", "simplify",
           "unroll"]
