"""Loops that combine rows up to each element (`ops.Prefix`): rows lie in a block's threads.

    Vec<float, 4> v1[1];
    set_lanes(v1[0], v0);                                       // four elements of a row
    prefix_rows<1024, 256, false>(v1, [](auto a, auto b) { return op_add(a, b); }, smem);
    store<float, 4>(r0 + e, v1[0]);

Rows up to a vector for each thread are several a task; longer ones have several vectors a thread.
Pieces of a line are a task each.
"""

from __future__ import annotations

import math

from jaxmono.codegen.emit import BodyEmitter
from jaxmono.codegen.loop import LoopCode, made_of_lines
from jaxmono.codegen.loop_schedule import LoopSchedule, flat_loop, vector_lanes
from jaxmono.codegen.names import compute, literal
from jaxmono.codegen.op_code import Emitted
from jaxmono.codegen.schedule import roots, store_offset
from jaxmono.codegen.sig_code import Function, Request, register
from jaxmono.codegen.writer import Writer
from jaxmono.fusion.plan import LoopForm, Sig
from jaxmono.hlo import ops
from jaxmono.hlo.passes.rules.reduce_window import neutral


class PrefixCode(LoopCode):
    """`SigCode` of such loops."""

    def choose(self, sig: Sig, request: Request) -> LoopSchedule:
        """A vector for each thread, or several."""
        op, lanes = _op(sig), vector_lanes(sig, streaming=request.streaming)
        n = op.result.type.dims[-1]
        while n % lanes or op.row % lanes:
            lanes //= 2
        return LoopSchedule(lanes, math.ceil((op.row or n) / (request.threads * lanes)))

    def tasks(self, sig: Sig, schedule: LoopSchedule, threads: int) -> int:
        op = _op(sig)
        *lines, n = op.result.type.dims
        return math.ceil(math.prod(lines) * _pieces(op) / _rows(n, op, schedule, threads))

    def shared_bytes(self, sig: Sig, schedule: LoopSchedule, threads: int) -> int:
        return 2 * threads // 32 * _op(sig).args[0].type.dtype.itemsize

    def can_flag(self, sig: Sig, schedule: LoopSchedule, result: bool, number: int) -> bool:
        return False

    def emit_body(self, w: Writer, sig: Sig, schedule: LoopSchedule, function: Function) -> None:
        _emit(w, sig, _op(sig), schedule, function)


def _op(sig: Sig) -> ops.Prefix:
    op = made_of_lines(sig)
    assert isinstance(op, ops.Prefix)
    return op


def _emit(w: Writer, sig: Sig, op: ops.Prefix, schedule: LoopSchedule,
          function: Function) -> None:
    form = sig.form
    assert isinstance(form, LoopForm)
    lanes, several, threads = schedule.lanes, schedule.unroll, function.threads
    n, dtype = op.result.type.dims[-1], op.args[0].type.dtype
    pieces, longest = _pieces(op), op.row or n
    flat, env = flat_loop(form, lanes)
    ((_, at),) = roots(sig, form.stores, env)
    em = BodyEmitter(w, sig.body, function.pointers, lane=flat, lanes=lanes,
                     var_names={flat: "e"}, read_only=function.read_only, inline_reduces=True)
    x, t = w.fresh("row"), "int" if flat.size < 2**31 - 2**20 else "long long"
    rows = _rows(n, op, schedule, threads)
    combine = f"[](auto a, auto b) {{ return op_{op.kind}(a, b); }}"
    scan = (f"prefix_rows<{longest}, {threads}, {str(op.back).lower()}>({x}, {combine}, "
            f"{function.smem});")

    def store() -> None:
        name = f"{x}[u]" if several > 1 else f"{x}[0]"
        made = Emitted(name if lanes > 1 else f"{name}.x[0]", lanes > 1, False)
        for front in op.args[1:]:
            first = em.emit(front, at)
            made = Emitted(f"v_{op.kind}({first}, {made})" if lanes > 1
                           else f"op_{op.kind}({first}, {made})", lanes > 1, False)
        em.store(function.outputs[form.stores[0].result], store_offset(sig, form.stores[0], env),
                 made, op.result.type.dtype)

    w.line(f"Vec<{compute(dtype)}, {lanes}> {x}[{several}];")
    if several == 1 and pieces == 1:
        w.line(f"const {t} own = ({t}){function.task} * {rows * n} + thread_id() * {lanes};")
        inside = f"own < {flat.size}"
        if rows * n < threads * lanes:
            inside += f" && thread_id() < {rows * n // lanes}"
        w.line(f"const {t} e = min(own, ({t}){flat.size - lanes});")
        w.line(f"set_lanes({x}[0], {em.emit(em.unrounded(op.args[0]), at)});")
        w.line(scan, f"{op.opcode} {op.kind}  {op.loc}")
        with em.scope(f"if ({inside})"):
            store()
        return
    nothing = literal(neutral(op.kind, dtype), dtype)
    place = f"(u * {threads} + thread_id()) * {lanes}"
    row, size = f"({t}){function.task} * {n}", str(n)
    if pieces > 1:
        piece, row, size = w.fresh("piece"), w.fresh("first"), str(longest)
        w.line(f"const int {piece} = (int)({function.task} % {pieces});")
        w.line(f"const {t} {row} = ({t})({function.task} / {pieces}) * {n} + {piece} * {longest};")
        if n % longest:  # the last one is shorter
            size = w.fresh("size")
            w.line(f"const int {size} = min({longest}, {n} - {piece} * {longest});")
    with em.scope(f"for (int u = 0; u < {several}; ++u)", pragma="unroll"):
        w = em.w
        w.line(f"const {t} e = {row} + min({place}, {size} - {lanes});")
        w.line(f"set_lanes({x}[u], {em.emit(em.unrounded(op.args[0]), at)});")
        w.line(f"if ({place} >= {size}) set_lanes({x}[u], {nothing});")
    em.w.line(scan, f"{op.opcode} {op.kind}  {op.loc}")
    with em.scope(f"for (int u = 0; u < {several}; ++u)", pragma="unroll"):
        em.w.line(f"const {t} e = {row} + {place};")
        with em.scope(f"if ({place} < {size})"):
            store()


def _pieces(op: ops.Prefix) -> int:
    """Of a line."""
    return -(-op.result.type.dims[-1] // op.row) if op.row else 1


def _rows(n: int, op: ops.Prefix, schedule: LoopSchedule, threads: int) -> int:
    """Of a task."""
    return 1 if op.row or schedule.unroll > 1 else threads * schedule.lanes // n


register("loop", PrefixCode(), when=lambda sig: isinstance(made_of_lines(sig), ops.Prefix))
