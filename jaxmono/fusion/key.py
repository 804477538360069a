"""Content keys and short names of Sigs."""

from __future__ import annotations

import hashlib

from jaxmono.fusion.plan import Form
from jaxmono.fusion.text import form_lines
from jaxmono.hlo import ops
from jaxmono.hlo.ir import Graph, Op
from jaxmono.hlo.print import to_text

_SHORT = {
    "exponential": "exp", "multiply": "mul", "subtract": "sub", "divide": "div",
    "maximum": "max", "minimum": "min", "logistic": "sigmoid", "negate": "neg",
    "dynamic_update_slice": "update", "dynamic_slice": "window", "concatenate": "concat",
    "reduce_precision": "round",
}
_SILENT = (ops.Constant, ops.Iota, ops.BroadcastInDim, ops.Reshape, ops.Convert)
MAX_WORDS = 4


def sig_key(body: Graph, form: Form) -> str:
    """Hash of a body and its form: equal for isomorphic groups, in every process."""
    text = to_text(body, locs=False) + "\n".join(form_lines(form, body))
    return hashlib.sha256(text.encode()).hexdigest()


def sig_name(kind: str, body: Graph, *, folded: bool = False) -> str:
    """A few words that tell a reader what a group does, e.g. ``dot_add_tanh``."""
    words = ["norm" if folded else "", kind]
    after = kind != "dot"
    for o in body.ops:
        if isinstance(o, ops.DotGeneral):
            after = True
            continue
        if after and not isinstance(o, _SILENT):
            word = _word(o)
            if word not in words:
                words.append(word)
    return "_".join([w for w in words if w][: 1 + MAX_WORDS + bool(folded)])


def _word(op: Op) -> str:
    if isinstance(op, ops.Elementwise):
        return _SHORT.get(op.kind, op.kind)
    if isinstance(op, ops.Reduce):
        kinds = [_word(o) for o in op.body.ops if isinstance(o, ops.Elementwise)]
        return f"r{kinds[0]}" if len(kinds) == 1 else "reduce"
    return _SHORT.get(op.opcode, op.opcode)
