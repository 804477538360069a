"""Loads of a block of statements that wait together: values with flags, what is read beside them.

    if (c2 < 768) {
      const auto early0 = load_ro<float, 4>(p3 + c2);      at the begin of the block: all requests
      Asked<bf16, 4> asked0;
      asked0.ask(p0 + c2);
      Asked<bf16, 4> asked1;
      asked1.ask(p1 + c2);
      ...
      wait_for_all(asked0, p0 + c2, asked1, p1 + c2);      where the first of the values is used
      const Vec<float, 4> v66 = from<float>(asked0);

One after the other, each would wait for the L2 by itself, read-only ones behind the others.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

from jaxmono.codegen.emit import BodyEmitter, c_type
from jaxmono.codegen.names import compute
from jaxmono.codegen.writer import Block
from jaxmono.fusion.indexing import IndexMap, linearize
from jaxmono.hlo.ir import Value


@dataclass
class Together:
    """Binds the loads of an emitter.

    Attributes:
      waits: of each block of statements: how far behind its early lines the line is that waits,
        and what it waits for.
    """

    em: BodyEmitter
    pointers: Mapping[Value, str]
    waits: dict[Block, tuple[int, list[str]]] = field(default_factory=dict)

    def bind(self, flagged: Collection[Value], read_only: Collection[Value]) -> None:
        for v in flagged:
            self.em.bind_load(v, lambda index, lanes, v=v: self._flagged(v, index, lanes))
        for v in read_only:
            self.em.bind_load(v, lambda index, lanes, v=v: self._early(v, index, lanes))

    def _early(self, v: Value, index: IndexMap, lanes: int) -> str:
        at, fixed = self._at(v, index)
        text = f"load_ro<{_elements(compute(v.type.dtype), lanes)}>({at})"
        if not fixed:
            return text
        name = self.em.w.fresh("early")
        self.em.w.early(f"const auto {name} = {text};")
        return name

    def _flagged(self, v: Value, index: IndexMap, lanes: int) -> str:
        t = compute(v.type.dtype)
        at, fixed = self._at(v, index)
        if not fixed:
            return f"load<{_elements(t, lanes)}>({at})"
        w = self.em.w
        name = w.fresh("asked")
        w.early(f"Asked<{c_type(v.type.dtype)}, {lanes}> {name};")
        w.early(f"{name}.ask({at});")
        block = w.innermost
        if block not in self.waits:
            self.waits[block] = len(w.lines) - block.at, []
            w.line("wait_for_all();")
        behind, found = self.waits[block]
        found.append(f"{name}, {at}")
        k = block.at + behind
        w.lines[k] = w.lines[k].partition("wait_for_all(")[0] + f"wait_for_all({', '.join(found)});"
        return f"from<{t}>({name})" if lanes > 1 else f"convert<{t}>({name}.value(0))"

    def _at(self, v: Value, index: IndexMap) -> tuple[str, bool]:
        """The C pointer, and whether it can be known at the begin of the block."""
        offset = linearize(index, v.type.dims)
        return f"{self.pointers[v]} + {self.em.code(offset)}", offset.is_static


def _elements(t: str, lanes: int) -> str:
    return f"{t}, {lanes}" if lanes > 1 else t
