"""What has a C name where an emitter writes: in the block at hand and in those around it."""

from __future__ import annotations

from collections.abc import Generator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field

from jaxmono.codegen.errors import CodegenError
from jaxmono.codegen.index_code import VarCode, index_code
from jaxmono.codegen.names import compute, vector
from jaxmono.codegen.op_code import Emitted
from jaxmono.codegen.traverse import Lane
from jaxmono.codegen.writer import Writer
from jaxmono.fusion.indexing import Dyn, Index, IndexMap, Var
from jaxmono.hlo.ir import UNKNOWN_LOC, Op, Value
from jaxmono.hlo.types import DType


@dataclass
class _Scope:
    values: dict[tuple[Value, IndexMap], Emitted] = field(default_factory=dict)
    numbers: dict[Dyn, str] = field(default_factory=dict)
    texts: dict[str, str] = field(default_factory=dict)
    lane: str = ""
    """Inside a loop over the lanes: its variable. Values in such a scope are scalars."""
    read_if: str = ""
    """A C condition: where it does not hold, loads are of a buffer's first element."""


class Scopes:
    """The names that values, indices and Vars have, and the statements that give them.

    Args:
      w: where the statements go.
      var_names: C integer variables of Vars.
      lane: the Var that is vectorised, or None; its size must be a multiple of ``lanes``.
      lanes: values per vector.
    """

    def __init__(self, w: Writer, var_names: Mapping[Var, str], lane: Var | None, lanes: int,
                 ) -> None:
        self.w = w
        self.lanes = lanes if lane is not None else 1
        self.lane = Lane(lane or Var("none", 1), self.lanes)
        if self.lane.var.size % self.lanes:
            raise CodegenError(f"{self.lane.var.size} values of {self.lane.var.name} are no "
                               f"multiple of {self.lanes} lanes")
        self._names: dict[Var, VarCode] = {}
        self._scopes = [_Scope()]
        self._said = ""
        self.by_lane = False
        self.name_vars(var_names)

    def name_vars(self, var_names: Mapping[Var, str]) -> None:
        """Gives (or changes) the C variables that hold Vars."""
        for var, name in var_names.items():
            self._names[var] = VarCode(name)
            if self.lanes > 1 and var == self.lane.var:
                self._names[self.lane.high] = VarCode(name, self.lanes)

    def push_scope(self) -> None:
        """Begins a C block that the caller writes; what is emitted in it is not known after it."""
        around = self._scopes[-1]
        self._scopes.append(_Scope(lane=around.lane, read_if=around.read_if))

    def pop_scope(self) -> None:
        """Ends the block of `push_scope`."""
        self._scopes.pop()

    @contextmanager
    def reading_if(self, test: str) -> Generator[None]:
        """Loads in it are of a buffer's first element where the C condition ``test`` does not hold;
        what is emitted in it is not known after it."""
        assert not self.reads_if
        self.push_scope()
        self._scopes[-1].read_if = test
        try:
            yield
        finally:
            self.pop_scope()

    @contextmanager
    def lane_by_lane(self) -> Generator[None]:
        """Lanes are computed one after the other, without a loop, and read what is next to each
        other."""
        before, self.by_lane = self.by_lane, True
        try:
            yield
        finally:
            self.by_lane = before

    @property
    def reads_if(self) -> str:
        """The condition of `reading_if` around, or empty."""
        return self._scopes[-1].read_if

    @contextmanager
    def scope(self, head: str = "", *, pragma: str = "") -> Generator[None]:
        """A C block ``head { ... }``; what is emitted inside is not known after it."""
        if pragma:
            self.w.directive(f"#pragma {pragma}")
        self.push_scope()
        try:
            with self.w.block(head):
                yield
        finally:
            self.pop_scope()

    @contextmanager
    def _lane_loop(self) -> Generator[str]:
        name = self.w.fresh("l")
        with self.scope(f"for (int {name} = 0; {name} < {self.lanes}; ++{name})", pragma="unroll"):
            self._scopes[-1].lane = name
            yield name

    def once(self, kind: str, prefix: str, text: str, remark: str = "") -> str:
        """The C variable ``KIND PREFIX... = TEXT``, written unless there is one already."""
        for s in reversed(self._scopes):
            if (name := s.texts.get(f"{kind} {text}")) is not None:
                return name
        name = self._scopes[-1].texts[f"{kind} {text}"] = self.w.fresh(prefix)
        self.w.line(f"{kind} {name} = {text};", remark)
        return name

    def split(self, index: IndexMap) -> IndexMap:
        """``index`` over the two parts of the lane Var, as the emitter keeps it."""
        return tuple(self.lane.split(i) for i in index) if self.lanes > 1 else index

    def _code(self, index: Index) -> str:
        names = self._names
        if self.lanes > 1:
            lane = self._scopes[-1].lane
            if lane:
                names = {**names, self.lane.low: VarCode(lane)}
            else:  # the address of a vector is that of its first lane
                index = index.substitute({self.lane.low: Index()})
        return index_code(index, names, self._number)

    def _number(self, dyn: Dyn) -> str:
        for s in reversed(self._scopes):
            if dyn in s.numbers:
                return s.numbers[dyn]
        raise CodegenError(f"index {dyn} was not emitted before its use")

    def _in_lane(self, x: Emitted) -> str:
        return f"{x}.x[{self._scopes[-1].lane}]" if x.vector else x.name

    def _find(self, value: Value, index: IndexMap) -> Emitted | None:
        for s in reversed(self._scopes):
            x = s.values.get((value, index))
            if x is not None:
                if x.vector and self._scopes[-1].lane and not s.lane:
                    return Emitted(self._in_lane(x), False, x.exact)
                return x
        return None

    def _name(self, x: Emitted, dtype: DType, op: Op | None = None) -> Emitted:
        """Gives an expression a name."""
        name = self.w.fresh()
        self.w.line(f"const {self._type(dtype, x.vector)} {name} = {x};", self._remark(op))
        return Emitted(name, x.vector, x.exact)

    def _remark(self, op: Op | None) -> str:
        if op is None:
            return ""
        kind = getattr(op, "kind", op.opcode)
        place = "" if op.loc == UNKNOWN_LOC else str(op.loc)
        if place == self._said:
            return kind
        self._said = place
        return f"{kind}  {place}".rstrip()

    def _type(self, dtype: DType, wide: bool) -> str:
        return vector(compute(dtype), self.lanes if wide else 1)

    def widen(self, x: Emitted, wide: bool) -> str:
        return f"splat<{self.lanes}>({x})" if wide and not x.vector else x.name
