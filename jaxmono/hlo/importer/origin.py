"""Where a Graph op came from in MLIR, and how to emit the MLIR op again elsewhere."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from jax.extend.mlir import ir

from jaxmono.hlo.ir import Graph, Value


@dataclass(frozen=True, eq=False)
class Origin:
    """The MLIR op behind one Graph op.

    An op of a function that is called twice is the origin of two Graph ops, each with its own
    operands.

    Attributes:
      operation: the MLIR op; alive as long as its module and function are.
      operands: the Graph values of ``operation.operands``, in that order.
      captures: MLIR values that its regions use from outside, with their Graph values.
      regions: what the op's regions were imported as, in MLIR's order.
    """

    operation: ir.Operation
    operands: tuple[Value, ...]
    captures: tuple[tuple[ir.Value[Any], Value], ...] = ()
    regions: tuple[Imported, ...] = ()

    def clone(self, values: Mapping[Value, ir.Value[Any]],
              insertion_point: ir.InsertionPoint | None = None) -> ir.Operation:
        """Emits the op again, on other operands.

        Args:
          values: the MLIR value to use for each of ``operands`` and captured values.
          insertion_point: where; by default the current one.

        Returns:
          The new op, whose results are in the order of the Graph op's results. Functions that
          its regions or attributes name must exist in the module it is put into.
        """
        new = self.operation.clone(ip=insertion_point)
        for i, v in enumerate(self.operands):
            new.operands[i] = values[v]
        if self.captures:
            inner = {old: values[v] for old, v in self.captures}
            for region in new.regions:
                _replace_uses(region, inner)
        return new

    def remap(self, mapping: Mapping[Value, Value]) -> Origin:
        """That of a copy of the Graph op on mapped values."""
        return replace(self, operands=tuple(mapping.get(v, v) for v in self.operands),
                       captures=tuple((old, mapping.get(v, v)) for old, v in self.captures),
                       regions=tuple(r.remap(mapping) for r in self.regions))


@dataclass(frozen=True, eq=False)
class Imported:
    """A Graph and, parallel to ``graph.ops``, the origin of each op.

    Attributes:
      donated: (output, input) pairs of the graph that the caller wants in one buffer.
    """

    graph: Graph
    origins: tuple[Origin, ...]
    donated: tuple[tuple[int, int], ...] = ()

    def remap(self, mapping: Mapping[Value, Value]) -> Imported:
        """With values mapped that are read here or inside."""
        if not mapping:
            return self
        graph = self.graph
        return replace(self, origins=tuple(o.remap(mapping) for o in self.origins), graph=Graph(
            graph.inputs, tuple(o.clone(mapping) for o in graph.ops),
            tuple(mapping.get(v, v) for v in graph.outputs), graph.name))


def _replace_uses(region: ir.Region, values: Mapping[ir.Value[Any], ir.Value[Any]]) -> None:
    for block in region.blocks:
        for view in block.operations:
            op = view.operation
            for i, v in enumerate(op.operands):
                if v in values:
                    op.operands[i] = values[v]
            for nested in op.regions:
                _replace_uses(nested, values)


def captured(op: ir.Operation, known: Callable[[ir.Value[Any]], bool]) -> tuple[ir.Value[Any], ...]:
    """The values that the regions of ``op`` use and that are ``known`` outside, each once."""
    out: dict[ir.Value[Any], None] = {}

    def visit(region: ir.Region) -> None:
        for block in region.blocks:
            for view in block.operations:
                inner = view.operation
                out.update((v, None) for v in inner.operands if known(v))
                for nested in inner.regions:
                    visit(nested)

    for region in op.regions:
        visit(region)
    return tuple(out)
