"""Typed SSA: Value, Op, Graph.

Everything is immutable. A Value has identity, not structure: two Values of equal type are
different values. An Op declares its operands, attributes and regions as dataclass fields
(`operand()`, `operands()`, `attribute()`, `region()`), and printing, parsing, verification,
cloning and hashing derive from those declarations; no pass knows an op's fields by heart.
A Graph lists its ops in topological order. A rewrite builds a new Graph; `rewrite.py` helps.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache, cached_property
from typing import Any, ClassVar, TypeVar, dataclass_transform

from jaxmono.hlo.types import TensorType


@dataclass(frozen=True)
class Loc:
    """Where a user's program made an op: ``file:line (name)``; any part may be unknown."""

    file: str = ""
    line: int = 0
    name: str = ""

    def __str__(self) -> str:
        place = f"{self.file}:{self.line}" if self.file else "<unknown>"
        return f"{place} ({self.name})" if self.name else place


UNKNOWN_LOC = Loc()


class Value:
    """One SSA value. Compared by identity; ``hint`` is only for printing."""

    __slots__ = ("hint", "type")

    def __init__(self, type: TensorType, hint: str = "") -> None:
        self.type = type
        self.hint = hint

    def __repr__(self) -> str:
        return f"<{self.hint or 'v'}:{self.type}>"


_KIND = "jaxmono.kind"


def operand() -> Any:
    """Declares a field that holds one Value."""
    return dataclasses.field(metadata={_KIND: "operand"})


def operands() -> Any:
    """Declares a field that holds a tuple of Values."""
    return dataclasses.field(metadata={_KIND: "operands"})


def attribute(default: Any = dataclasses.MISSING) -> Any:
    """Declares a compile-time field: int, str, bool, tuple of those, DType, ndarray or None."""
    return dataclasses.field(default=default, metadata={_KIND: "attribute"})


def region() -> Any:
    """Declares a field that holds a Graph whose free Values belong to the enclosing Graph."""
    return dataclasses.field(metadata={_KIND: "region"})


def regions() -> Any:
    """Declares a field that holds a tuple of Graphs."""
    return dataclasses.field(metadata={_KIND: "regions"})


@dataclass(frozen=True, eq=False, kw_only=True)
class Op:
    """Base of all ops. ``opcode`` is the StableHLO (or CHLO) name without its dialect."""

    opcode: ClassVar[str] = ""
    results: tuple[Value, ...]
    loc: Loc = UNKNOWN_LOC

    @classmethod
    def declared(cls, *kinds: str) -> tuple[dataclasses.Field[Any], ...]:
        """The fields declared with the given kinds, in declaration order."""
        return _declared(cls, kinds)

    @property
    def result(self) -> Value:
        if len(self.results) != 1:
            raise ValueError(f"{self.opcode} has {len(self.results)} results, not one")
        return self.results[0]

    @cached_property
    def inputs(self) -> tuple[Value, ...]:
        """All operands in declaration order, variadic fields flattened (no captures)."""
        out: list[Value] = []
        for f in self.declared("operand", "operands"):
            v = getattr(self, f.name)
            out.extend(v if isinstance(v, tuple) else (v,))
        return tuple(out)

    @property
    def attributes(self) -> dict[str, Any]:
        return {f.name: getattr(self, f.name) for f in self.declared("attribute")}

    @cached_property
    def subgraphs(self) -> tuple[Graph, ...]:
        out: list[Graph] = []
        for f in self.declared("region", "regions"):
            g = getattr(self, f.name)
            out.extend(g if isinstance(g, tuple) else (g,))
        return tuple(out)

    @cached_property
    def uses(self) -> tuple[Value, ...]:
        """Operands and then the values that the regions capture from outside."""
        captured: dict[Value, None] = {}
        for g in self.subgraphs:
            captured.update(dict.fromkeys(g.captures))
        return self.inputs + tuple(captured)

    def clone(self, mapping: Mapping[Value, Value], *, fresh_results: bool = False) -> Op:
        """The same op on mapped operands (a Value not in ``mapping`` stays itself).

        Args:
          mapping: old Value to new Value; applied to captures inside regions too.
          fresh_results: make new result Values instead of keeping the old ones.
        """
        changes: dict[str, Any] = {}
        for f in self.declared("operand"):
            changes[f.name] = mapping.get(getattr(self, f.name), getattr(self, f.name))
        for f in self.declared("operands"):
            changes[f.name] = tuple(mapping.get(v, v) for v in getattr(self, f.name))
        for f in self.declared("region"):
            changes[f.name] = getattr(self, f.name).remap(mapping)
        for f in self.declared("regions"):
            changes[f.name] = tuple(g.remap(mapping) for g in getattr(self, f.name))
        if fresh_results:
            changes["results"] = tuple(Value(v.type, v.hint) for v in self.results)
        return dataclasses.replace(self, **changes)


@cache
def _declared(cls: type[Op], kinds: tuple[str, ...]) -> tuple[dataclasses.Field[Any], ...]:
    return tuple(f for f in dataclasses.fields(cls) if f.metadata.get(_KIND) in kinds)


OpT = TypeVar("OpT", bound=Op)


@dataclass_transform(kw_only_default=True, frozen_default=True, eq_default=False,
                     field_specifiers=(operand, operands, attribute, region, regions))
def op(opcode: str) -> Callable[[type[OpT]], type[OpT]]:
    """Class decorator that makes an Op subclass a frozen dataclass and registers its opcode."""

    def wrap(cls: type[OpT]) -> type[OpT]:
        cls.opcode = opcode
        made = dataclass(frozen=True, eq=False, kw_only=True)(cls)
        if opcode in REGISTRY:
            raise ValueError(f"opcode {opcode!r} is registered twice")
        REGISTRY[opcode] = made
        return made

    return wrap


REGISTRY: dict[str, type[Op]] = {}


@dataclass(frozen=True, eq=False)
class Graph:
    """A program or a region: inputs, ops in topological order, outputs.

    Attributes:
      inputs: parameters; the body may also use Values of an enclosing Graph (`captures`).
      ops: every op after the ops that define what it uses.
      outputs: may repeat a Value, and may be an input.
      name: for printing only; not part of the fingerprint.
    """

    inputs: tuple[Value, ...]
    ops: tuple[Op, ...]
    outputs: tuple[Value, ...]
    name: str = "main"

    @cached_property
    def producer(self) -> dict[Value, Op]:
        return {v: o for o in self.ops for v in o.results}

    @cached_property
    def users(self) -> dict[Value, tuple[Op, ...]]:
        """Ops that use a Value as operand or capture, each once, in order."""
        out: dict[Value, dict[Op, None]] = {}
        for o in self.ops:
            for v in o.uses:
                out.setdefault(v, {})[o] = None
        return {v: tuple(os) for v, os in out.items()}

    @cached_property
    def captures(self) -> tuple[Value, ...]:
        """Values used here (nested regions included) that are defined outside."""
        known: set[Value] = set(self.inputs)
        free: dict[Value, None] = {}
        for o in self.ops:
            for v in o.uses:
                if v not in known:
                    free[v] = None
            known.update(o.results)
        for v in self.outputs:
            if v not in known:
                free[v] = None
        return tuple(free)

    def remap(self, mapping: Mapping[Value, Value]) -> Graph:
        """This graph with captured Values mapped; itself when nothing changes."""
        if not any(v in mapping for v in self.captures):
            return self
        return Graph(self.inputs, tuple(o.clone(mapping) for o in self.ops),
                     tuple(mapping.get(v, v) for v in self.outputs), self.name)

    def walk(self) -> Iterator[Op]:
        """All ops, those of nested regions after their parent."""
        for o in self.ops:
            yield o
            for g in o.subgraphs:
                yield from g.walk()
