"""Demand-driven code for a body: the C++ statements that compute a value at a symbolic index.

    em = BodyEmitter(w, body, {x: "p0"}, lane=c, lanes=4, var_names={r: "row", c: "col"})
    y = em.emit(body.outputs[0], (Index.of(r), Index.of(c)))

writes

    const Vec<float, 4> v0 = load<float, 4>(p0 + 768 * row + col);
    const Vec<float, 4> v1 = v_tanh(v0);  // tanh  bert.py:41

Movement ops cost nothing: they rewrite the index. Every (value, index) is computed once per scope.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace

import numpy as np

from jaxmono.codegen.alternating import emit_alternating
from jaxmono.codegen.errors import CodegenError, refuse
from jaxmono.codegen.every_second import load_every_second
from jaxmono.codegen.finder import Finder, Whole
from jaxmono.codegen.index_code import fits_int, guard_code
from jaxmono.codegen.joined import Joined, emit_address, joined
from jaxmono.codegen.joined_views import emit_place
from jaxmono.codegen.names import (
    FlaggedName,
    compute,
    is_narrow,
    literal,
    storage,
    stored_literal,
)
from jaxmono.codegen.narrowed import is_narrowed, needs_no_rounding
from jaxmono.codegen.neighbours import Vectors, load_near, neighbours
from jaxmono.codegen.op_code import Emitted, call, expression
from jaxmono.codegen.rarely_outside import computed_everywhere
from jaxmono.codegen.scopes import Scopes
from jaxmono.codegen.serial_reduce import serial_reduce
from jaxmono.codegen.traverse import (
    GUARDED,
    Access,
    Root,
    access,
    alternatives,
    dynamics,
    operands,
    uniform_guard,
    vector_width,
)
from jaxmono.codegen.whole import whole
from jaxmono.codegen.writer import Writer
from jaxmono.fusion.demand import Demand, Guard
from jaxmono.fusion.indexing import Index, IndexMap, Var, linearize
from jaxmono.hlo import ops
from jaxmono.hlo.ir import Graph, Op, Value
from jaxmono.hlo.rewrite import is_splat, splat_value
from jaxmono.hlo.types import FOUR_BITS, DType

__all__ = ["BodyEmitter", "Emitted", "c_type", "vector_width"]

c_type = storage

Load = Callable[[IndexMap, int], str]
"""``load(index, lanes)``: a C expression of type ``compute(dtype)``, or a Vec of that, for the
element at ``index`` (of the first lane: write it with `BodyEmitter.code`) and its right neighbours
along the lane Var."""

_TABLE_BYTES = 1 << 16


class BodyEmitter(Scopes):
    """Emits C++ statements that compute a body's values at symbolic indices.

    Args:
      w: where the statements go (assign `w` to continue elsewhere).
      body: the graph; regions of its reduces included.
      params: C pointers of the body's inputs, of type ``const storage(dtype)*``.
      lane: the Var that is vectorised, or None; its size must be a multiple of ``lanes``.
      lanes: values per vector. A value that differs between lanes is emitted as
        ``Vec<compute(dtype), lanes>``, the others as scalars.
      var_names: C integer variables. That of ``lane`` holds the first lane, a
        multiple of ``lanes``.
      read_only: inputs that nothing in this launch writes (non-coherent loads).
      inline_reduces: compute a reduce by a serial loop where it is demanded and not bound.
    """

    def __init__(self, w: Writer, body: Graph, params: Mapping[Value, str], *,
                 lane: Var | None = None, lanes: int = 1, var_names: Mapping[Var, str],
                 read_only: Iterable[Value] = (), inline_reduces: bool = False) -> None:
        super().__init__(w, var_names, lane, lanes)
        self.body = body
        self.params = dict(params)
        self.read_only = frozenset(read_only)
        self.inline_reduces = inline_reduces
        self._producer = dict(body.producer)
        self._bound: set[Value] = set()
        self._loads: dict[Value, Load] = {}
        self.reads = 0  # statements that read an element, or a vector
        self.vectors: Vectors = {}

    # ---- what is known from outside ------------------------------------------------------------

    def bind(self, value: Value, index: IndexMap, name: str, *, vector: bool | None = None,
             exact: bool | None = None) -> None:
        """``value`` at exactly ``index`` is the C variable ``name``, of type ``compute(dtype)``.

        Args:
          vector: the variable is a Vec over the lanes; by default if ``index`` uses the lane.
          exact: see `Emitted`; by default False for f16 and bf16, True otherwise.

        A later demand of ``value`` at an index that is not bound raises CodegenError.
        """
        at = self.split(index)
        wide = self.lane.varies(at) if vector is None else vector
        whole = not is_narrow(value.type.dtype) if exact is None else exact
        self._bound.add(value)
        self._scopes[-1].values[value, at] = Emitted(name, wide, whole)

    def bind_load(self, value: Value, load: Load) -> None:
        """The elements of ``value`` come from ``load`` (shared memory, say), at any index."""
        self._loads[value] = load

    def bind_again(self, value: Value, index: IndexMap, x: Emitted) -> None:
        """Like `bind` for this scope only; at other indices the value is computed as ever."""
        self._scopes[-1].values[value, self.split(index)] = x

    def expect(self, reads: Iterable[Root]) -> None:
        """All of ``reads`` will be read: neighbours among them are loaded together."""
        self.vectors = neighbours(((v, self.split(at)) for v, at in reads), self.lane)

    def is_source(self, value: Value) -> bool:
        """Whether elements of ``value`` are read or bound rather than computed."""
        return value in self.params or value in self._loads or value in self._bound

    def buffer(self, value: Value) -> str | None:
        """The C pointer of ``value``, if its elements lie at their places in memory."""
        return None if value in self._loads or value in self._bound else self.params.get(value)

    # ---- what the caller asks for --------------------------------------------------------------

    def emit(self, value: Value, index: IndexMap) -> Emitted:
        """Emits what is missing and gives the C name of ``value`` at ``index``.

        Raises:
          CodegenError: a bound value is demanded elsewhere, or an op has no code.
        """
        return self._emit(value, self.split(index))

    def known(self, value: Value, index: IndexMap) -> Emitted | None:
        """The C name if ``value`` at ``index`` has been emitted or bound here, else None."""
        return self._find(value, self.split(index))

    def code(self, index: Index) -> str:
        """``index`` as a C expression (of the first lane); emits the indices it reads."""
        at = self.split((index,))
        self._emit_dynamics(at)
        return self._code(at[0])

    def rounded(self, x: Emitted, dtype: DType) -> Emitted:
        """``x`` rounded to ``dtype``, still in registers as float."""
        if x.exact or not is_narrow(dtype):
            return x
        return self._name(Emitted(f"rounded<{storage(dtype)}>({x})", x.vector), dtype)

    def unrounded(self, value: Value) -> Value:
        """What to store for ``value``: what it is rounded from, if its op does only that. The store
        rounds as well, and packs pairs in the same instruction; apart it takes two more."""
        op = self.body.producer.get(value)
        if isinstance(op, ops.Convert) and value.type.dtype in (DType.BF16, DType.F16) \
                and op.operand.type.dtype is DType.F32 and not self.body.users.get(value):
            return op.operand
        return value

    def store(self, pointer: str, offset: Index, value: Emitted | str, dtype: DType, *,
              wanted: str = "", whole: bool = False, together: int = 0) -> None:
        """Writes ``value`` (all lanes of it) to elements ``offset`` of ``pointer``, if the C
        expression ``wanted`` holds. ``whole``: vectors in one instruction (`store_whole`), after
        which this thread reads nothing of them before a barrier; so it is with ``wanted``.
        ``together``: so many threads of a warp have neighbouring vectors of a row, which begins
        anywhere (device/staggered.cuh); all threads of the warp are here."""
        x = value if isinstance(value, Emitted) else Emitted(value, self.lanes > 1)
        (at,) = self.split((offset,))
        self._emit_dynamics((at,))
        pattern = access(at, self.lane)
        t = storage(dtype)
        if together:
            whole_x = x if x.vector else f"splat<{self.lanes}>({x})"
            self.w.line(f"store_staggered<{t}, {together}>({pointer} + {self._code(at)}, "
                        f"{whole_x}, {wanted or 'true'});")
            return
        if pattern is Access.CONTIGUOUS:
            kind = "_if" if wanted else "_whole" if whole else ""
            self.w.line(f"store{kind}<{t}, {self.lanes}>({pointer} + {self._code(at)}, {x}"
                        f"{f', {wanted}' if wanted else ''});")
            return
        branch = f"if ({wanted}) " if wanted else ""
        if pattern is Access.UNIFORM and not x.vector:
            self.w.line(f"{branch}store<{t}>({pointer} + {self._code(at)}, {x});")
        else:
            with self._lane_loop():
                self._emit_dynamics((at,))
                self.w.line(f"{branch}store<{t}>({pointer} + {self._code(at)}, "
                            f"{self._in_lane(x)});")

    def region(self, graph: Graph, inputs: Sequence[Emitted]) -> list[Emitted]:
        """Applies a scalar region (a reducer) to values; emits into the current C block."""
        self._producer.update(graph.producer)
        self.push_scope()
        for v, x in zip(graph.inputs, inputs, strict=True):
            self._scopes[-1].values[v, ()] = x
        out = [self._emit(v, ()) for v in graph.outputs]
        self.pop_scope()
        return out

    # ---- emission ------------------------------------------------------------------------------

    def _emit(self, value: Value, index: IndexMap) -> Emitted:
        # An explicit stack: bodies may be longer than Python's recursion limit.
        work = [(value, index)]
        while work:
            v, at = work[-1]
            if self._find(v, at) is not None:
                work.pop()
                continue
            missing = [k for k in self._needs(v, at) if self._find(*k) is None]
            if missing:
                work.extend(reversed(missing))
                continue
            work.pop()
            self._scopes[-1].values[v, at] = self._define(v, at)
        found = self._find(value, index)
        assert found is not None
        return found

    def _needs(self, value: Value, index: IndexMap) -> list[tuple[Value, IndexMap]]:
        """What has to exist before `_define`; alternatives are emitted inside their branches."""
        if value in self._bound:
            at = ", ".join(map(str, index))
            raise CodegenError(f"{value!r} is at hand at another index than [{at}]; its group "
                               "should not have been formed")
        if value in self._loads or value in self.params:
            return [(d.value, d.index) for d in dynamics(index)]
        op = self._producer.get(value)
        if op is None:
            raise CodegenError(f"{value!r} is neither computed by the body nor one of its inputs")
        if isinstance(op, ops.Reduce):
            return []
        if (found := self._whole(op)) is not None:
            return [(v, index) for v in found.operands]
        needs = operands(op, value, index)
        if needs is None:
            raise refuse(op, "it cannot be computed element by element")
        if len(needs) > 1 and isinstance(op, GUARDED):
            bounds = [x for d in needs for x, _, _ in d.guard.bounds]
            return [(d.value, d.index) for d in dynamics(bounds)]
        own = dynamics(index) if isinstance(op, (ops.Iota, ops.Constant)) else ()
        return [(d.value, d.index) for d in (*needs, *own)]

    def _emit_dynamics(self, index: Iterable[Index]) -> None:
        """Makes the int variables of all indices read from memory, inner ones first."""
        for dyn in dynamics(index):
            if any(dyn in s.numbers for s in self._scopes):
                continue
            self._emit_dynamics(dyn.index)
            x = self._emit(dyn.value, dyn.index)
            if x.vector and not self._scopes[-1].lane:
                continue  # differs between lanes: only a loop over the lanes needs it
            t = "int" if fits_int(Index((), dyn.high)) else "long long"
            name = self.w.fresh("i")
            self.w.line(f"const {t} {name} = clamp_index<{t}>({x}, {dyn.low}, {dyn.high});")
            self._scopes[-1].numbers[dyn] = name

    def _define(self, value: Value, index: IndexMap) -> Emitted:
        if value in self._loads:
            return self._custom_load(value, index)
        if value in self.params:
            offset = linearize(index, value.type.dims)
            return self._load(self.params[value], offset, value, value in self.read_only)
        op = self._producer[value]
        if isinstance(op, ops.Constant):
            return self._constant(op, index)
        if isinstance(op, ops.Iota):
            return self._iota(op, index)
        if isinstance(op, ops.Reduce):
            if not self.inline_reduces:
                raise refuse(op, "its reduce is not at hand where it is demanded")
            return serial_reduce(self, op, value, index)
        if (found := self._whole(op)) is not None:
            xs = [x for v in found.operands if (x := self._find(v, index))]
            assert len(xs) == len(found.operands)
            return self._name(call(found.function, xs, *found.constants), value.type.dtype, op)
        needs = operands(op, value, index)
        assert needs is not None
        if isinstance(op, GUARDED) and len(needs) > 1:
            return self._choose(op, value, index)
        args = [self._find(d.value, d.index) for d in needs]
        present = [a for a in args if a is not None]
        assert len(present) == len(args)
        if isinstance(op, GUARDED) or _only_moves(op):
            return present[0]
        if isinstance(op, ops.Convert) and needs_no_rounding(self.body, op):
            return replace(present[0], exact=False)
        x = expression(op, present, self.rounded, lambda v: is_narrowed(self.body, v))
        return x if x in present else self._name(x, value.type.dtype, op)

    def _whole(self, op: Op) -> Whole | None:
        """The op as one function with ops behind it (whole.py)."""
        def inner(v: Value) -> bool:
            return computed(v) and v not in self.body.outputs \
                and len(self.body.users.get(v, ())) < 2

        def computed(v: Value) -> bool:
            return not self.is_source(v)

        return whole(op, Finder(self._producer, computed, inner))

    def _load(self, pointer: str, offset: Index, value: Value, read_only: bool) -> Emitted:
        dtype = value.type.dtype
        pattern, in_lane = access(offset, self.lane), self._scopes[-1].lane
        if in_lane or pattern in (Access.CONTIGUOUS, Access.UNIFORM):
            self._emit_dynamics((offset,))
            at, test = self._code(offset), self.reads_if
            if not in_lane and (x := load_near(self, pointer, offset, value, read_only)):
                return self._name(x, dtype)
            at = f"({test} ? {at} : 0)" if test and at != "0" else at
            return self._read(f"{pointer} + {at}", dtype,
                              pattern is Access.CONTIGUOUS and not in_lane, read_only)
        if (x := load_every_second(self, pointer, offset, value, read_only)) is not None:
            return x
        return self._per_lane(dtype, lambda: self._load(pointer, offset, value, read_only))

    def _custom_load(self, value: Value, index: IndexMap) -> Emitted:
        dtype, load = value.type.dtype, self._loads[value]
        in_lane = bool(self._scopes[-1].lane)
        varying = [i for i in index if self.lane.varies((i,))]
        if not varying or in_lane:
            self._emit_dynamics(index)
            return self._name(Emitted(load(index, 1)), dtype)
        if len(varying) == 1 and access(varying[0], self.lane) is Access.CONTIGUOUS:
            self._emit_dynamics(index)
            return self._name(Emitted(load(index, self.lanes), True), dtype)
        return self._per_lane(dtype, lambda: self._custom_load(value, index))

    def _constant(self, op: ops.Constant, index: IndexMap) -> Emitted:
        dtype = op.result.type.dtype
        if is_splat(op.value):
            return Emitted(literal(splat_value(op.value), dtype))
        if op.value.nbytes > _TABLE_BYTES:
            raise refuse(op, f"{op.value.nbytes} bytes of literal; pass it as an argument")
        flat = np.ascontiguousarray(op.value).reshape(-1)
        items = ", ".join(stored_literal(x, dtype) for x in flat)
        t = storage(dtype)
        table = self.w.declare(f"{dtype}{flat.tobytes()!r}", "table",
                               f"JM_TABLE {t} {{name}}[{flat.size}] = {{{items}}};")
        return self._load(table, linearize(index, op.result.type.dims), op.result, False)

    def _iota(self, op: ops.Iota, index: IndexMap) -> Emitted:
        x, dtype = index[op.dimension], op.result.type.dtype
        t = compute(dtype)
        self._emit_dynamics((x,))
        make = f"rounded<{storage(dtype)}>" if is_narrow(dtype) else f"convert<{t}>"
        if not self.lane.varies((x,)) or self._scopes[-1].lane:
            return self._name(Emitted(f"{make}({self._code(x)})"), dtype, op)
        step = x.coefficient(self.lane.low)
        if (x - Index.of(self.lane.low) * step).depends_on(self.lane.low):
            return self._per_lane(dtype, lambda: self._iota(op, index))
        text = f"{make}(lane_steps<{self.lanes}>({self._code(x)}, {step}))"
        return self._name(Emitted(text, True), dtype, op)

    # ---- branches and loops --------------------------------------------------------------------

    def _per_lane(self, dtype: DType, make: Callable[[], Emitted]) -> Emitted:
        """A Vec whose lanes are computed one by one, as scalars."""
        name = self.w.fresh()
        self.w.line(f"{self._type(dtype, True)} {name};")
        with self._lane_loop() as lane:
            x = make()
            self.w.line(f"{name}.x[{lane}] = {x};")
        return Emitted(name, True, x.exact)

    def _choose(self, op: Op, value: Value, index: IndexMap) -> Emitted:
        """if / else over the alternatives of pad, concatenate, dynamic_update_slice."""
        dtype = value.type.dtype
        choices = alternatives(op, index)
        guards = [uniform_guard(c.guard, self.lane) for c in choices]
        in_lane = self._scopes[-1].lane
        if self.lanes > 1 and not in_lane and any(g is None for g in guards):
            return emit_alternating(self, op, value, index) or self._per_lane(
                dtype, lambda: self._choose(op, value, index))
        if (x := self._padded(op, value, index, choices) or self._part(op, index)) is not None:
            return x
        if isinstance(op, ops.Concatenate) and (place := emit_place(
                self, value, index, None if in_lane else self.lane)) is not None:
            return self._read(place.text, dtype, place.pattern is Access.CONTIGUOUS,
                              self._unwritten(place.buffers))
        if isinstance(op, ops.Pad) and (x := computed_everywhere(self, op, choices)) is not None:
            return self._name(x, dtype, op)
        # The type of the result (one scalar, or a Vec) shows once all branches are written.
        outer, parts = self.w, list[tuple[str, Writer, Emitted]]()
        for choice, guard in zip(choices, guards, strict=True):
            test = self._guard(choice.guard if guard is None else guard)
            self.w = outer.child()
            self.push_scope()
            x = self._emit(choice.value, choice.index)
            self.pop_scope()
            parts.append((test, self.w, x))
            self.w = outer
        wide = any(x.vector for _, _, x in parts)
        name = self.w.fresh()
        self.w.line(f"{self._type(dtype, wide)} {name};", self._remark(op))
        for i, (test, inner, x) in enumerate(parts):
            self.w.line(f"{'} else ' if i else ''}{f'if ({test}) ' if test else ''}{{")
            inner.line(f"{name} = {self.widen(x, wide)};")
            self.w.extend(inner)
        self.w.line("}")
        return Emitted(name, wide, all(x.exact for _, _, x in parts))

    def _padded(self, op: Op, value: Value, index: IndexMap, choices: Sequence[Demand],
                ) -> Emitted | None:
        """A buffer, or joined ones, padded with a constant: loaded without a branch, outside from
        the first element.

        Behind a branch each load waits for the one before. A copy that only pads is
        padded_copy.py's; this is for pads that something is computed of. None where it is not so
        simple.
        """
        if not isinstance(op, ops.Pad) or len(choices) != 2:
            return None
        inside, fill = choices
        fixed, pointer = self._producer.get(fill.value), self.buffer(inside.value)
        made, in_lane = self._producer.get(inside.value), self._scopes[-1].lane
        if not inside.value.type.size or not isinstance(fixed, ops.Constant) \
                or dynamics(inside.index):
            return None
        found = self._parts(made, inside.index) if pointer is None else None
        if pointer is None and found is None:
            return None
        offset = linearize(inside.index, inside.value.type.dims)
        pattern = access(offset, self.lane) if found is None else found.pattern
        read_only = self._unwritten([inside.value] if found is None else
                                    [p.buffer for p in found.parts])
        dtype, wide = value.type.dtype, pattern is Access.CONTIGUOUS and not in_lane
        if not wide and not in_lane and pattern is not Access.UNIFORM:
            return self._per_lane(dtype, lambda: self._choose(op, value, index))
        test = self.w.fresh("inside")
        guard = uniform_guard(inside.guard, self.lane) or inside.guard
        self._emit_dynamics(x for x, _, _ in guard.bounds)
        self.w.line(f"const bool {test} = {guard_code(guard, self._code, branches=False)};",
                    self._remark(op))
        at = f"{test} ? {emit_address(self, found)} : {self.buffer(found.parts[0].buffer)}" \
            if found is not None else f"{pointer} + ({test} ? {self._code(offset)} : 0)"
        x = self._read(at, dtype, wide, read_only)
        other = self.widen(self._constant(fixed, fill.index), wide)
        return self._name(Emitted(f"{test} ? {x} : {other}", wide, x.exact), dtype)

    def _parts(self, op: Op | None, index: IndexMap) -> Joined | None:
        if not isinstance(op, ops.Concatenate) or op.result.type.dtype in FOUR_BITS:
            return None
        choices = alternatives(op, index)
        if len(choices) < 2 or any(isinstance(self.buffer(c.value), FlaggedName | None)
                                   for c in choices):
            return None
        return joined(op, index, choices, self.lane)

    def _part(self, op: Op, index: IndexMap) -> Emitted | None:
        """An element of joined buffers, without a branch (joined.py); None where it is none."""
        if (found := self._parts(op, index)) is None:
            return None
        wide = found.pattern is Access.CONTIGUOUS and not self._scopes[-1].lane
        return self._read(emit_address(self, found, self._remark(op)), op.results[0].type.dtype,
                          wide, self._unwritten(p.buffer for p in found.parts))

    def _unwritten(self, values: Iterable[Value]) -> bool:
        return all(v in self.read_only for v in values)

    def _read(self, address: str, dtype: DType, wide: bool, read_only: bool) -> Emitted:
        self.reads += 1
        lanes = f", {self.lanes}" if wide else ""
        return self._name(Emitted(f"{'load_ro' if read_only else 'load'}<{compute(dtype)}{lanes}>"
                                  f"({address})", wide), dtype)

    def _guard(self, guard: Guard) -> str:
        self._emit_dynamics(x for x, _, _ in guard.bounds)
        return guard_code(guard, self._code)


def _only_moves(op: Op) -> bool:
    return not isinstance(op, (ops.Elementwise, ops.Compare, ops.Convert, ops.BitcastConvert,
                               ops.ReducePrecision))
