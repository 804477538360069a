"""Loops that transform lines (`ops.Fourier`): a task's lines are in shared memory between passes.

    const auto from = [&](int j, int line) -> Complex<float> { ... };   // computed on the way
    const auto put = [&](int k, int line, const Complex<float>& x) { ... };
    using F = Fourier<float, 512, 4, false, false, 256>;
    F::passes<1, 8, 8, 8>(from, put, ...);

A thread transforms up to 16 elements in registers, the radix of a pass. Where lines are apart in
memory by one element, as columns are, a task has neighbouring ones.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache

from jaxmono.codegen.emit import BodyEmitter
from jaxmono.codegen.loop import LoopCode
from jaxmono.codegen.loop_schedule import LoopSchedule, flat_loop
from jaxmono.codegen.names import compute, literal
from jaxmono.codegen.schedule import store_offset
from jaxmono.codegen.sig_code import Function, Request, register
from jaxmono.codegen.writer import Writer
from jaxmono.fusion.indexing import Index, Var, delinearize
from jaxmono.fusion.plan import LoopForm, Sig
from jaxmono.hlo import ops

_RADIX = 16
"""Elements that a thread transforms, at most: 32 registers, and as many for roots."""
_COLUMNS = 4
"""Neighbouring columns of a task, at least where it has any: 32 bytes, a sector."""
_START, _TURN = 0.9, 0.12
"""Microseconds of a pass's latencies, and of as many elements as a block has threads, 16 each."""


def fourier_of(sig: Sig) -> ops.Fourier | None:
    """The op of a loop that transforms lines: it stores its result alone."""
    made = sig.body.producer.get(sig.body.outputs[0]) if sig.body.outputs else None
    return made if isinstance(made, ops.Fourier) else None


@dataclass(frozen=True)
class _Lines:
    """n: elements of one. inner: elements between its neighbours. count: of lines."""

    n: int
    inner: int
    count: int

    @staticmethod
    def of(op: ops.Fourier) -> _Lines:
        dims = op.args[0].type.dims
        n, inner = dims[op.axis], math.prod(dims[op.axis + 1:])
        return _Lines(n, inner, math.prod(dims[:op.axis]) * inner)


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
        passes = radices(lines.n)

        def us(together: int) -> float:
            turns = math.ceil(math.ceil(lines.count * request.siblings / together)
                              / request.device.sm_count)
            return turns * sum(_START + _TURN * r / _RADIX * math.ceil(
                lines.n // r * together / request.threads) for r in passes)

        few = min(_COLUMNS, lines.inner)
        fit = [m for m in (1, 2, 4, 8, 16, 32, 64, 128) if few <= m <= max(few, lines.count) and (
            m == few or _shared(lines.n, m, len(passes), size) <= request.shared_bytes // 2)]
        while few > 1 and _shared(lines.n, few, len(passes), size) > request.shared_bytes:
            few //= 2
        return LoopSchedule(1, min(fit, key=us) if fit and min(fit) >= few else few)

    def tasks(self, sig: Sig, schedule: LoopSchedule, threads: int) -> int:
        return math.ceil(_Lines.of(_op(sig)).count / schedule.unroll)

    def shared_bytes(self, sig: Sig, schedule: LoopSchedule, threads: int) -> int:
        op = _op(sig)
        n = _Lines.of(op).n
        return _shared(n, schedule.unroll, len(radices(n)), op.args[0].type.dtype.itemsize)

    def can_flag(self, sig: Sig, schedule: LoopSchedule, result: bool, number: int) -> bool:
        return False

    def emit_body(self, w: Writer, sig: Sig, schedule: LoopSchedule, function: Function) -> None:
        op = _op(sig)
        lines, together = _Lines.of(op), schedule.unroll
        dtype = op.args[0].type.dtype
        t, z = compute(dtype), f"Complex<{compute(dtype)}>"
        i = "int" if 2 * op.args[0].type.size < 2**31 - 2**20 else "long long"
        w.line(f"const {i} first = ({i}){function.task} * {together};")
        _emit_from(w, sig, op, lines, function, i, z)
        _emit_put(w, sig, op, lines, schedule, function, i, z)
        passes = radices(lines.n)
        across = str(lines.inner > 1).lower()
        back = str(op.back).lower()
        w.line(f"using F = Fourier<{t}, {lines.n}, {together}, {across}, {back}, "
               f"{function.threads}>;")
        w.line(f"auto* const part = reinterpret_cast<{z}*>({function.smem});")
        w.line(f"F::passes<1, {', '.join(map(str, passes))}>(from, put, part, part + "
               f"{'F::COPY' if len(passes) > 2 else '0'});", f"{op.opcode}  {op.loc}")


def _op(sig: Sig) -> ops.Fourier:
    op = fourier_of(sig)
    assert op is not None
    return op


def _shared(n: int, together: int, passes: int, itemsize: int) -> int:
    """Bytes: as `Fourier::COPY` has it."""
    return min(passes - 1, 2) * (n * together * 17 // 16) * 2 * itemsize


def _at(lines: _Lines, n: int, j: str, own: str, i: str) -> str:
    """The C expression of an element's place: of ``n`` a line."""
    if lines.inner == 1:
        return f"{own} * {n} + {j}"
    return f"({own} / {lines.inner} * {n} + {j}) * {lines.inner} + {own} % {lines.inner}"


def _emit_from(w: Writer, sig: Sig, op: ops.Fourier, lines: _Lines, function: Function, i: str,
               z: str) -> None:
    """What is transformed, computed of what the loop reads; lines that are not there are the last
    one."""
    e = Var("e", op.args[0].type.size)
    at = delinearize(Index.of(e), op.args[0].type.dims)
    em = BodyEmitter(w, sig.body, function.pointers, var_names={e: "e"},
                     read_only=function.read_only, inline_reduces=True)
    with w.block(f"const auto from = [&](int j, int line) -> {z}", "};"):
        w.line(f"const {i} own = min(first + line, ({i}){lines.count - 1});")
        w.line(f"const {i} e = {_at(lines, lines.n, 'j', 'own', i)};")
        em.push_scope()
        parts = [em.emit(em.unrounded(v), at) for v in op.args]
        em.pop_scope()
        w.line(f"return {{{', '.join(map(str, parts))}{', 0' if len(parts) == 1 else ''}}};")


def _emit_put(w: Writer, sig: Sig, op: ops.Fourier, lines: _Lines, schedule: LoopSchedule,
              function: Function, i: str, z: str) -> None:
    """What comes out, to memory: of a line the first ones, if not all are kept."""
    form, dtype = sig.form, op.args[0].type.dtype
    assert isinstance(form, LoopForm)
    (store,) = form.stores
    lanes = 1 if op.real else 2
    flat, env = flat_loop(form, lanes)
    em = BodyEmitter(w, sig.body, function.pointers, lane=flat, lanes=lanes, var_names={flat: "e"},
                     read_only=function.read_only)
    with w.block(f"const auto put = [&](int k, int line, {z} x)", "};"):
        w.line(f"const {i} own = first + line;")
        tests = [f"own >= {lines.count}"] if lines.count % schedule.unroll else []
        tests += [f"k >= {op.kept}"] if op.kept < lines.n else []
        if tests:
            w.line(f"if ({' || '.join(tests)}) return;")
        if op.twist:
            after = math.prod(op.args[0].type.dims[op.axis + 2:])
            column = f"(int)(own % {lines.inner})" + (f" / {after}" if after > 1 else "")
            w.line(f"x = x * turned<{compute(dtype)}, {op.twist}, {str(op.back).lower()}>"
                   f"(k * ({column}));")
        place = _at(lines, op.kept, "k", "own", i)
        w.line(f"const {i} e = {place};" if op.real else f"const {i} e = 2 * ({place});")
        scale = f" * {literal(1 / op.divisor, dtype)}" if op.divisor > 1 else ""
        w.line(f"const {compute(dtype)} y = x.re{scale};" if op.real else
               f"const Vec<{compute(dtype)}, 2> y{{{{x.re{scale}, x.im{scale}}}}};")
        em.push_scope()
        em.store(function.outputs[store.result], store_offset(sig, store, env), "y", dtype)
        em.pop_scope()


register("loop", FourierCode(), when=lambda sig: fourier_of(sig) is not None)
