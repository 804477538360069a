"""A stable text for MLIR ops that have no class of their own.

It is the generic form without locations, with SSA names renumbered and the bodies of referenced
functions appended, so that equal text means equal meaning on any machine.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from jax.extend.mlir import ir

_SSA = re.compile(r'"(?:[^"\\]|\\.)*"|%[A-Za-z0-9_$.-]+')
_SYMBOL = re.compile(r"@([A-Za-z_$.][\w$.-]*)")


def operation_text(op: ir.Operation, functions: Mapping[str, ir.Operation]) -> str:
    """The generic text of ``op`` with operands by number; see the module docstring.

    Args:
      op: any operation.
      functions: the module's functions by symbol name.
    """
    return with_functions(_numbered(op), functions)


def with_functions(text: str, functions: Mapping[str, ir.Operation]) -> str:
    """``text`` followed by the functions that it names, directly or not."""
    parts, seen, at = [text], set[str](), 0
    while at < len(parts):
        for name in _SYMBOL.findall(parts[at]):
            if name in functions and name not in seen:
                seen.add(name)
                parts.append(_numbered(functions[name]))
        at += 1
    return "\n".join(parts)


def _numbered(op: ir.Operation) -> str:
    text = str(op.get_asm(print_generic_op_form=True, use_local_scope=True,
                          enable_debug_info=False))
    names: dict[str, str] = {}

    def rename(m: re.Match[str]) -> str:
        word = m.group()
        return word if word[0] == '"' else names.setdefault(word, f"%{len(names)}")

    return _SSA.sub(rename, text)
