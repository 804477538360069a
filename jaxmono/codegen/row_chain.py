"""Row-wise programs: reduces over the columns of a row, and values computed from them.

    sweep 1   for each column: x = load; max     -> the team combines its maxima
    sweep 2   for each column: e = exp(x - max); sum
    output    for each column: store e / sum

A row is shared by a team of threads; each thread walks its own columns in every sweep. What one
sweep computes and a later one uses again stays in registers when the row is short enough;
otherwise it is computed again from memory.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from jaxmono.codegen.emit import BodyEmitter
from jaxmono.codegen.errors import CodegenError, refuse
from jaxmono.codegen.names import compute, vector
from jaxmono.codegen.op_code import Emitted
from jaxmono.codegen.parted import any_waits, meet
from jaxmono.codegen.reducers import Reducer, declare_reducer
from jaxmono.codegen.team import Team, warp_team
from jaxmono.codegen.traverse import Node, depends_on, walk
from jaxmono.codegen.writer import Writer
from jaxmono.fusion.demand import reduction_index
from jaxmono.fusion.indexing import Index, IndexMap, Var, delinearize
from jaxmono.hlo import ops
from jaxmono.hlo.ir import Op, Value

KEEP_WORDS = 64
"""Most 32-bit registers per thread that hold a row between sweeps."""


@dataclass(frozen=True)
class RowOutput:
    """A value to compute. ``per_row``: once per row instead of at every column."""

    value: Value
    index: IndexMap
    per_row: bool = False


_AT_ONCE = 16
"""Loads of a thread that wait together: those of a row of 7 x 7 taps of four places, and its
weights. With two such rows 64 of 212 bytes were still spilled. ConvNeXt-T b1 and b32 on an H100:
without the branches 1.11 and 1.03 of the time, with one after each eight loads 1.05 and 1.06, each
24 1.00 and 0.99."""

Sink = Callable[[int, Emitted], None]
"""Called for output number i inside the C scope in which its value is at hand. In the column loop
`BodyEmitter.code` of the column Var is the (first) column."""


def emit_row_chain(em: BodyEmitter, col: Var, outputs: Sequence[RowOutput], sink: Sink, *,
                   team: Team | None = None, keep_words: int = KEEP_WORDS,
                   places: int = 1) -> None:
    """Emits the sweeps of one row and hands every output to ``sink``.

    Args:
      em: its Vars other than ``col`` are named; ``em.lane`` is ``col`` if columns are vectorised,
        a row Var for teams with ``lanes_on_rows``. Sources may come from `BodyEmitter.bind_load`.
      col: the columns as one Var; indices of ``outputs`` are over it (and row Vars). Reduces
        reduce exactly these columns, row-major over their reduced dimensions.
      places: how many rows these are outputs of.
      team: by default a whole warp. All threads of a warp (or of the block, for teams with shared
        memory) must run the code together.

    Raises:
      CodegenError: a reduce is not over these columns, or an op has no code.
    """
    _RowChain(em, col, tuple(outputs), sink, team or warp_team(), keep_words, places).emit()


Key = tuple[Value, IndexMap]


class _RowChain:
    def __init__(self, em: BodyEmitter, col: Var, outputs: tuple[RowOutput, ...], sink: Sink,
                 team: Team, keep_words: int, places: int) -> None:
        self.places = places
        self.em, self.col, self.sink, self.team = em, col, sink, team
        self.outputs = [RowOutput(o.value, em.split(o.index), o.per_row) for o in outputs]
        self.step = 1 if team.lanes_on_rows else em.lanes
        self.fragments = math.ceil(col.size / (team.size * self.step))
        lane = em.lane
        self.col_vars = {col} if team.lanes_on_rows or em.lanes == 1 else {lane.high, lane.low}
        self.level: dict[tuple[ops.Reduce, IndexMap], int] = {}
        for o in self.outputs:
            self._order((o.value, o.index))
        self.sweeps = max(self.level.values(), default=0)
        self.kept: dict[Key, int] = {}
        self.early: list[Key] = []
        self._plan_registers(keep_words)
        self.combined = False
        self.arrays: dict[Key, tuple[str, Emitted]] = {}

    # ---- analysis ------------------------------------------------------------------------------

    def _walk(self, roots: Sequence[Key], stop: Callable[[Value, IndexMap], bool] | None = None,
              ) -> Iterator[Node]:
        return walk(self.em.body, roots, stop=stop, leaf=self.em.is_source)

    def _reduces(self, roots: Sequence[Key]) -> list[tuple[ops.Reduce, IndexMap]]:
        found: dict[tuple[ops.Reduce, IndexMap], None] = {}
        for n in self._walk(roots):
            if isinstance(n.op, ops.Reduce):
                found[n.op, n.index] = None
        return list(found)

    def _operands(self, op: ops.Reduce, index: IndexMap) -> list[Key]:
        """What one column contributes to a reduce."""
        shape = [op.args[0].type.dims[d] for d in sorted(op.dimensions)]
        if math.prod(shape) == self.col.size == 0:
            return []
        if math.prod(shape) != self.col.size:
            raise refuse(op, f"it reduces {shape}, not the {self.col.size} columns of its row")
        if depends_on(index, self.col_vars):
            raise refuse(op, "it is demanded at more than its own row")
        over = self.em.split(delinearize(Index.of(self.col), shape))
        at = reduction_index(op, index, over)
        return [(v, at) for v in op.args]

    def _order(self, root: Key) -> int:
        """Levels of all reduces behind ``root``; 0 if there is none."""
        most = 0
        for op, index in self._reduces([root]):
            if (op, index) not in self.level:
                behind = [0, *(self._order(k) for k in self._operands(op, index))]
                behind += [self._order((v, ())) for v in op.inits]
                self.level[op, index] = 1 + max(behind)
            most = max(most, self.level[op, index])
        return most

    def _roots(self, sweep: int) -> list[Key]:
        """What sweep 1..n computes per column; n + 1 are the outputs."""
        if sweep > self.sweeps:
            return [(o.value, o.index) for o in self.outputs if not o.per_row]
        return [k for (op, index), level in self.level.items() if level == sweep
                for k in self._operands(op, index)]

    def _varies(self, n: Node) -> bool:
        return depends_on(n.index, self.col_vars)

    def _plan_registers(self, budget: int) -> None:
        """Decides what of a row stays in registers: all that sweeps share, or nothing.

            x = load; max     x
            e = exp(x - max)  x -> e    takes the place of x, which nobody needs behind it
            e / sum           e

        With room left, what only later sweeps read is read in the first one too (a scale, a
        residual): nothing then waits for memory behind the first combination.
        """
        made: dict[Key, int] = {}
        kept: dict[Key, int] = {}
        last: dict[Key, int] = {}

        def reached(value: Value, index: IndexMap) -> bool:
            key = (value, index)
            if key in made and self._costly(key):
                kept.setdefault(key, made[key])
                last[key] = sweep
                return True
            return False

        for sweep in range(1, self.sweeps + 2):
            for key in self._outside_branches(sweep, reached):
                made.setdefault(key, sweep)
        left = budget - max((sum(self._words(k) for k in kept if kept[k] <= sweep < last[k])
                             for sweep in range(1, self.sweeps + 1)), default=0)
        if left < 0:
            return
        self.kept = kept
        for sweep in range(2, self.sweeps + 2):
            for key in self.plain_loads(sweep):
                if key not in kept and made.get(key) == sweep and self._words(key) <= left:
                    left -= self._words(key)
                    self.kept[key] = 1
                    self.early.append(key)

    def _words(self, key: Key) -> int:
        return -(-key[0].type.dtype.itemsize // 4) * self.fragments * self.em.lanes

    def plain_loads(self, sweep: int) -> list[Key]:
        """Buffer elements per column that a sweep reads whatever the guards on the way say."""
        found = self._outside_branches(sweep, lambda v, i: (v, i) in self.kept)
        return [k for k in found if k[0] in self.em.params]

    def _outside_branches(self, sweep: int, stop: Callable[[Value, IndexMap], bool]) -> list[Key]:
        """What a sweep computes or reads per column, without what is made in a branch, which is not
        at hand behind it."""
        guarded: set[Key] = set()
        found: list[Key] = []
        for n in self._walk(self._roots(sweep), stop):
            key = (n.value, n.index)
            if n.guards:
                guarded.update(k for m in self._walk([key]) if (k := (m.value, m.index)) != key)
            if self._varies(n):
                found.append(key)
        return [k for k in found if k not in guarded]

    def _costly(self, key: Key) -> bool:
        """Whether computing the value again would read memory once per column."""
        return any(n.op is None and self._varies(n) for n in self._walk([key]))

    # ---- code ----------------------------------------------------------------------------------

    def emit(self) -> None:
        for sweep in range(1, self.sweeps + 1):
            self._sweep(sweep)
        # Stored behind all of them: one may take the place of what another is made of.
        for i, x in [(i, self.em.emit(o.value, o.index)) for i, o in enumerate(self.outputs)
                     if o.per_row]:
            self.sink(i, x)
        columns = [(i, o) for i, o in enumerate(self.outputs) if not o.per_row]
        if columns and self.col.size:
            self._row_values(self.sweeps + 1)
            self.em.w.comment("outputs")
            with self._columns(self.sweeps + 1):
                self._in_step([(o.value, o.index) for _, o in columns])
                values = [(i, self.em.emit(o.value, o.index)) for i, o in columns]
                for i, x in values:
                    self.sink(i, x)

    def _in_step(self, roots: Sequence[Key]) -> None:
        """Emits what several rows at a time compute op by op, the rows in turn: what they read in
        common is used up soon. (Row by row ptxas spilled 10 KB of the windows of ConvNeXt-T.)

        After each `_AT_ONCE` loads there is a branch, which ptxas asks for no further ones in front
        of: it had dozens on their way, and spilled 212 bytes of ConvNeXt-T b32. So it is where one
        row asks for more than that.
        """
        if self.places == 1 and len({(n.value, n.index) for n in self._walk(roots)
                                     if n.op is None and self._varies(n)}) <= _AT_ONCE:
            return
        em = self.em
        guarded: set[Key] = set()
        found: dict[Op, list[Key]] = {}
        for n in self._walk(roots, lambda v, i: self.em.known(v, i) is not None):
            if n.guards:
                guarded.update((m.value, m.index) for m in self._walk([(n.value, n.index)]))
            if isinstance(n.op, ops.Elementwise) and self._varies(n):
                found.setdefault(n.op, []).append((n.value, n.index))
        before, branches = em.reads, 0
        for o in em.body.ops:
            keys = [k for k in found.get(o, ()) if k not in guarded]
            if em.reads - before >= _AT_ONCE and self._reads_more(keys):
                em.w.line(f"if (never<{branches}>()) break;")
                before, branches = em.reads, branches + 1
            for key in keys:
                em.emit(*key)

    def _reads_more(self, keys: Sequence[Key]) -> bool:
        known = self.em.known
        return any(n.op is None and known(n.value, n.index) is None
                   for n in self._walk(keys, lambda v, i: known(v, i) is not None))

    def _sweep(self, sweep: int) -> None:
        em, lanes = self.em, self.em.lanes
        todo = [k for k, level in self.level.items() if level == sweep]
        reducers: list[tuple[Reducer, str]] = []
        starts: list[list[Emitted]] = []
        for op, _ in todo:
            if op.body.captures:
                raise refuse(op, "its region uses values from outside")
            starts.append([em.emit(v, ()) for v in op.inits])
        self._row_values(sweep)
        for op, _ in todo:
            reducer = declare_reducer(em, op)
            acc = em.w.fresh("acc")
            em.w.line(f"{reducer.name}::State {acc}[{lanes}];",
                      f"{op.body.ops[0].opcode if not op.body.ops else _label(op)}  {op.loc}")
            em.w.line(f"reset<{reducer.name}>({acc});")
            reducers.append((reducer, acc))
        if self.col.size:
            self._accumulate(sweep, todo, reducers)
        folded = [""] * len(todo)
        if not self.team.lanes_on_rows:
            folded = self._combine([(r.name, f"fold<{r.name}>({acc})") for r, acc in reducers])
        for (op, index), (reducer, acc), init, whole in zip(todo, reducers, starts, folded,
                                                            strict=True):
            self._finish(op, index, reducer, acc, init, whole)

    def _combine(self, states: list[tuple[str, str]]) -> list[str]:
        """The states of the team for (reducer, state of this thread), as C expressions.

        A block combines all of a sweep at once: each time costs two barriers (the first one of a
        task that was fetched for, one), a tree of shuffles and a trip through shared memory, 0.2 us
        of a layer norm's 2.5.
        """
        team, w = self.team, self.em.w
        smem = f", {team.smem}" if team.smem else ""
        if team.combine == "combine_block" and team.idle != "false" and not self.combined:
            smem += f", {team.idle}"
        self.combined = True
        if team.combine != "combine_block" or len(states) == 1:
            return [f"{team.combine}<{r}, {team.argument}>({x}{smem})" for r, x in states]
        (kind, value), *others = states
        for r, x in others:
            kind = f"Both<{kind}, {r}>"
            value = f"{kind}::State{{{value}, {x}}}"
        whole = w.fresh("sums")
        w.line(f"const {kind}::State {whole} = "
               f"{team.combine}<{kind}, {team.argument}>({value}{smem});")
        last = len(others)
        return [whole + ".a" * (last - i) + (".b" if i else "") for i in range(last + 1)]

    def _accumulate(self, sweep: int, todo: list[tuple[ops.Reduce, IndexMap]],
                    reducers: list[tuple[Reducer, str]]) -> None:
        em = self.em
        with self._columns(sweep):
            for key in self.early if sweep == 1 else ():
                em.emit(*key)
            self._in_step([k for r in todo for k in self._operands(*r)])
            for (op, index), (reducer, acc) in zip(todo, reducers, strict=True):
                xs = [em.emit(*k).name for k in self._operands(op, index)]
                em.w.line(f"accumulate<{reducer.along}>({acc}, {', '.join(xs)});")

    def _finish(self, op: ops.Reduce, index: IndexMap, reducer: Reducer, acc: str,
                init: list[Emitted], whole: str) -> None:
        """Binds a reduction's results; ``whole``: the team's state, where lanes share a row."""
        em, team, r = self.em, self.team, reducer.name
        first = f"{r}::of({', '.join(x.name for x in init)})"
        if not team.lanes_on_rows:
            total = em.w.fresh("total")
            em.w.line(f"const {r}::State {total} = {r}::combine({first}, {whole});")
            for i, v in enumerate(op.results):
                em.bind(v, index, f"{total}.a{i}", vector=False)
            return
        if team.combine:
            meet(em.w, any_waits(em.params.values()))
            em.w.line(f"{team.combine}<{r}, {team.argument}>({acc}, {team.smem});")
        names = [em.w.fresh("total") for _ in op.results]
        for v, name in zip(op.results, names, strict=True):
            em.w.line(f"{vector(compute(v.type.dtype), em.lanes)} {name};")
        em.w.directive("#pragma unroll")
        with em.w.block(f"for (int i = 0; i < {em.lanes}; ++i)"):
            em.w.line(f"const {r}::State s = {r}::combine({first}, {acc}[i]);")
            for i, name in enumerate(names):
                em.w.line(f"{f'{name}.x[i]' if em.lanes > 1 else name} = s.a{i};")
        for v, name in zip(op.results, names, strict=True):
            em.bind(v, index, name, vector=em.lanes > 1)

    def _row_values(self, sweep: int) -> None:
        """Emits, before a column loop, what the loop uses and is the same for all columns."""
        em = self.em
        guarded: set[Key] = set()
        if self.col.size == 0:
            return
        for n in self._walk(self._roots(sweep), lambda v, i: (
                (v, i) in self.arrays or em.known(v, i) is not None)):
            key = (n.value, n.index)
            if n.guards:
                guarded.update((m.value, m.index) for m in self._walk([key]))
            if key in guarded or self._varies(n) or isinstance(n.op, (ops.Reduce, ops.Constant)):
                continue
            if em.known(*key) is None:
                em.emit(*key)

    def _columns(self, sweep: int) -> _Columns:
        return _Columns(self, sweep)


_DEEP = 32
"""Elements that a thread loads before it adds them. Where lanes take rows few blocks have all the
columns (24 of 132 for the gradient of 768 biases), and where a long row is no multiple of a vector
its elements come one by one: either has to wait for memory seldom. Of 20 kernels with long rows
(argmax and softmax of 4096 x 1000, a variance, norms) none took more than 1.004 of the time that
it took an H200 with 16, and nine 4 to 11 % less."""


class _Columns:
    """The loop over a thread's columns; declares and fills what later sweeps use again."""

    def __init__(self, chain: _RowChain, sweep: int) -> None:
        self.c, self.sweep = chain, sweep
        self.deep = max(_DEEP // chain.em.lanes, 4)
        self.ahead: list[str] = []

    @property
    def partly(self) -> bool:
        """Whether the loop is unrolled so far, and not whole: it fills and reads no registers."""
        return not self.c.arrays and self.c.fragments > 8

    def __enter__(self) -> None:
        c, em = self.c, self.c.em
        self.outer = em.w
        em.w = em.w.child()
        self.f, self.col = em.w.fresh("f"), em.w.fresh("c")
        em.push_scope()
        em.name_vars({c.col: self.col})
        for key, (name, x) in c.arrays.items():
            em.bind_again(*key, Emitted(f"{name}[{self.f}]", x.vector, x.exact))
        if self.partly and self.sweep > c.sweeps:
            self._load_ahead()

    def _load_ahead(self) -> None:
        """Loads of several fragments in front of the outputs of all: what is stored may be what is
        loaded next, as far as the compiler knows. (Norms over 9599 of time: 700 us in a kernel
        where both are scratch memory, 240 where it knew.)"""
        em, inner = self.c.em, self.c.em.w
        self.loads = em.w = self.outer.child()
        found: list[tuple[Key, Emitted]] = []
        em.push_scope()
        most = max(KEEP_WORDS // (self.deep * em.lanes), 1)
        for key in self.c.plain_loads(self.sweep)[:most]:
            x, name = em.emit(*key), em.w.fresh("ahead")
            t = vector(compute(key[0].type.dtype), em.lanes if x.vector else 1)
            self.ahead.append(f"{t} {name}[{self.deep}]{{}};")
            self.loads.line(f"{name}[u] = {x};")
            found.append((key, Emitted(f"{name}[u]", x.vector, x.exact)))
        em.pop_scope()
        em.w = inner
        for key, x in found:
            em.bind_again(*key, x)

    def __exit__(self, *error: object) -> None:
        c, em = self.c, self.c.em
        inner, em.w = em.w, self.outer
        if error[0] is not None:
            em.pop_scope()
            return
        for key in [k for k, sweep in c.kept.items() if sweep == self.sweep]:
            x = em.known(*key)
            if x is None:
                raise CodegenError(f"{key[0]!r} was to be kept but is not computed in its sweep")
            if not x.name.isidentifier():
                continue  # a literal
            name = em.w.fresh("row")
            c.arrays[key] = (name, x)
            t = vector(compute(key[0].type.dtype), em.lanes if x.vector else 1)
            # Set in all threads, as in StagedRows::rows: some have no last fragment.
            em.w.line(f"{t} {name}[{c.fragments}]{{}};")
            inner.line(f"{name}[{self.f}] = {x};")
        em.pop_scope()
        self._loop(inner)

    def _loop(self, inner: Writer) -> None:
        c, w, f = self.c, self.c.em.w, self.f
        n, size = c.fragments, c.col.size
        whole = n * c.team.size * c.step == size
        inside = f"{self.col} < {size}"
        if self.ahead:
            test = "" if whole and n % self.deep == 0 else inside
            first = w.fresh("f")
            with w.block(f"for (int {first} = 0; {first} < {n}; {first} += {self.deep})"):
                for line in self.ahead:
                    w.line(line)
                for part in (self.loads, inner):
                    w.directive("#pragma unroll")
                    with w.block(f"for (int u = 0; u < {self.deep}; ++u)"):
                        w.line(f"const int {f} = {first} + u;")
                        self._fragment(part, test, 1)
            return
        if n > 1:
            w.directive(f"#pragma unroll {self.deep}" if self.partly else "#pragma unroll")
        if whole or self.partly:
            with w.block(f"for (int {f} = 0; {f} < {n - (not whole)}; ++{f})"):
                self._fragment(inner, "")
            if not whole:
                # The last one, which can lie outside, behind the others: with a test in each turn
                # their loads wait for each other.
                with w.block(f"for (int {f} = {n - 1}; {f} < {n}; ++{f})"):
                    self._fragment(inner, inside)
            return
        with w.block(f"for (int {f} = 0; {f} < {n}; ++{f})"):
            # Only the last fragment can lie outside: the others need no test once unrolled.
            self._fragment(inner, f"{f} < {n - 1} || {inside}" if n > 1 else inside)

    def _fragment(self, inner: Writer, test: str, deeper: int = 0) -> None:
        c, w = self.c, self.c.em.w
        start = f"{self.f} * {c.team.size} + {c.team.rank}" if c.team.size > 1 else self.f
        w.line(f"const int {self.col} = ({start}) * {c.step};" if c.step > 1
               else f"const int {self.col} = {start};")
        if not test:
            w.extend(inner, deeper)
            return
        with w.block(f"if ({test})"):
            w.extend(inner, deeper + 1)


def _label(op: ops.Reduce) -> str:
    return "reduce " + "/".join(getattr(o, "kind", o.opcode) for o in op.body.ops[:3])
