"""Registers the generators of "dot" and "attention" Sigs with the kernel assembly."""

from __future__ import annotations

from jaxmono.codegen import (
    attention,
    attention_few,
    attention_flash,
    attention_wgmma,
    back_to_back,
    dot,
    dot_function,
    dot_gemv,
    dot_gemv_shape,
    dot_wgmma,
    dot_wgmma_shared,
)
from jaxmono.codegen.attention import AttentionCode, AttentionSchedule
from jaxmono.codegen.dot import DotCode
from jaxmono.codegen.dot_candidates import (
    ahead_us,
    bf16x6_candidates,
    bytes_candidates,
    dot_candidates,
    finishing,
    gemv_bound,
    gemv_candidates,
    image_bound,
    image_candidates,
    late_us,
    mapped_ahead_us,
    room,
    swapped_bound,
    swapped_candidates,
    tf32_candidates,
    wgmma_candidates,
)
from jaxmono.codegen.dot_schedule import DotSchedule, NoTile
from jaxmono.codegen.dot_schedule_bf16x6 import LATE_US
from jaxmono.codegen.dot_schedule_pingpong import apart, hidden
from jaxmono.codegen.operand import has_rows, is_unaligned
from jaxmono.codegen.sig_code import Function, Request, register
from jaxmono.codegen.writer import Writer
from jaxmono.fusion.fold import STREAMED_ROWS
from jaxmono.fusion.plan import DotForm, Sig

FLAGGED_ROWS = 5
"""Rows up to which weights are streamed behind a border in any case: what is made so has flags, and
blocks need not meet. Of 5 rows GPT-2's decode step takes 0.89 of the time on an H200, a beam
search's trip 0.92; of 6 OPT-125M's takes 1.08, of 8 GPT-2's 1.33."""

ALONE_ROWS = 2
"""The same of stages that nothing is in front of, where wgmma can have the weights as its left
operand: 4x8192x2048 takes 10.9 us of an H200 so, streamed 13.0, 4x4096x14336 29.7 and 33.3."""

_PRODUCED = ("wgmma", dot_wgmma_shared.SWAPPED, dot_wgmma_shared.IMAGE,
             *dot_wgmma_shared.REGISTERS)
"""Families whose operands come from producer warps."""


def _thin(s: DotSchedule, request: Request) -> bool:
    """Whether a stream of weights for 3 rows and more is cut into rows of 16 bytes, which no
    barrier hides: 4x768x768 alone takes 3.3 us so, 2.9 by mma."""
    return s.bm > dot_gemv_shape.FMA_ROWS and s.bn <= 8 and not request.behind


class _Dot:
    def choose(self, sig: Sig, request: Request) -> DotSchedule:
        form = sig.form
        assert isinstance(form, DotForm)
        if form.reduced or form.pairs:
            return finishing(sig, request)[0]
        skinny = gemv_candidates(sig, request)
        swapped = swapped_candidates(sig, request)
        streamed = FLAGGED_ROWS if request.behind else ALONE_ROWS if swapped else STREAMED_ROWS
        if skinny and form.m.size <= streamed and not _thin(skinny[0][1], request) \
                and not is_unaligned(dot.any_tile(sig).rhs):
            # Nothing beats it: multiply-adds are far from their limit, and a tile of the tensor
            # cores would be nearly empty.
            return skinny[0][1]
        try:
            cost, s = dot.schedule(sig, request.device, warps=request.threads // 32,
                                   shared_bytes=room(request), siblings=request.siblings)
        except NoTile:  # 16 normalised rows are too large; a stream has as many as there are
            if not skinny:
                raise
            return skinny[0][1]
        tiles = wgmma_candidates(sig, request) if s.family == "mma" else []
        if tiles:
            ahead = ahead_us(request, form.m.size, gathered=not has_rows(DotCode.of(sig, s).lhs))
            if tiles[0][0] - ahead < cost:
                cost, s = tiles[0][0] - ahead, tiles[0][1]
        image = image_candidates(sig, request)
        if image and image[0][0] < image_bound(sig, request, s.family, cost):
            cost, s = image[0]
        left, ahead = tf32_candidates(sig, request), mapped_ahead_us(request, form.m.size)
        if left and left[0][0] - ahead < cost:
            cost, s = left[0][0] - ahead, left[0][1]
        exact = bf16x6_candidates(sig, request)
        ahead = ahead_us(request, form.m.size, gathered=False)
        if exact and (s.family == "simt" or exact[0][0] - ahead < cost + LATE_US):
            cost, s = exact[0][0] - ahead, exact[0][1]
        narrow = bytes_candidates(sig, request)
        if narrow and narrow[0][0] < cost:
            cost, s = narrow[0]
        if swapped and swapped[0][0] < swapped_bound(sig, request, s.family, cost):
            cost, s = swapped[0]
        few = form.m.size <= dot_gemv_shape.MAX_ROWS  # 16 rows: llama_decode 1188 us, not 1423
        bound = cost if s.family == dot_wgmma_shared.SWAPPED else gemv_bound(sig, request, cost)
        if skinny and (s.family == "simt" or (few and skinny[0][0] < bound)):
            return skinny[0][1]
        return apart(sig, request, s) or hidden(sig, request, cost, s, tiles) or s

    def candidates(self, sig: Sig, request: Request) -> tuple[DotSchedule, ...]:
        return dot_candidates(sig, request, self.choose(sig, request))

    def late_us(self, sig: Sig, request: Request, schedule: DotSchedule) -> float:
        return late_us(sig, request, schedule)

    def tasks(self, sig: Sig, schedule: DotSchedule, threads: int) -> int:
        del threads
        return DotCode.of(sig, schedule).tasks

    def shared_bytes(self, sig: Sig, schedule: DotSchedule, threads: int) -> int:
        if schedule.family == "gemv":
            return dot_gemv.shape(DotCode.of(sig, schedule), threads).shared_bytes
        family = dot_wgmma_shared if schedule.family in _PRODUCED else dot_function
        return family.shared_bytes(DotCode.of(sig, schedule))

    def workspace_bytes(self, sig: Sig, schedule: DotSchedule) -> int:
        return 4 * dot_function.workspace_floats(DotCode.of(sig, schedule))

    def counters(self, sig: Sig, schedule: DotSchedule) -> int:
        return dot_function.counters(DotCode.of(sig, schedule))

    def mail(self, sig: Sig, schedule: DotSchedule) -> int:
        return DotCode.of(sig, schedule).mail

    def can_flag(self, sig: Sig, schedule: DotSchedule, result: bool, number: int) -> bool:
        return schedule.family == "gemv" and (
            result or dot_gemv.can_flag(DotCode.of(sig, schedule), sig.body.inputs[number]))

    def emit_prefetch(self, w: Writer, sig: Sig, schedule: DotSchedule,
                      function: Function) -> bool:
        if schedule.family in _PRODUCED:
            return False  # producers are ahead of the barrier anyway
        if schedule.family == "gemv":
            return dot_gemv.emit_prefetch(w, DotCode.of(sig, schedule),
                                          pointers=function.pointers,
                                          read_only=tuple(function.read_only),
                                          threads=function.threads, doubled=function.doubled)
        return dot_function.emit_prefetch(w, DotCode.of(sig, schedule),
                                          pointers=function.pointers,
                                          read_only=tuple(function.read_only))

    def can_double(self, sig: Sig, schedule: DotSchedule, function: Function) -> bool:
        if schedule.family != "gemv":
            return False
        return dot_gemv.is_whole(DotCode.of(sig, schedule), function.threads)

    def emit_load(self, w: Writer, sig: Sig, schedule: DotSchedule, function: Function) -> bool:
        if schedule.family not in _PRODUCED:
            return False
        dot_wgmma.emit_load(w, DotCode.of(sig, schedule), pointers=function.pointers,
                            read_only=tuple(function.read_only), behind=function.behind)
        return True

    def emit_body(self, w: Writer, sig: Sig, schedule: DotSchedule, function: Function) -> None:
        if schedule.family in _PRODUCED:
            dot_wgmma.emit_body(w, DotCode.of(sig, schedule), pointers=function.pointers,
                                outputs=function.outputs, read_only=tuple(function.read_only),
                                workspace=function.workspace, arrivals=function.arrivals,
                                mail=function.mail, behind=function.behind)
            return
        if schedule.family == "gemv":
            dot_gemv.emit_body(w, DotCode.of(sig, schedule), pointers=function.pointers,
                               outputs=function.outputs, read_only=tuple(function.read_only),
                               threads=function.threads, mail=function.mail,
                               fetched=function.fetched, doubled=function.doubled,
                               flagged=function.flagged)
            return
        dot_function.emit_body(w, DotCode.of(sig, schedule), pointers=function.pointers,
                               outputs=function.outputs, read_only=tuple(function.read_only),
                               threads=function.threads, workspace=function.workspace,
                               arrivals=function.arrivals, mail=function.mail,
                               fetched=function.fetched)


class _Attention:
    def choose(self, sig: Sig, request: Request) -> AttentionSchedule:
        warps, shared = request.threads // 32, request.shared_bytes
        pair = back_to_back.schedule(sig, request.device, shared_bytes=shared) \
            if request.wgmma else None
        if pair is not None:
            return pair
        found = attention_flash.schedule(sig, request.device, warps=warps,
                                         shared_bytes=room(request), siblings=request.siblings)
        if found is None:
            return attention.schedule(sig, request.device, warps=warps,
                                      shared_bytes=room(request))
        few = attention_few.schedule(sig, request.device, warps=warps,
                                     shared_bytes=room(request), siblings=request.siblings)
        if few is not None and attention_few.has_new_rows(sig, few[1]):
            return few[1]  # others would compute all elements of the cache
        other = attention_wgmma.schedule(
            sig, request.device, shared_bytes=shared,
            siblings=request.siblings) if request.wgmma else None
        return min((x for x in (few, found, other) if x is not None), key=lambda x: x[0])[1]

    def tasks(self, sig: Sig, schedule: AttentionSchedule, threads: int) -> int:
        del threads
        return AttentionCode.of(sig, schedule).tasks

    def shared_bytes(self, sig: Sig, schedule: AttentionSchedule, threads: int) -> int:
        del threads
        if schedule.family == "back_to_back":
            return back_to_back.shared_bytes_of(AttentionCode.of(sig, schedule), schedule)
        family = {"flash": attention_flash, "wgmma": attention_wgmma,
                  "few": attention_few}.get(schedule.family, attention)
        return family.shared_bytes_of(AttentionCode.of(sig, schedule).form, schedule)

    def workspace_bytes(self, sig: Sig, schedule: AttentionSchedule) -> int:
        if schedule.family == "few":
            return 0
        return attention_flash.workspace_bytes(AttentionCode.of(sig, schedule).form, schedule)

    def counters(self, sig: Sig, schedule: AttentionSchedule) -> int:
        counted = schedule.split > 1 and schedule.family != "few"
        return AttentionCode.of(sig, schedule).tiles if counted else 0

    def mail(self, sig: Sig, schedule: AttentionSchedule) -> int:
        return attention_few.mail(AttentionCode.of(sig, schedule)) \
            if schedule.family == "few" else 0

    def can_flag(self, sig: Sig, schedule: AttentionSchedule, result: bool, number: int) -> bool:
        return schedule.family == "few" and (
            result or attention_few.can_flag(AttentionCode.of(sig, schedule),
                                             sig.body.inputs[number]))

    def emit_prefetch(self, w: Writer, sig: Sig, schedule: AttentionSchedule,
                      function: Function) -> bool:
        if schedule.family != "few":
            return False
        return attention_few.emit_prefetch(w, AttentionCode.of(sig, schedule),
                                           pointers=function.pointers, given=function.given,
                                           threads=function.threads, doubled=function.doubled)

    def can_double(self, sig: Sig, schedule: AttentionSchedule, function: Function) -> bool:
        return schedule.family == "few" and attention_few.comes_ahead(
            AttentionCode.of(sig, schedule), function.given)

    def emit_load(self, w: Writer, sig: Sig, schedule: AttentionSchedule,
                  function: Function) -> bool:
        code, read_only = AttentionCode.of(sig, schedule), tuple(function.read_only)
        if schedule.family == "wgmma":
            attention_wgmma.emit_load(w, code, pointers=function.pointers, read_only=read_only)
        elif schedule.family == "back_to_back":
            back_to_back.emit_load(w, code, pointers=function.pointers, read_only=read_only,
                                   behind=function.behind)
        else:
            return False
        return True

    def emit_body(self, w: Writer, sig: Sig, schedule: AttentionSchedule,
                  function: Function) -> None:
        code = AttentionCode.of(sig, schedule)
        if schedule.family == "back_to_back":
            back_to_back.emit_body(w, code, pointers=function.pointers, outputs=function.outputs,
                                   read_only=tuple(function.read_only))
            return
        if schedule.family == "few":
            attention_few.emit_body(w, code, pointers=function.pointers, outputs=function.outputs,
                                    read_only=tuple(function.read_only), mail=function.mail,
                                    given=function.given, fetched=function.fetched,
                                    doubled=function.doubled)
            return
        if schedule.family != "scores":
            family = attention_wgmma if schedule.family == "wgmma" else attention_flash
            family.emit_body(w, code, pointers=function.pointers, outputs=function.outputs,
                             read_only=tuple(function.read_only), workspace=function.workspace,
                             arrivals=function.arrivals)
            return
        attention.emit_body(w, code, pointers=function.pointers, outputs=function.outputs,
                            read_only=tuple(function.read_only), threads=function.threads)


register("dot", _Dot())
register("attention", _Attention())
