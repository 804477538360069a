"""Graph to text; ``parse.py`` reads it back.

One op per line, values numbered in the order in which they are defined:

    graph main(%0: f32[2,8], %1: f32[8]) {
      %2 = f32[2,8] broadcast_in_dim(%1) {dimensions=[1]}
      %3 = f32[2,8] add(%0, %2)  // model.py:12 (jit(f)/add)
      %4 = f32[] constant() {value=f32[]<0.0>}
      %5 = f32[2] reduce(%3; %4) {dimensions=[1]}
        body(%6: f32[], %7: f32[]) {
          %8 = f32[] add(%6, %7)
          return %8
        }
      return %5
    }

Everything comes from the ops' field declarations. Attributes equal to their default are left
out; an op with several variadic operand fields separates its fields by ``;``; an elementwise op
prints its kind as its name. Hints are not printed, so isomorphic graphs of one name print alike.
"""

from __future__ import annotations

import dataclasses
import json
from typing import Any

from jaxmono.hlo import literal
from jaxmono.hlo.ir import Graph, Loc, Op, Value
from jaxmono.hlo.ops import Elementwise


def to_text(graph: Graph, *, locs: bool = True, elide: bool = False) -> str:
    """The graph as text, ending in a newline.

    Args:
      graph: a program or a region; what a region captures is listed after its inputs.
      locs: print source locations as trailing comments.
      elide: write long constants as ``<...>``; such text is for reading, it does not parse.
    """
    printer = _Printer(locs, elide)
    head = f"graph {literal.attribute_text(graph.name)}"
    inputs = printer.parameters(graph.inputs)
    captured = f" captures{printer.parameters(graph.captures)}" if graph.captures else ""
    printer.body(f"{head}{inputs}{captured}", graph, 0)
    return "\n".join(printer.lines) + "\n"


def op_text(op: Op, *, locs: bool = True) -> str:
    """One op as text for messages: values are numbered from this op's operands on, and each
    operand shows its type; regions follow on lines of their own."""
    printer = _Printer(locs, elide=True, types=True)
    for v in op.uses:
        printer.name(v)
    printer.op(op, 0)
    return "\n".join(printer.lines)


class _Printer:
    def __init__(self, locs: bool, elide: bool, types: bool = False) -> None:
        self.locs = locs
        self.elide = elide
        self.types = types
        self.lines: list[str] = []
        self.numbers: dict[Value, int] = {}

    def name(self, value: Value) -> str:
        return f"%{self.numbers.setdefault(value, len(self.numbers))}"

    def use(self, value: Value) -> str:
        # A graph that uses a value before its definition is malformed, but has to print.
        name = f"%{self.numbers[value]}" if value in self.numbers else "%undefined"
        return f"{name}: {value.type}" if self.types else name

    def parameters(self, values: tuple[Value, ...]) -> str:
        return f"({', '.join(f'{self.name(v)}: {v.type}' for v in values)})"

    def body(self, head: str, graph: Graph, depth: int) -> None:
        pad = "  " * depth
        self.lines.append(f"{pad}{head} {{")
        for o in graph.ops:
            self.op(o, depth + 1)
        self.lines.append(f"{pad}  return {', '.join(map(self.use, graph.outputs))}".rstrip())
        self.lines.append(f"{pad}}}")

    def op(self, op: Op, depth: int) -> None:
        arguments = self.operands(op)
        line = "  " * depth
        if op.results:
            names = ", ".join(self.name(v) for v in op.results)
            line += f"{names} = {', '.join(str(v.type) for v in op.results)} "
        line += op.kind if isinstance(op, Elementwise) else op.opcode
        line += f"({arguments})"
        attributes = self.attributes(op)
        if attributes:
            line += f" {{{attributes}}}"
        if self.locs and op.loc != Loc():
            line += f"  // {_one_line(str(op.loc))}"
        self.lines.append(line)
        for f in op.declared("region", "regions"):
            held = getattr(op, f.name)
            for g in held if isinstance(held, tuple) else (held,):
                self.body(f"{f.name}{self.parameters(g.inputs)}", g, depth + 1)

    def operands(self, op: Op) -> str:
        separator = "; " if len(op.declared("operands")) > 1 else ", "
        fields: list[str] = []
        for f in op.declared("operand", "operands"):
            v = getattr(op, f.name)
            fields.append(", ".join(map(self.use, v if isinstance(v, tuple) else (v,))))
        # One variadic field that is empty leaves no trace; several keep their places.
        return separator.join(fields if separator == "; " else filter(None, fields)).rstrip()

    def attributes(self, op: Op) -> str:
        out: list[str] = []
        for f in op.declared("attribute"):
            if isinstance(op, Elementwise) and f.name == "kind":
                continue
            value = getattr(op, f.name)
            if not _is_default(value, f):
                out.append(f"{f.name}={literal.attribute_text(value, elide=self.elide)}")
        return ", ".join(out)


def _is_default(value: Any, field: dataclasses.Field[Any]) -> bool:
    default = field.default
    return type(value) is type(default) and value == default


def _one_line(text: str) -> str:
    plain = text.isprintable() and "\\" not in text
    return text if plain else json.dumps(text)[1:-1].replace('\\"', '"')
