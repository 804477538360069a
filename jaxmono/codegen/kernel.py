"""The text of one kernel: includes, one device function per Sig, and the stages in order.

    struct Params { void* buf[N]; };          inputs, outputs, scratch
    device functions                          one per distinct Sig, whatever the depth
    tables of buffer references               one row per group, where groups share a call
    __global__ kernel                         stages, grid barriers between them (but where values
                                              have flags); a periodic run of stages is a loop over
                                              its tables

Groups of a stage are flattened: task t of all tasks runs on block t % num_blocks().

Where a Sig has a load function (`dot_wgmma`), the block has producer warps beside its consumers:
both walk the same stages and tasks (device/roles.cuh).
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from jaxmono.codegen.calls import UNIT, Call, Span, Unit, has_own_mail
from jaxmono.codegen.dispatch import Dispatch
from jaxmono.codegen.dot_wgmma_shared import CONSUMERS, PRODUCERS, ROLES_BYTES, TF32
from jaxmono.codegen.doubled import Halves, eligible
from jaxmono.codegen.errors import CodegenError
from jaxmono.codegen.includes import needed
from jaxmono.codegen.names import FlaggedName
from jaxmono.codegen.one_block import in_one_block
from jaxmono.codegen.parted import meet
from jaxmono.codegen.producers import (
    Boundary,
    boundaries,
    emit_producers,
    goes_on,
    has_load,
    is_mixed,
    meet_before_task,
    trips,
)
from jaxmono.codegen.schedule import KernelSchedule
from jaxmono.codegen.sig_code import Function, code_for
from jaxmono.codegen.unit_function import emit_function
from jaxmono.codegen.writer import Writer
from jaxmono.codegen.written import Written, whole
from jaxmono.fusion.flags import flagged_params
from jaxmono.fusion.plan import Buffer, Group, Place, Plan, Sig

_WIDE_SUMS = 128
"""Of a thread, from which on nothing stays in registers that can be found again (`fresh` in
device/opaque.cuh)."""
_FEW_REGISTERS = 40
"""Of a producer, where consumers have more sums than those."""


@dataclass(frozen=True)
class Kernel:
    """Generated text and what launching it needs.

    Attributes:
      max_blocks: the largest number of tasks of a stage.
      scratch_bytes: the plan's, and the workspaces of its groups after that.
      cooperative: blocks wait for each other. Where none does, the launch may begin before what
        runs in front of it in its stream is done (`launch_order` in the text waits for that).
      threads: of a block, producers included.
      wide_tiles: `KernelSchedule.wide_tiles`, as it was taken; None where there are no producers.
    """

    source: str
    shared_bytes: int
    scratch_bytes: int
    max_blocks: int
    cooperative: bool
    threads: int
    wide_tiles: bool | None = None


def emit_kernel(plan: Plan, schedule: KernelSchedule, name: str, header: str = "", *,
                room: int = 0) -> Kernel:
    """Writes the kernel of a plan.

    Args:
      schedule: has an entry for every Sig of the plan.
      name: of the ``__global__`` function, a C identifier.
      header: text for the comment at the top.
      room: most bytes of shared memory of a block, two tasks of which may be there at a time.
    """
    return _Assembly(plan, schedule, name, room).emit(header)


class _Assembly:
    def __init__(self, plan: Plan, schedule: KernelSchedule, name: str, room: int) -> None:
        self.plan, self.schedule, self.name = plan, schedule, name
        self.buffers: dict[int, Buffer] = {b.id: b for b in plan.buffers}
        self.inputs, self.outputs = len(plan.inputs), len(plan.outputs)
        self.written = Written(plan)
        self.parts = dict[int, list[int]]()
        for b in plan.buffers:
            if b.place is Place.PART:
                self.parts.setdefault(b.index, []).append(b.id)
        self.w = Writer()
        self.units = {s.key: self._unit(i, s) for i, s in enumerate(plan.sigs)}
        self.roles = any(u.load is not None for u in self.units.values())
        self.meets = not in_one_block(plan, schedule)  # blocks do
        self.workspace_at = math.ceil(plan.scratch_bytes / UNIT) * UNIT
        self.scratch_bytes = plan.scratch_bytes
        most = max((sum(self._of(g).workspace for g in s.groups) for s in plan.stages), default=0)
        if most:
            self.scratch_bytes = self.workspace_at + most
        # A block's first task of a stage. Without barriers the tasks of a stage begin at the block
        # behind those of the stage before: one that has none there fetches weights meanwhile. Not
        # where weights stream on beyond what can be fetched ahead (Llama 1B's step: 3 % longer).
        streamed = sum(any(self._of(g).streams for g in s.groups) for s in plan.stages)
        self.turns = bool(plan.open) and 4 * streamed <= len(plan.stages)
        self.own = "own" if self.turns else "block_id()"
        self.half = 0
        if self.turns and not self.roles and schedule.blocks_per_sm == 1:
            keys, self.half = eligible(self.units, self._names_of, room)
            self.units.update((key, self._doubled(self.units[key])) for key in keys)

    # ---- analysis ------------------------------------------------------------------------------

    def _unit(self, number: int, sig: Sig) -> Unit:
        code = code_for(sig)
        if sig.key not in self.schedule.sigs:
            raise CodegenError(f"the schedule has no entry for {sig.name}")
        s = self.schedule.sigs[sig.key]
        groups = [g for g in self.plan.groups if g.sig.key == sig.key]
        readable = re.sub(r"\W+", "_", sig.name)[:40]
        work = math.ceil(code.workspace_bytes(sig, s) / UNIT) * UNIT
        slots = max(sum(g.sig.key == sig.key for g in st.groups) for st in self.plan.stages)
        mail = code.mail(sig, s)
        boxes = len(groups) if has_own_mail(self.plan, sig, mail) else slots
        alone = all(not self._memory(g.params) & self._memory(g.results)
                    and len(self._memory(g.results)) == len(g.results) for g in groups)
        read_only = tuple(
            all(self.written.is_read_only(g, i) for g in groups)
            for i in range(len(sig.body.inputs)))
        tasks = code.tasks(sig, s, self.schedule.threads)
        w = Writer(indent=1, parent=self.w)
        has_flags = flagged_params(self.plan, groups[0])
        flagged = has_flags if any(has_flags) else ()
        names = self._function_names(sig, read_only, flagged)
        behind = self._is_behind(sig)
        prefetch = w if behind and code.emit_prefetch(w, sig, s, names) else None
        w = Writer(indent=1, parent=self.w)
        load = w if code.emit_load(w, sig, s, names) else None
        return Unit(sig, f"f{number}_{readable}", code, s, tasks, work,
                     code.counters(sig, s), mail, slots, boxes, alone, read_only, prefetch, load,
                     code.shared_bytes(sig, s, self.schedule.threads), flagged=flagged)

    def _doubled(self, u: Unit) -> Unit:
        w = Writer(indent=1, parent=self.w)
        u.code.emit_prefetch(w, u.sig, u.schedule, replace(self._names_of(u), doubled=True))
        return replace(u, prefetch=w, doubled=True)

    def _is_behind(self, sig: Sig) -> bool:
        """Whether a grid barrier may be in front of it."""
        return any(g.sig.key == sig.key for st in self.plan.stages[1:] for g in st.groups)

    def _names_of(self, u: Unit) -> Function:
        return self._function_names(u.sig, u.read_only, u.flagged)

    def _function_names(self, sig: Sig, read_only: Sequence[bool],
                        flagged: Sequence[bool]) -> Function:
        body = sig.body
        return Function(
            pointers={v: FlaggedName(f"p{i}") if flagged and flagged[i] else f"p{i}"
                      for i, v in enumerate(body.inputs)},
            outputs=tuple(f"r{i}" for i in range(len(body.outputs))),
            read_only=frozenset(v for v, ro in zip(body.inputs, read_only, strict=True) if ro),
            threads=self.schedule.threads, behind=self._is_behind(sig),
            given=frozenset(v for i, v in enumerate(body.inputs) if all(
                whole(self.plan, g.params[i]).place is Place.INPUT
                for g in self.plan.groups if g.sig.key == sig.key)),
            flagged=frozenset(v for v, f in zip(body.inputs, flagged, strict=False) if f))

    def _of(self, group: Group) -> Unit:
        return self.units[group.sig.key]

    def _memory(self, ids: Sequence[int]) -> set[object]:
        """What tells the memory of buffers apart: equal entries may overlap."""
        out: set[object] = set()
        for i in ids:
            b = self.buffers[i]
            out.update((Place.PART.value, p) for p in self.parts.get(i, ()))
            if b.before is not None:
                out |= self._memory([b.before])
            elif b.place is Place.STATE:
                out.add((Place.OUTPUT.value, b.index))
            elif b.place is Place.OUTPUT and b.alias is not None:
                out.add(("input", b.alias))
            elif b.place in (Place.SCRATCH, Place.FLAGGED, Place.PART):
                out.add((b.place.value, b.id))
            else:
                out.add((b.place.value, b.index))
        return out

    def _reference(self, i: int) -> tuple[int, int]:
        """(number of the pointer in Params, byte offset from it) of a buffer; of one with flags the
        offset among their words."""
        b = self.buffers[i]
        if b.place is Place.FLAGGED:
            return 0, b.offset
        if b.place is Place.PART:
            pointer, begin = self._reference(b.index)
            return pointer, begin + b.offset
        if b.place is Place.INPUT:
            return b.index, 0
        if b.place in (Place.OUTPUT, Place.STATE):
            return self.inputs + b.index, 0
        if b.place is Place.SCRATCH:
            return self.inputs + self.outputs, b.offset
        raise CodegenError(f"buffer {i} lives in {b.place.value}, which no group can be given")

    # ---- text ----------------------------------------------------------------------------------

    def emit(self, header: str) -> Kernel:
        self._of_spans([*self._spans()])
        sites = [c.unit.name for x in self.spans for calls in x.calls for c in calls]
        self.called_often = {name for name in sites if sites.count(name) > 1}
        self.dispatch = Dispatch(self.called_often, self.inputs + self.outputs)
        shared = max([u.shared for u in self.units.values()] + [2 * self.half])
        roles_at = math.ceil(shared / 128) * 128
        wide = self.schedule.wide_tiles
        if wide is None:
            wide = any(u.sums >= _WIDE_SUMS for u in self.units.values())
        functions = Writer(parent=self.w)
        for unit in self.units.values():
            if unit.tasks:
                emit_function(functions, unit, self._names_of(unit),
                              often=unit.name in self.called_often)
        kernel = Writer(parent=self.w)
        self._kernel(kernel)
        w = self.w
        w.comment(header)
        headers = needed(self.units.values(), open_borders=bool(self.plan.open), roles=self.roles)
        if self.roles:
            shared = roles_at + ROLES_BYTES
            w.line(f"#define JM_TEAM {CONSUMERS}  // threads of a block that compute")
            if wide:
                w.line("#define JM_WIDE_TILES  // whose sums leave few registers")
            if self.schedule.in_turn:
                w.line("#define JM_IN_TURN  // a tile's products wait for those before them")
            if self.schedule.lean:
                w.line("#define JM_LEAN  // few registers rather than few instructions")
            given = self.schedule.producer_registers
            if given is None and any(u.sums > _WIDE_SUMS for u in self.units.values()):
                given = _FEW_REGISTERS
            if given is not None:
                w.line(f"#define JM_PRODUCER_REGISTERS {given}  // of a thread")
        w.lines += [f'#include "jaxmono/{x}.cuh"' for x in sorted(headers)]
        pointers = self.inputs + self.outputs + (self.scratch_bytes > 0)
        w.lines += ["", "namespace jaxmono {", "",
                    f"struct Params {{ void* buf[{max(pointers, 1)}]; }};", ""]
        if self.roles:
            w.lines += ["JM_DEVICE Roles* block_roles() {",
                        f"  return reinterpret_cast<Roles*>(dynamic_shared() + {roles_at});",
                        "}", f"static_assert(sizeof(Roles) <= {ROLES_BYTES});", ""]
        if declared := w.declared():
            w.lines += [*declared.splitlines(), ""]
        w.lines += self.dispatch.tables()
        if self.plan.barriers and self.meets:
            w.lines += ["JM_STATE GridBarrier barrier_state;", ""]
        if self.plan.open:
            w.lines += [f"JM_STATE FlaggedState<{self.plan.flagged_bytes}> flags;", ""]
        w.lines += [*functions.lines,
                    "}  // namespace jaxmono", "", *kernel.lines]
        return Kernel(w.text(), shared, self.scratch_bytes, self.max_blocks, self.cooperative,
                      self.threads, wide if self.roles else None)

    @property
    def cooperative(self) -> bool:
        """Whether blocks wait for each other."""
        return (self.plan.barriers > 0 and self.meets) \
            or any(u.counters or u.mail for u in self.units.values())

    @property
    def threads(self) -> int:
        return self.schedule.threads + (PRODUCERS if self.roles else 0)

    @property
    def has_flags(self) -> tuple[bool, bool]:
        """Whether values have flags in front of the stages that repeat, and in those (also where no
        border is open for them: a Sig's buffers have flags together)."""
        start = len(self.plan.stages) if self.plan.repeat is None else self.plan.repeat.start
        first = [b.first for b in self.plan.buffers if b.place is Place.FLAGGED]
        return any(i < start for i in first), any(i >= start for i in first)

    @property
    def meet(self) -> str:
        """What all threads call between two stages."""
        return "grid_barrier(&barrier_state)" if self.meets else "syncthreads()"

    @property
    def max_blocks(self) -> int:
        if not self.meets:
            return 1
        return max([sum(self._of(g).tasks for g in s.groups) for s in self.plan.stages] + [1])

    def _kernel(self, w: Writer) -> None:
        s = self.schedule
        bounds = f"__launch_bounds__({self.threads}, {s.blocks_per_sm})"
        w.line(f'extern "C" __global__ void {bounds}')
        with w.block(f"{self.name}(const __grid_constant__ jaxmono::Params p)"):
            w.line("using namespace jaxmono;")
            w.line("unsigned char* const smem = dynamic_shared();")
            w.line("(void)smem;")
            if self.has_flags[0]:
                w.line("const uint32_t epoch = this_launch(&flags);")
            if self.has_flags[1]:
                w.line("uint32_t trips = trips_before(&flags);")
            if self.turns:
                w.line("int own = block_id();")
            if self.roles:
                w.line("Roles* const roles = block_roles();")
                if any(getattr(u.schedule, "family", "") == TF32 for u in self.units.values()):
                    w.line("roles->init_maps();")
                w.line("roles->init();")
            if not self.cooperative:
                w.line("launch_order();", "what runs before it in the stream may not be done")
            if not self.roles:
                self._all_stages(w)
                if self.has_flags[0]:
                    w.line("launch_ends(&flags, epoch);")
                if self.has_flags[1]:
                    w.line("trips_end(&flags, trips);")
                return
            w.line("Place at;")
            with w.block("if (thread_id() >= CONSUMERS)"):
                w.line("registers_decrease<PRODUCER_REGISTERS>();")
                emit_producers(w, self.spans, self.dispatch.emit, lean=self.schedule.lean)
            with w.block("else"):
                w.line("registers_increase<CONSUMER_REGISTERS>();")
                self._stages(w)

    def _all_stages(self, w: Writer) -> None:
        """The stages, those of a loop as often as it runs."""
        if (repeat := self.plan.repeat) is None:
            self._stages(w)
            return
        spans = self.spans
        self._of_spans([x for x in spans if x.start < repeat.start])
        self._stages(w)
        w.line()
        w.line(f"{self.meet};")
        pointer, offset = self._reference(repeat.going)
        going = f"pointer<const bool>(p.buf[{pointer}], {offset})" if offset \
            else f"pointer<const bool>(p.buf[{pointer}])"
        with w.block(f"while (still_going({going}))"):
            if self.has_flags[1]:
                w.line("const uint32_t epoch = ++trips;", "of this trip's values")
            if self.plan.meets_first:
                w.line(f"{self.meet};", "no later barrier is in front of who writes it")
            self._of_spans([x for x in spans if x.start >= repeat.start])
            self._stages(w)
            w.line()
            w.line(f"{self.meet};")

    def _of_spans(self, spans: Sequence[Span]) -> None:
        """What `_stages` emits: behind its last stage and in front of its first one, nothing is
        fetched ahead."""
        self.spans = tuple(spans)
        self.halves = Halves(self.spans, self.half)

    def _stages(self, w: Writer) -> None:
        """The stages as the threads that compute run them."""
        for n, span in enumerate(self.spans):
            with trips(w, span.trips):
                for i in range(span.period):
                    self._stage(w, n, i)
                    if self.turns and (tasks := sum(c.tasks for c in span.calls[i])):
                        w.line(f"own = next_own(own, {tasks});")
                    ends = boundaries(self.spans, n, i)
                    for k, b in enumerate(ends):
                        # The border of the first trip, which is that of all but the last.
                        trip = 0 if k + 1 < len(ends) or not b.condition else span.trips - 1
                        behind = span.start + i + trip * span.period
                        end = self._open if behind in self.plan.open else self._barrier
                        if b.condition:
                            with w.block("else" if k else f"if ({b.condition})"):
                                end(w, n, i, b)
                        else:
                            end(w, n, i, b)

    def _spans(self) -> Iterator[Span]:
        """The stages as single ones and periodic runs, in order."""
        loops = {x.start: x for x in self.plan.loops if x.trips > 1}
        at = 0
        while at < len(self.plan.stages):
            loop = loops.get(at)
            period, trips = (loop.period, loop.trips) if loop is not None else (1, 1)
            calls = tuple(
                tuple(self._calls(at + i, [self.plan.stages[at + t * period + i].groups
                                           for t in range(trips)])) for i in range(period))
            yield Span(at, period, trips, calls)
            at += period * trips

    def _open(self, w: Writer, n: int, i: int, b: Boundary) -> None:
        """No barrier: what crosses the border has flags. The prefetch of the stage that follows, as
        soon as the block's own tasks are done with shared memory."""
        if not any(c.unit.prefetch is not None for c in b.calls):
            w.comment("open border")
            return
        w.line("syncthreads();  // open border")
        self.halves.request(w, n, i, b, self.own, self.dispatch.emit)

    def _barrier(self, w: Writer, n: int, i: int, b: Boundary) -> None:
        """A grid barrier, with the prefetch of the stage that follows."""
        of = frees = loads = both = ""
        if self.roles:
            told = ["true" if x else "false" for x in (b.frees, has_load(b.calls))]
            of, frees, loads, both = "roles->", *(f"<{x}>" for x in (*told, ", ".join(told)))
        if not any(c.unit.prefetch is not None for c in b.calls):
            w.line(f"{of}grid_barrier{both}(&barrier_state);" if self.meets else f"{self.meet};")
            return
        if not self.meets:
            w.line(f"{self.meet};")
            self.halves.request(w, n, i, b, self.own, self.dispatch.emit)
            return
        ticket = w.fresh("ticket")
        w.line(f"const uint32_t {ticket} = {of}grid_arrive{frees}(&barrier_state);")
        self.halves.request(w, n, i, b, self.own, self.dispatch.emit)
        w.line(f"{of}grid_wait{loads}(&barrier_state, {ticket});")

    def _stage(self, w: Writer, n: int, i: int) -> None:
        span = self.spans[n]
        calls = span.calls[i]
        total = sum(c.tasks for c in calls)
        which = f"stage {span.start + i}" + (f" + {span.period} * trip" if span.trips > 1 else "")
        w.line()
        w.comment(f"{which}: {', '.join(c.label for c in calls)}")
        if not total:
            return
        first = n == 0 and i == 0 and span.trips == 1
        if has_load(calls) and not goes_on(self.spans, n, i):
            w.line("at.slot = 0;")
        with w.block(f"for (int t = {self.own}; t < {total}; t += num_blocks())"):
            if any(c.unit.prefetch is not None for c in calls):
                # A span that begins the kernel has no barrier, and so no prefetch, before trip 0.
                begins = n == 0 and i == 0
                trip = " && trip > 0" if begins and not first else ""
                w.line("const bool fetched = false;" if first
                       else f"const bool fetched = t == {self.own}{trip};")
            if is_mixed(calls):
                meet_before_task(w)
            self.dispatch.emit(w, calls, "trip", "", self.halves.half(n, i, "trip"))
            meet(w, any(c.unit.waits for c in calls))

    def _calls(self, number: int, rows: list[tuple[Group, ...]]) -> list[Call]:
        """The groups of a stage by Sig, with the references of every call and trip."""
        by_sig: list[dict[str, list[Group]]] = []
        for groups in rows:
            found: dict[str, list[Group]] = {}
            for g in groups:
                found.setdefault(g.sig.key, []).append(g)
            by_sig.append(found)
        work: dict[str, int] = {}
        end = self.workspace_at
        for key, groups in by_sig[0].items():
            work[key] = end
            end += self.units[key].workspace * len(groups)
        calls: list[Call] = []
        for n, (key, groups) in enumerate(by_sig[0].items()):
            unit = self.units[key]
            if any(len(x.get(key, ())) != len(groups) for x in by_sig):
                raise CodegenError(f"stage {number}: the trips of its loop differ")
            table = [[self._reference(b) for b in (*g.params, *g.results)]
                     for x in by_sig for g in x[key]]
            if unit.tasks:
                boxes = [self._mailbox(x[key][0]) for x in by_sig]
                step = boxes[1] - boxes[0] if len(boxes) > 1 else 0
                calls.append(Call(unit, f"stage{number}_{n}", len(groups), len(rows), table,
                                   work[key], (boxes[0], step)))
        if has_load(calls):
            return calls  # producers are ahead in every task
        # Those with a prefetch come first: of a block's tasks only the first is fetched before the
        # barrier, and a stage may have more tasks than there are blocks.
        return sorted(calls, key=lambda c: c.unit.prefetch is None)

    def _mailbox(self, first: Group) -> int:
        """The mailbox of the first group of a call; those of the others follow."""
        if self._of(first).mailboxes == self._of(first).slots:
            return 0
        return [g.id for g in self.plan.groups if g.sig.key == first.sig.key].index(first.id)
