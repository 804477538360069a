"""Walks a StableHLO function and builds its Graph; calls and composites are inlined here,
but those of the random generator."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from jax.extend.mlir import ir

from jaxmono.hlo import ops
from jaxmono.hlo.importer import threefry
from jaxmono.hlo.importer.attributes import Attributes
from jaxmono.hlo.importer.generic import operation_text
from jaxmono.hlo.importer.locations import Locations
from jaxmono.hlo.importer.origin import Imported, Origin, captured
from jaxmono.hlo.importer.rules import Parts, rule_for
from jaxmono.hlo.importer.types import Types
from jaxmono.hlo.ir import UNKNOWN_LOC, Graph, Loc, Op, Value

_IDENTITIES = frozenset({"sdy.sharding_constraint", "sdy.reshard", "sdy.propagation_barrier"})
"""Ops that say where a value lives and not what it is; so does a custom call "Sharding"."""
_RETURNS = frozenset({"func.return", "stablehlo.return"})
_COMPOSITES = frozenset({"chlo.top_k"})
"""Composites that are kept as the op that they name; the others are inlined."""


def import_module(module: ir.Module, name: str = "main") -> Imported:
    """The Graph of a module's function ``name``, everything it calls inlined.

    Raises:
      KeyError: if the module has no such function.
    """
    functions = module_functions(module)
    if name not in functions:
        raise KeyError(f"the module has no function {name!r}; it has {sorted(functions)}")
    return import_function(functions[name], functions)


def import_function(function: ir.Operation | ir.OpView,
                    functions: Mapping[str, ir.Operation] | ir.Module) -> Imported:
    """The Graph of one ``func.func``, everything it calls inlined.

    Args:
      function: the func op, with a body of one block.
      functions: what its calls name: the module, or its functions by name.

    Returns:
      The Graph as the module has it (no pass has run), with one origin per op. An op that has
      no class here is imported as `ops.Unknown`; nothing that MLIR accepts is refused.
    """
    if isinstance(functions, ir.Module):
        functions = module_functions(functions)
    return _Importer(functions).function(function.operation)


def module_functions(module: ir.Module) -> dict[str, ir.Operation]:
    """The ``func.func`` ops of a module by symbol name."""
    return {ir.StringAttr(o.operation.attributes["sym_name"]).value: o.operation
            for o in module.body.operations if o.operation.name == "func.func"}


class _Importer:
    def __init__(self, functions: Mapping[str, ir.Operation]) -> None:
        self.functions = functions
        self.locations = Locations()
        self.types = Types()
        self.out: list[Op] = []
        self.origins: list[Origin] = []
        self.generators: dict[str, bool] = {}
        self.literals: dict[Value, Any] = {}  # elements of scalar constants

    def function(self, function: ir.Operation) -> Imported:
        block = function.regions[0].blocks[0]
        scope: dict[ir.Value[Any], Value] = {}
        inputs = self.define(block.arguments, scope, hints=True)
        outputs = self.block(block, scope, UNKNOWN_LOC)
        name = ir.StringAttr(function.attributes["sym_name"]).value
        return Imported(Graph(inputs, tuple(self.out), outputs, name), tuple(self.origins))

    def define(self, values: ir.BlockArgumentList | ir.OpResultList[Any],
               scope: dict[ir.Value[Any], Value], *, hints: bool = False) -> tuple[Value, ...]:
        made: list[Value] = []
        for v in values:
            hint = self.locations.loc(v.location).name if hints else ""
            scope[v] = new = Value(self.types.tensor(v.type), hint)
            made.append(new)
        return tuple(made)

    def block(self, block: ir.Block, scope: dict[ir.Value[Any], Value],
              outer: Loc) -> tuple[Value, ...]:
        """Appends the block's ops to ``out``; returns what it returns."""
        for view in block.operations:
            op = view.operation
            if op.name in _RETURNS:
                return tuple(scope[v] for v in op.operands)
            self.operation(op, scope, outer)
        return ()

    def operation(self, op: ir.Operation, scope: dict[ir.Value[Any], Value], outer: Loc) -> None:
        if op.name in ("func.call", "stablehlo.composite") and self.call(op, scope, outer):
            return
        if op.name in ("stablehlo.case", "stablehlo.if") and self.known_branch(op, scope, outer):
            return
        args = tuple(scope[v] for v in op.operands)
        if _is_identity(op):
            scope.update(zip(op.results, args, strict=True))
            return
        attributes = Attributes(op.attributes)
        types = tuple(self.types.tensor(v.type) for v in op.results)
        loc = self.locations.loc(op.location, outer)
        rule = rule_for(op.name, types, args)
        if op.name == "stablehlo.composite":
            rule = rule_for(attributes.string("name"), types, args)
            attributes = attributes.dictionary("composite_attributes")
        captures = self.captures(op, scope)
        results = tuple(Value(t) for t in types)
        regions: dict[int, Imported] = {}

        def region(i: int, name: str) -> Graph:
            regions[i] = self.region(op.regions[i], name, scope, outer)
            return regions[i].graph

        if rule is None:
            uses = (*args, *(v for _, v in captures))
            text = operation_text(op, self.functions)
            made: Op = ops.Unknown(results=results, loc=loc, args=uses, name=op.name, text=text)
        else:
            cls, fields = rule
            parts = Parts(op, args, types, attributes, region, self.functions)
            made = cls(results=results, loc=loc, **fields(parts))
        scope.update(zip(op.results, results, strict=True))
        self.out.append(made)
        if isinstance(made, ops.Constant) and not made.result.type.dims:
            self.literals[made.result] = made.value.item()
        inside = tuple(regions[i] for i in sorted(regions))
        self.origins.append(Origin(op, args, captures, inside))

    def captures(self, op: ir.Operation,
                 scope: Mapping[ir.Value[Any], Value]) -> tuple[tuple[ir.Value[Any], Value], ...]:
        if not len(op.regions):
            return ()
        return tuple((v, scope[v]) for v in captured(op, lambda v: v in scope))

    def region(self, region: ir.Region, name: str, scope: dict[ir.Value[Any], Value],
               outer: Loc) -> Imported:
        """A region as a Graph that captures from ``scope``."""
        kept = self.out, self.origins
        self.out, self.origins = [], []
        block = region.blocks[0]
        inputs = self.define(block.arguments, scope)
        outputs = self.block(block, scope, outer)
        imported = Imported(Graph(inputs, tuple(self.out), outputs, name), tuple(self.origins))
        self.out, self.origins = kept
        return imported

    def call(self, op: ir.Operation, scope: dict[ir.Value[Any], Value], outer: Loc) -> bool:
        """Inlines a call or a composite's decomposition; False where there is nothing to."""
        attributes = Attributes(op.attributes)
        composite = op.name == "stablehlo.composite"
        if composite and attributes.string("name") in _COMPOSITES:
            return False
        callee = self.functions.get(attributes.symbol("decomposition" if composite else "callee"))
        if callee is None or not len(callee.regions[0].blocks):
            return False
        loc = self.locations.loc(op.location, outer)
        if self.is_threefry(callee):
            args = tuple(scope[v] for v in op.operands)
            results = tuple(Value(self.types.tensor(v.type)) for v in op.results)
            scope.update(zip(op.results, results, strict=True))
            self.out.append(ops.Threefry2x32(
                results=results, loc=loc, key0=args[0], key1=args[1], count0=args[2],
                count1=args[3]))
            self.origins.append(Origin(op, args))
            return True
        block = callee.regions[0].blocks[0]
        inner = {a: scope[v] for a, v in zip(block.arguments, op.operands, strict=True)}
        outputs = self.block(block, inner, loc)
        scope.update(zip(op.results, outputs, strict=True))
        return True

    def known_branch(self, op: ir.Operation, scope: dict[ir.Value[Any], Value],
                     outer: Loc) -> bool:
        """Inlines the branch that runs whatever the arguments are: jnp.diagonal has one for an
        offset that Python knows. False where there is none."""
        if scope[op.operands[0]] not in self.literals:
            return False
        index = self.literals[scope[op.operands[0]]]
        if op.name == "stablehlo.if":
            chosen = 0 if index else 1
        else:  # an index out of range means the last branch
            chosen = index if 0 <= index < len(op.regions) else len(op.regions) - 1
        outputs = self.block(op.regions[chosen].blocks[0], scope, outer)
        scope.update(zip(op.results, outputs, strict=True))
        return True

    def is_threefry(self, function: ir.Operation) -> bool:
        """Whether a function is the random generator, which is kept as one op."""
        name = ir.StringAttr(function.attributes["sym_name"]).value
        if not name.startswith(threefry.NAME):
            return False
        if name not in self.generators:
            self.generators[name] = threefry.is_threefry(
                _Importer(self.functions).function(function).graph)
        return self.generators[name]


def _is_identity(op: ir.Operation) -> bool:
    if op.name == "stablehlo.custom_call":
        return Attributes(op.attributes).string("call_target_name") == "Sharding"
    return op.name in _IDENTITIES
