"""Loops that transform lines (`ops.Fourier`): a task's lines are in shared memory between passes.

    const auto from = [&](int j, int line) -> Complex<float> { ... };   // computed on the way
    const auto put = [&](int k, int line, const Complex<float>& x) { ... };
    using F = Fourier<float, 512, 4, false, false, false, 256>;
    F::passes<8, 8, 8>(from, put, part, part + F::COPY);

A thread transforms up to 16 elements in registers, the radix of a pass. Where neighbours of a line
are apart in memory, as those of columns are, a task has neighbouring lines. Lines of real numbers
are transformed as half as many pairs of neighbours, to and fro.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache

from jaxmono.codegen.emit import BodyEmitter
from jaxmono.codegen.loop import LoopCode, made_of_lines
from jaxmono.codegen.loop_schedule import LoopSchedule, flat_loop
from jaxmono.codegen.names import compute, literal
from jaxmono.codegen.schedule import store_offset
from jaxmono.codegen.sig_code import RESIDENT, Function, Request, register
from jaxmono.codegen.writer import Writer
from jaxmono.fusion.indexing import Index, Var, delinearize
from jaxmono.fusion.plan import LoopForm, Sig
from jaxmono.hlo import ops
from jaxmono.hlo.ir import Graph, Value
from jaxmono.hlo.passes.fourier import is_of_pairs

_RADIX = 16
"""Elements that a thread transforms, at most: 32 registers, and as many for roots."""
_COLUMNS = 4
"""Neighbouring columns of a task, at least where it has any: 32 bytes, a sector."""
_MOST = 128
"""Lines of a task."""
_LOAD_US, _PASS_US, _TURN_US, _BLOCK_US = 1.5, 0.3, 0.12, 0.2
"""Microseconds that a task waits for memory, and for each pass; of a pass with 16 elements for each
thread of a block; for each block of a multiprocessor, which meet at the grid's barriers. With four
blocks, a line a task, FNet's mixing took 11.2 us of an H200; with one, and four lines a task, 8.9
(and a cheaper search for places)."""


@dataclass(frozen=True)
class _Lines:
    """Attributes:
      n: elements of a line that are transformed, complex ones.
      inner: elements of the argument from one neighbour to the next.
      behind: of these, in the dimensions behind the next one.
      count: of lines.
      pairs: they are neighbours of real numbers.
    """

    n: int
    inner: int
    behind: int
    count: int
    pairs: bool

    @staticmethod
    def of(op: ops.Fourier) -> _Lines:
        dims = op.args[0].type.dims
        n, inner = dims[op.axis], math.prod(dims[op.axis + 1:])
        pairs = inner == 1 and is_of_pairs(n, op.kept, len(op.args) == 1, back=op.back)
        return _Lines(op.kept // 2 if op.half else n // 2 if pairs else n, inner,
                      math.prod(dims[op.axis + 2:]), math.prod(dims[:op.axis]) * inner, pairs)

    def shared(self, together: int, itemsize: int) -> int:
        """Bytes: of as many `Fourier::COPY` as there are."""
        n = self.n + self.n // 16
        size = n if together == 1 else -(-n // 16) * 16 + max(16 // together, 1)
        copies = min(len(radices(self.n)) - (not self.pairs), 2)
        return copies * size * together * 2 * itemsize


@lru_cache(maxsize=256)
def radices(n: int) -> tuple[int, ...]:
    """Whose product is n: as few as can be, and then as equal as can be; the largest first.

    Raises:
      ValueError: n has a prime factor above `_RADIX`.
    """
    if n == 1:
        return (1,)
    found = _splits(n, _RADIX)
    if not found:
        raise ValueError(f"{n} has a large prime factor")
    return min(found, key=lambda r: (len(r), sum(r)))


@lru_cache(maxsize=4096)
def _splits(n: int, most: int) -> tuple[tuple[int, ...], ...]:
    if n == 1:
        return ((),)
    return tuple((r, *rest) for r in range(min(n, most), 1, -1) if n % r == 0
                 for rest in _splits(n // r, r))


class FourierCode(LoopCode):
    """`SigCode` of such loops: ``unroll`` of their schedules are the lines of a task."""

    def choose(self, sig: Sig, request: Request) -> LoopSchedule:
        op = _op(sig)
        lines, size = _Lines.of(op), op.args[0].type.dtype.itemsize
        room, sms = request.shared_bytes - 1024, request.device.sm_count

        def us(together: int) -> float:
            tasks = math.ceil(lines.count * request.siblings / together)
            blocks = min(RESIDENT, math.ceil(tasks / sms), request.shared_bytes // (
                lines.shared(together, size) + 1024)) if request.streaming else 1
            work = sum(_TURN_US * r / _RADIX * math.ceil(lines.n // r * together / request.threads)
                       for r in radices(lines.n))
            each = _LOAD_US + _PASS_US * len(radices(lines.n)) + blocks * (work + _BLOCK_US)
            return math.ceil(tasks / (sms * blocks)) * each

        few = min(_COLUMNS, lines.inner)
        while few > 1 and lines.shared(few, size) > room:
            few -= 1
        several = [few, *(m for m in (2, 4, 8, 16, 32, 64, _MOST) if few < m <= lines.count
                          and lines.shared(m, size) <= room)]
        # 8192 of 512 took 20 us of an H200 with 35 KB a block, and 24 to 35 with 70.
        full = [m for m in several if lines.shared(m, size) <= request.shared_bytes // RESIDENT
                - 1024 and lines.count * request.siblings >= RESIDENT * sms * m]
        if request.streaming and full:
            return LoopSchedule(1, max(full))
        return LoopSchedule(1, min(several, key=us))

    def tasks(self, sig: Sig, schedule: LoopSchedule, threads: int) -> int:
        return math.ceil(_Lines.of(_op(sig)).count / schedule.unroll)

    def shared_bytes(self, sig: Sig, schedule: LoopSchedule, threads: int) -> int:
        op = _op(sig)
        return _Lines.of(op).shared(schedule.unroll, op.args[0].type.dtype.itemsize)

    def can_flag(self, sig: Sig, schedule: LoopSchedule, result: bool, number: int) -> bool:
        return False

    def emit_body(self, w: Writer, sig: Sig, schedule: LoopSchedule, function: Function) -> None:
        op = _op(sig)
        _Code(w, sig, op, _Lines.of(op), schedule.unroll, function).emit()


def _op(sig: Sig) -> ops.Fourier:
    op = made_of_lines(sig)
    assert isinstance(op, ops.Fourier)
    return op


@dataclass(frozen=True)
class _Code:
    """The statements of one task."""

    w: Writer
    sig: Sig
    op: ops.Fourier
    lines: _Lines
    together: int
    function: Function

    @property
    def real(self) -> str:
        return compute(self.op.args[0].type.dtype)

    @property
    def integer(self) -> str:
        return "int" if 2 * self.op.args[0].type.size < 2**31 - 2**20 else "long long"

    def emit(self) -> None:
        w, op, lines, i = self.w, self.op, self.lines, self.integer
        w.line(f"const {i} first = ({i}){self.function.task} * {self.together};")
        with w.block(f"const auto from = [&](int j, int line) -> Complex<{self.real}>", "};"):
            w.line(f"const {i} own = min(first + line, ({i}){lines.count - 1});")
            self._emit_from()
        with w.block(f"const auto put = [&](int k, int line, const Complex<{self.real}>& z)", "};"):
            w.line(f"const {i} own = first + line;")
            self._emit_put()
        across = lines.inner > 1
        flags = ", ".join(str(x).lower() for x in (
            across, across and not (op.twist and lines.behind == 1), op.back))
        passes = radices(lines.n)
        w.line(f"using F = Fourier<{self.real}, {lines.n}, {self.together}, {flags}, "
               f"{self.function.threads}>;")
        w.line(f"auto* const part = reinterpret_cast<Complex<{self.real}>*>"
               f"({self.function.smem});")
        two = len(passes) > (1 if lines.pairs else 2)
        way = "real<" if lines.pairs else "passes<"
        w.line(f"F::{way}{', '.join(map(str, passes))}>(from, put, part, "
               f"{'part + F::COPY' if two else 'part'});", f"{op.opcode}  {op.loc}")

    # ---- what is transformed -------------------------------------------------------------------

    def _emit_from(self) -> None:
        """Computed of what the loop reads; lines that are not there are the last one."""
        w, lines, dims = self.w, self.lines, self.op.args[0].type.dims
        n = dims[self.op.axis]
        if lines.pairs:
            w.line(f"const {self.integer} e = own * {n} + 2 * j;")
            both = self._pair(self.op.args[0], "e")
            w.line(f"return {{{both}.x[0], {both}.x[1]}};")
        elif self.op.half:
            names = []
            for at, j in (("e", "j"), ("f", f"{n - 1} - j")):
                w.line(f"const {self.integer} {at} = own * {n} + {j};")
                names.append(self._element(at))
            w.line(f"return pair_of<{self.real}, {lines.n}>(j, {', '.join(names)});")
        else:
            w.line(f"const {self.integer} e = {_place(n, lines.inner, 'j')};")
            w.line(f"return {self._element('e')};")

    def _element(self, at: str) -> str:
        """The arguments' parts at a flat place, as a C expression."""
        args, w = self.op.args, self.w
        whole = _array(self.sig.body, args)
        if whole is not None:  # one load
            w.line(f"const {self.integer} {at}2 = 2 * {at};")
            both = self._pair(whole, f"{at}2")
            return f"Complex<{self.real}>{{{both}.x[0], {both}.x[1]}}"
        e = Var(at, args[0].type.size)
        em = BodyEmitter(w, self.sig.body, self.function.pointers, var_names={e: at},
                         read_only=self.function.read_only, inline_reduces=True)
        index = delinearize(Index.of(e), args[0].type.dims)
        parts = [str(em.emit(em.unrounded(v), index)) for v in args]
        return f"Complex<{self.real}>{{{', '.join(parts)}{', 0' if len(parts) == 1 else ''}}}"

    def _pair(self, v: Value, at: str) -> str:
        """Two neighbours, from an even place on."""
        e = Var(at, v.type.size)
        em = BodyEmitter(self.w, self.sig.body, self.function.pointers, lane=e, lanes=2,
                         var_names={e: at}, read_only=self.function.read_only, inline_reduces=True)
        x = em.emit(em.unrounded(v), delinearize(Index.of(e), v.type.dims))
        name = self.w.fresh("both")
        self.w.line(f"const Vec<{self.real}, 2> {name} = {em.widen(x, True)};")
        return name

    # ---- what comes out ------------------------------------------------------------------------

    def _emit_put(self) -> None:
        """To memory: of a line the first ones, if not all are kept."""
        w, op, lines, form = self.w, self.op, self.lines, self.sig.form
        assert isinstance(form, LoopForm)
        (store,) = form.stores
        dtype = op.args[0].type.dtype
        made = lines.n + 1 if lines.pairs else lines.n
        tests = [f"own >= {lines.count}"] if lines.count % self.together else []
        tests += [f"k >= {op.kept}"] if op.kept < made else []
        if tests:
            w.line(f"if ({' || '.join(tests)}) return;")
        x = "z"
        if op.twist:
            column = f"own % {lines.inner}" + (f" / {lines.behind}" if lines.behind > 1 else "")
            w.line(f"const Complex<{self.real}> x = z * turned<{self.real}, {op.twist}, "
                   f"{str(op.back).lower()}>(k * (int)({column}));")
            x = "x"
        scale = f" * {literal(1 / op.divisor, dtype)}" if op.divisor > 1 else ""
        alone = op.real and not op.half
        if op.half:
            place = f"own * {lines.n} + k"
        elif op.twist:
            place = _place(op.kept, lines.behind, "k")
        else:
            place = _place(op.kept, lines.inner, "k")
        w.line(f"const {self.integer} e = {place};" if alone else
               f"const {self.integer} e = 2 * ({place});")
        w.line(f"const {self.real} y = {x}.re{scale};" if alone else
               f"const Vec<{self.real}, 2> y{{{{{x}.re{scale}, {x}.im{scale}}}}};")
        lanes = 1 if alone else 2
        flat, env = flat_loop(form, lanes)
        em = BodyEmitter(w, self.sig.body, self.function.pointers, lane=flat, lanes=lanes,
                         var_names={flat: "e"}, read_only=self.function.read_only)
        em.store(self.function.outputs[store.result], store_offset(self.sig, store, env), "y",
                 dtype)


def _place(n: int, inner: int, j: str) -> str:
    """The C expression of where element ``j`` of n of line ``own`` is."""
    return f"own * {n} + {j}" if inner == 1 else \
        f"(own / {inner} * {n} + {j}) * {inner} + own % {inner}"


def _array(body: Graph, args: tuple[Value, ...]) -> Value | None:
    """The array whose last dimension the two arguments are, in the order of its elements."""
    found: list[Value] = []
    for i, v in enumerate(args if len(args) == 2 else ()):
        op = body.producer.get(v)
        while isinstance(op, ops.Reshape):
            op = body.producer.get(op.operand)
        if not isinstance(op, ops.Slice) or op.start_indices[-1] != i \
                or op.result.type.dims != (*op.operand.type.dims[:-1], 1) \
                or op.operand.type.dims[-1] != 2:
            return None
        found.append(op.operand)
    return found[0] if found and found[0] is found[1] else None


register("loop", FourierCode(), when=lambda sig: isinstance(made_of_lines(sig), ops.Fourier))
