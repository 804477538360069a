"""What a Graph computes, as a hash: the key of every cache.

Equal for equal programs on any machine, in any process, whatever values and graphs are called
and wherever their source lines are; different when a constant's bytes, an attribute, a type, an
operand or the order of inputs or outputs differs. Ops are visited from the outputs back, so
neither the order in which independent ops are listed nor dead code counts.
"""

from __future__ import annotations

import hashlib
from typing import Any

import numpy as np

from jaxmono.hlo.ir import Graph, Op, Value
from jaxmono.hlo.literal import is_splat, raw_bytes
from jaxmono.hlo.ops import has_side_effect
from jaxmono.hlo.types import DType

FORMAT = "jaxmono-graph-1"
"""Changes whenever the encoding does, so that old cache entries cannot match."""


def fingerprint(graph: Graph) -> str:
    """64 hex digits; see the module docstring. Captured values count by order and type."""
    h = _Hasher()
    h.text(FORMAT)
    h.define(graph.captures)
    h.graph(graph)
    return h.sha.hexdigest()


class _Hasher:
    def __init__(self) -> None:
        self.sha = hashlib.sha256()
        self.numbers: dict[Value, int] = {}

    def text(self, s: str) -> None:
        raw = s.encode()
        self.sha.update(f"s{len(raw)}:".encode() + raw)

    def number(self, n: int) -> None:
        self.sha.update(f"i{n};".encode())

    def define(self, values: tuple[Value, ...]) -> None:
        self.number(len(values))
        for v in values:
            self.numbers[v] = len(self.numbers)
            self.text(str(v.type))

    def use(self, values: tuple[Value, ...]) -> None:
        self.number(len(values))
        for v in values:
            self.number(self.numbers[v])

    def graph(self, graph: Graph) -> None:
        self.text("graph")
        self.define(graph.inputs)
        for op in live_order(graph):
            self.op(op)
        self.text("return")
        self.use(graph.outputs)

    def op(self, op: Op) -> None:
        self.text(op.opcode)
        for f in op.declared("operand", "operands"):
            held = getattr(op, f.name)
            self.use(held if isinstance(held, tuple) else (held,))
        for f in op.declared("attribute"):
            value = getattr(op, f.name)
            # A default is left out, so that a new field with a default changes no fingerprint.
            if not (type(value) is type(f.default) and value == f.default):
                self.text(f.name)
                self.attribute(value)
        self.define(op.results)
        self.number(len(op.subgraphs))
        for g in op.subgraphs:
            self.graph(g)

    def attribute(self, value: Any) -> None:
        if value is None:
            self.sha.update(b"n")
        elif isinstance(value, (bool, np.bool_)):
            self.sha.update(b"t" if value else b"f")
        elif isinstance(value, (int, np.integer)):
            self.number(int(value))
        elif isinstance(value, DType):
            self.sha.update(b"d")
            self.text(value.value)
        elif isinstance(value, str):
            self.text(value)
        elif isinstance(value, (tuple, list)):
            self.sha.update(f"({len(value)}".encode())
            for v in value:
                self.attribute(v)
        elif isinstance(value, np.ndarray):
            self.array(value)
        else:
            raise TypeError(f"an op attribute of type {type(value).__name__} cannot be hashed")

    def array(self, array: np.ndarray[Any, Any]) -> None:
        self.text(f"{DType.of(array.dtype).value}{list(array.shape)}")
        if is_splat(array):
            self.sha.update(b"*" + raw_bytes(array[(0,) * array.ndim][None]))
        else:
            self.sha.update(b"=" + raw_bytes(array))


def live_order(graph: Graph) -> tuple[Op, ...]:
    """The ops that count, each after what it uses, in an order set by the uses alone.

    Depth first from the outputs, then from ops with side effects in their given order.
    """
    done: dict[Op, None] = {}
    roots = [graph.producer[v] for v in graph.outputs if v in graph.producer]
    roots += [o for o in graph.ops if has_side_effect(o)]
    for root in roots:
        stack = [(root, False)]
        while stack:
            op, expanded = stack.pop()
            if expanded:
                done[op] = None
            elif op not in done:
                stack.append((op, True))
                stack.extend((graph.producer[v], False) for v in reversed(op.uses)
                             if v in graph.producer and graph.producer[v] not in done)
    return tuple(done)
