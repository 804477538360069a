"""LoopForm -> a device function: a chunk of an element-wise iteration space per task.

A thread computes ``unroll`` vectors; the stores come after all of them, so that the loads of every
vector are in flight before the first is used (MonoNN's instruction rescheduling, section 4.2.2).
Where the compiler leaves loads behind what is computed before them, they are written first
(loads_first.py).
"""

from __future__ import annotations

import math
from functools import lru_cache
from typing import Any

from jaxmono.codegen.accumulated import emit_accumulate
from jaxmono.codegen.early_loads import read_by
from jaxmono.codegen.emit import BodyEmitter
from jaxmono.codegen.loads_first import bind_loads, emit_loads, loads_first, shared_by_all
from jaxmono.codegen.loop_schedule import LoopSchedule, choose_loop, flat_loop, turned
from jaxmono.codegen.names import compute, vector
from jaxmono.codegen.op_code import Emitted
from jaxmono.codegen.padded_copy import emit_padded_copy, padded_copy
from jaxmono.codegen.schedule import (
    Places,
    reads,
    reads_few,
    roots,
    store_offset,
    widest_input,
)
from jaxmono.codegen.sig_code import Function, Request, register
from jaxmono.codegen.stencil_loop import emit_ahead, every_place, place_of
from jaxmono.codegen.turned_loop import Turned, emit_turned
from jaxmono.codegen.writer import Writer
from jaxmono.fusion.accumulated import accumulation
from jaxmono.fusion.indexing import Index, IndexMap, Var
from jaxmono.fusion.plan import LoopForm, Sig
from jaxmono.hlo import ops
from jaxmono.hlo.ir import Op, Value


def made_of_lines(sig: Sig) -> Op | None:
    """The op of a loop that makes whole lines (`ops.OF_LINES`): it stores its result alone."""
    made = sig.body.producer.get(sig.body.outputs[0]) if sig.body.outputs else None
    return made if isinstance(made, ops.OF_LINES) else None


class LoopCode:
    """`SigCode` of loops."""

    def choose(self, sig: Sig, request: Request) -> LoopSchedule:
        return choose_loop(sig, request.device, request.threads, request.siblings,
                           beside=bool(request.stage), streaming=request.streaming)

    def tasks(self, sig: Sig, schedule: LoopSchedule, threads: int) -> int:
        form = sig.form
        assert isinstance(form, LoopForm)
        if schedule.turned:
            return _turned(sig).tasks
        flat, _ = _flat(form, schedule)
        return math.ceil(flat.size / (threads * schedule.lanes * schedule.unroll))

    def shared_bytes(self, sig: Sig, schedule: LoopSchedule, threads: int) -> int:
        return _turned(sig).shared_bytes if schedule.turned else 0

    def workspace_bytes(self, sig: Sig, schedule: LoopSchedule) -> int:
        return 0

    def counters(self, sig: Sig, schedule: LoopSchedule) -> int:
        return 0

    def mail(self, sig: Sig, schedule: LoopSchedule) -> int:
        return 0

    def can_flag(self, sig: Sig, schedule: LoopSchedule, result: bool, number: int) -> bool:
        form = sig.form
        assert isinstance(form, LoopForm)
        if schedule.turned:
            return False  # blocks meet inside
        if not result and not reads_few(_reads(sig, schedule)[sig.body.inputs[number]]):
            return False
        flat, env = _flat(form, schedule)
        (first, *more) = roots(sig, form.stores, env)
        return bool(more) or padded_copy(sig.body, *first, flat, schedule.lanes) is None

    def emit_prefetch(self, w: Writer, sig: Sig, schedule: Any, function: Function) -> bool:
        del w, sig, schedule, function
        return False

    def can_double(self, sig: Sig, schedule: Any, function: Function) -> bool:
        del sig, schedule, function
        return False

    def emit_load(self, w: Writer, sig: Sig, schedule: Any, function: Function) -> bool:
        del w, sig, schedule, function
        return False

    def emit_body(self, w: Writer, sig: Sig, schedule: LoopSchedule, function: Function) -> None:
        form = sig.form
        assert isinstance(form, LoopForm)
        if schedule.turned:
            _emit_turned(w, sig, form, function)
            return
        lanes, unroll = schedule.lanes, schedule.unroll
        flat, env = _flat(form, schedule)
        t = "int" if flat.size < 2**31 - 2**20 else "long long"
        stride = function.threads * lanes
        first = f"({t}){function.task} * {stride * unroll} + thread_id() * {lanes}"
        ((v, at), *more) = roots(sig, form.stores, env)
        if not more and (copy := padded_copy(sig.body, v, at, flat, lanes)) is not None:
            emit_padded_copy(w, copy, store_offset(sig, form.stores[0], env), flat, lanes, unroll,
                             function, first)
            return
        em = BodyEmitter(w, sig.body, function.pointers, lane=flat, lanes=lanes,
                         var_names={flat: "e"}, read_only=function.read_only, inline_reduces=True)
        envs = [place_of(env, at) for at in _places(form, schedule)]
        items = [(s, at, root) for at in envs
                 for s, root in zip(form.stores, roots(sig, form.stores, at), strict=True)]
        values = [root for *_, root in items]
        em.expect(expected := read_by(sig.body, values))

        def store(i: int, x: Emitted) -> None:
            s, at, (_, place) = items[i]
            if (op := accumulation(sig.body, sig.body.outputs[s.result])) is not None:
                emit_accumulate(em, function.outputs[s.result], store_offset(sig, s, at), x, op,
                                place)
                return
            em.store(function.outputs[s.result], store_offset(sig, s, at), x,
                     sig.body.outputs[s.result].type.dtype)

        if unroll == 1:
            w.line(f"const {t} e = {first};")
            w.line(f"if (e >= {flat.size}) return;")
            if schedule.parts > 1:
                for load in reversed(expected):
                    em.emit(*load)
            elif schedule.places:
                plain = roots(sig, form.stores, {v: Index.of(v) for v in form.vars})
                emit_ahead(em, [(em.unrounded(v), at) for v, at in plain], envs,
                           widest_input(sig))
            for i, x in enumerate([em.emit(em.unrounded(v), at) for v, at in values]):
                store(i, x)
            return
        w.line(f"const {t} e0 = {first};")
        if (ahead := loads_first(sig.body, values, flat, lanes)) and not schedule.order:
            loaded = emit_loads(w, em, ahead, unroll,
                                f"const {t} e = min(e0 + u * {stride}, ({t}){flat.size - lanes});")
            for root in shared_by_all(sig.body, values, flat):
                em.emit(*root)
            with em.scope(f"for (int u = 0; u < {unroll}; ++u)", pragma="unroll"):
                w.line(f"const {t} e = e0 + u * {stride};")
                with em.scope(f"if (e < {flat.size})"):
                    bind_loads(em, loaded)
                    for i, x in enumerate([em.emit(em.unrounded(v), at) for v, at in values]):
                        store(i, x)
            return
        for root in shared_by_all(sig.body, values, flat):
            if root[0] in function.flagged:  # asked for once, which the compiler may not decide
                em.emit(*root)
        held = self._compute(w, em, values, t, stride, unroll, flat.size - lanes)
        with em.scope(f"for (int u = 0; u < {unroll}; ++u)", pragma="unroll"):
            w.line(f"const {t} e = e0 + u * {stride};")
            with em.scope(f"if (e < {flat.size})"):
                for i, (name, x) in enumerate(held):
                    store(i, Emitted(f"{name}[u]", x.vector, x.exact))

    @staticmethod
    def _compute(w: Writer, em: BodyEmitter, values: list[tuple[Value, IndexMap]], t: str,
                 stride: int, unroll: int, last: int) -> list[tuple[str, Emitted]]:
        """The loop that fills one array per store; past the end it repeats the last vector."""
        inner = w.child()
        em.w = inner
        em.push_scope()
        held: list[tuple[str, Emitted]] = []
        for v, at in values:
            x = em.emit(em.unrounded(v), at)
            name = w.fresh("out")
            inner.line(f"{name}[u] = {x};")
            held.append((name, x))
        em.pop_scope()
        em.w = w
        for (name, x), (v, _) in zip(held, values, strict=True):
            ctype = vector(compute(v.type.dtype), em.lanes if x.vector else 1)
            w.line(f"{ctype} {name}[{unroll}];")
        w.directive("#pragma unroll")
        with w.block(f"for (int u = 0; u < {unroll}; ++u)"):
            w.line(f"const {t} e = min(e0 + u * {stride}, ({t}){last});")
            w.extend(inner)
        return held


def _turned(sig: Sig) -> Turned:
    found = turned(sig)
    assert found is not None, "chosen for loops that can be"
    return found


def _emit_turned(w: Writer, sig: Sig, form: LoopForm, function: Function) -> None:
    t = _turned(sig)

    def finish(em: BodyEmitter) -> None:
        values = [em.emit(em.unrounded(v), at) for v, at in roots(sig, form.stores, t.env)]
        for s, x in zip(form.stores, values, strict=True):
            em.store(function.outputs[s.result], store_offset(sig, s, t.env), x,
                     sig.body.outputs[s.result].type.dtype)

    emit_turned(w, sig.body, t, function, finish)


def _flat(form: LoopForm, s: LoopSchedule) -> tuple[Var, dict[Var, Index]]:
    return flat_loop(form, s.lanes, s.order, s.places, s.parts)


def _places(form: LoopForm, s: LoopSchedule) -> list[tuple[int, ...]]:
    """Of a thread, from the first one of its first part."""
    near = every_place(s.places or (1,) * len(form.vars))
    return [(*at, last + form.vars[-1].size // s.parts * i) for *at, last in near
            for i in range(s.parts)] if s.parts > 1 else near


@lru_cache(maxsize=16)
def _reads(sig: Sig, schedule: LoopSchedule) -> Places:
    """What an element reads."""
    form = sig.form
    assert isinstance(form, LoopForm)
    _, env = _flat(form, schedule)
    return reads(sig.body, roots(sig, form.stores, env))


register("loop", LoopCode())
