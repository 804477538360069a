"""The error of this room."""

from __future__ import annotations

from jaxmono._errors import CompileError
from jaxmono.hlo.ir import Op


class CodegenError(CompileError):
    """A Plan holds something that the generator has no code for, or contradicts its own form."""


def refuse(op: Op, reason: str) -> CodegenError:
    """The error for one op: names it, its source line, the reason and the next step."""
    kind = getattr(op, "kind", op.opcode)
    return CodegenError(f"cannot generate {kind} ({op.loc}): {reason}; leave the op to XLA")
