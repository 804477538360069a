"""Checks a Graph: every use after its definition, every type as inferred, every field its kind."""

from __future__ import annotations

from typing import Any

import numpy as np

from jaxmono.hlo.infer import RuleError, infer
from jaxmono.hlo.ir import Graph, Op, Value
from jaxmono.hlo.print import op_text
from jaxmono.hlo.types import DType


class HloError(ValueError):
    """A Graph is malformed; the message names the op, its source line and the broken rule."""

    def __init__(self, rule: str, op: Op | None = None) -> None:
        self.rule = rule
        self.op = op
        where = f"\n  in: {op_text(op).splitlines()[0]}" if op is not None else ""
        super().__init__(f"{rule}{where}")


def verify(graph: Graph, *, allow_captures: bool = False) -> None:
    """Checks ``graph`` and the regions in it.

    Args:
      graph: a program, or a region when ``allow_captures``.
      allow_captures: let the graph use values that it does not define.

    Raises:
      HloError: at the first broken rule. The types of an op with a symbolic dimension are not
        inferred; all else is checked there too.
    """
    known = set(graph.captures) if allow_captures else set[Value]()
    _verify(graph, known, graph.name)


def _verify(graph: Graph, known: set[Value], where: str) -> None:
    scope = set(known)
    for v in graph.inputs:
        if v in scope:
            raise HloError(f"an input of {where} is defined twice")
        scope.add(v)
    for op in graph.ops:
        for v in op.inputs:
            if v not in scope:
                raise HloError(f"uses a value of type {v.type} before its definition", op)
        _fields(op)
        for g in op.subgraphs:
            _verify(g, scope, f"{g.name} of {op.opcode}")
        _types(op)
        for v in op.results:
            if v in scope:
                raise HloError("defines a result that is defined already", op)
            scope.add(v)
    for i, v in enumerate(graph.outputs):
        if v not in scope:
            raise HloError(f"output {i} of {where} (type {v.type}) is not defined in it")


def _types(op: Op) -> None:
    if not all(v.type.is_static for v in (*op.inputs, *op.results)):
        return
    try:
        wanted = infer(op)
    except RuleError as e:
        raise HloError(str(e), op) from e
    for i, (v, t) in enumerate(zip(op.results, wanted, strict=True)):
        if v.type != t:
            raise HloError(f"result {i} has type {v.type}, has to have {t}", op)


def _fields(op: Op) -> None:
    for f in op.declared("operand"):
        if not isinstance(getattr(op, f.name), Value):
            raise HloError(f"{op.opcode}.{f.name} has to be a Value, is "
                           f"{type(getattr(op, f.name)).__name__}")
    for name, value in op.attributes.items():
        if not _is_attribute(value):
            raise HloError(f"attribute {name} = {value!r} is no int, str, bool, DType, ndarray, "
                           "None or tuple of those", op)


def _is_attribute(value: Any) -> bool:
    if isinstance(value, tuple):
        return all(map(_is_attribute, value))
    return value is None or isinstance(value, (bool, int, str, DType, np.ndarray))
