"""Plan to Program: schedule, text, binary."""

from __future__ import annotations

import math
import re
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from threading import Event
from typing import Any

from jaxmono import _logging
from jaxmono.codegen.attention import AttentionSchedule
from jaxmono.codegen.compile import compile_kernel
from jaxmono.codegen.dot import any_stream
from jaxmono.codegen.dot_schedule import DotSchedule
from jaxmono.codegen.dot_wgmma import has_source
from jaxmono.codegen.kernel import Kernel, emit_kernel
from jaxmono.codegen.long_loops import BORDER_US, has_long_loop, lost_us, with_producers
from jaxmono.codegen.loop_schedule import LoopSchedule
from jaxmono.codegen.open_borders import open_borders
from jaxmono.codegen.program import A_BLOCK_A_TASK, Program
from jaxmono.codegen.retries import Made, improved
from jaxmono.codegen.row_schedule import RowSchedule
from jaxmono.codegen.schedule import KernelSchedule
from jaxmono.codegen.sig_code import RESIDENT, Request, code_for
from jaxmono.codegen.target import Target
from jaxmono.fusion.plan import Device, DotForm, Plan
from jaxmono.fusion.text import plan_to_text
from jaxmono.fusion.twins import shape
from jaxmono.fusion.widened import LEAST_SHARE
from jaxmono.hlo.types import DType

_log = _logging.get("codegen")
_THREADS_PER_SM = 2048


def default_schedule(plan: Plan, target: Target, device: Device) -> KernelSchedule:
    """The analytic choice for every Sig: no measurement, deterministic."""
    asked = requests(plan, target, device)
    sigs = {s.key: code_for(s).choose(s, asked[s.key]) for s in plan.sigs}
    if has_long_loop(plan) and (ahead := with_producers(plan, sigs)):
        plain = sigs | {s.key: code_for(s).choose(s, replace(asked[s.key], wgmma=False))
                        for s in plan.sigs}
        opened = open_borders(plan, KernelSchedule(target.threads, 1, plain)).open
        if len(opened) * BORDER_US > lost_us(plan, ahead, device):
            sigs = plain
    blocks = _resident(plan, sigs, target, device)
    return KernelSchedule(threads=target.threads, blocks_per_sm=blocks, sigs=sigs)


_STREAMING = ("loop", "row")
_FEW_BARRIERS = 2
"""Up to which that holds, too, where blocks wait for each other at the grid's barriers: the
gradient of 1024 cross-entropies of 50257 labels 216 and 144 us of an H200."""


def _resident(plan: Plan, sigs: Mapping[str, Any], target: Target, device: Device) -> int:
    """Blocks per SM to compile for: one where blocks often wait for each other or fill an SM."""
    if not _only_streams(plan) and not (_small_products(plan) and all(
            sigs[s.key].family == "mma" and sigs[s.key].split_k == 1 for s in plan.sigs)):
        return 1
    shared = max((code_for(s).shared_bytes(s, sigs[s.key], target.threads) for s in plan.sigs),
                 default=0)
    tasks = max((sum(code_for(g.sig).tasks(g.sig, sigs[g.sig.key], target.threads)
                     for g in stage.groups) for stage in plan.stages), default=0)
    fit = target.shared_bytes // max(shared + 1024, 1)
    return max(1, min(RESIDENT, fit, math.ceil(tasks / device.sm_count)))


def _only_streams(plan: Plan) -> bool:
    return plan.barriers <= _FEW_BARRIERS and plan.repeat is None \
        and all(s.kind in _STREAMING for s in plan.sigs)


_SMALL = 64
"""Of a matrix: its product takes less time than what it is made of takes to come."""


def _small_products(plan: Plan) -> bool:
    """Whether a kernel is many products of small matrices, each a task: then blocks share an SM,
    which those of wgmma would have each for itself."""
    forms = [s.form for s in plan.sigs]
    return len(plan.stages) == 1 and all(
        isinstance(f, DotForm) and f.batch.size > 1
        and max(f.m.size, f.n.size, f.k.size) <= _SMALL for f in forms)


def requests(plan: Plan, target: Target, device: Device) -> dict[str, Request]:
    """What a schedule has to be chosen for, by the key of the Sig."""
    siblings: dict[str, int] = {}
    beside: dict[str, tuple[tuple[int, int, int], ...]] = {}
    for stage in plan.stages:
        dots = tuple((f.batch.size, f.n.size, f.k.size)
                     for f in (g.sig.form for g in stage.groups) if isinstance(f, DotForm))
        shapes = Counter(shape(g.sig) for g in stage.groups)
        for g in stage.groups:
            siblings[g.sig.key] = max(siblings.get(g.sig.key, 0), shapes[shape(g.sig)])
            beside[g.sig.key] = max(beside.get(g.sig.key, ()), dots, key=_work)
    shared = min(target.shared_bytes, device.shared_bytes)
    first = {g.sig.key for stage in plan.stages[:1] for g in stage.groups}
    streams, rounds = _only_streams(plan), _rounds(plan)
    beside_others = {g.sig.key for stage in plan.stages
                     for g in stage.groups if len({h.sig.key for h in stage.groups}) > 1}
    # Of a loop's end no producer knows.
    wgmma = target.wgmma and plan.repeat is None and not _small_products(plan)
    sole = len(plan.stages) == 1 and plan.repeat is None
    return {s.key: Request(device, target.threads, shared, siblings[s.key], wgmma,
                           beside[s.key], s.key not in first, streams, rounds,
                           alone=s.key not in beside_others, sole=sole) for s in plan.sigs}


def _rounds(plan: Plan) -> bool:
    """Whether weights of f32 are a `LEAST_SHARE` of those of its contractions. (The planner has
    asked so of those that it would else store; these here are of products of few rows, too.)"""
    weights: Counter[bool] = Counter()
    for form, sig in ((g.sig.form, g.sig) for stage in plan.stages for g in stage.groups):
        if isinstance(form, DotForm):
            weights[any_stream(sig).rhs.stored is DType.F32] += \
                form.batch.size * form.n.size * form.k.size
    return weights[True] >= LEAST_SHARE * weights.total()


def _work(dots: tuple[tuple[int, int, int], ...]) -> int:
    return sum(batch * n * k for batch, n, k in dots)


def emit(plan: Plan, target: Target, device: Device, name: str,
         schedule: KernelSchedule | None = None) -> Kernel:
    """The kernel's text, not compiled; by default with `default_schedule`."""
    chosen = schedule if schedule is not None else default_schedule(plan, target, device)
    plan = open_borders(plan, chosen)
    return emit_kernel(plan, chosen, identifier(name), plan_to_text(plan),
                       room=min(target.shared_bytes, device.shared_bytes))


def generate(plan: Plan, target: Target, device: Device, name: str,
             schedule: KernelSchedule | None = None, *, cache_dir: Path | None = None,
             seconds: float | None = None, cancelled: Sequence[Event] = ()) -> Program:
    """Generates and compiles the kernel of a plan.

    Args:
      plan: verified. target: what to compile for. device: the facts that scheduling uses.
      name: of the kernel in profilers; made a C identifier.
      schedule: by default `default_schedule`.
      cache_dir: where the emulator's own object file is kept between processes.
      seconds: of `compile_cuda`; again for each text that is tried where one spills, or lets
        products wait. cancelled: likewise.

    Raises:
      CodegenError: the plan holds something without code.
      CompileError: the compiler is missing or refuses the text.
    """
    begin = time.perf_counter()
    chosen = schedule if schedule is not None else default_schedule(plan, target, device)
    plan = open_borders(plan, chosen)
    kernel = emit(plan, target, device, name, chosen)
    inputs = tuple(v.type for v in plan.graph.inputs)
    outputs = tuple(v.type for v in plan.graph.outputs)
    pointers = len(inputs) + len(outputs) + (kernel.scratch_bytes > 0)

    def compiled(kernel: Kernel, *unwanted: Event) -> tuple[bytes, str, dict[str, int]]:
        return compile_kernel(
            kernel.source, target, identifier(name), pointers=pointers, threads=kernel.threads,
            shared_bytes=kernel.shared_bytes, cache_dir=cache_dir, seconds=seconds,
            cancelled=(*cancelled, *unwanted))

    def another(schedule: KernelSchedule, *unwanted: Event) -> Callable[[], Made]:
        text = emit(plan, target, device, name, schedule)
        return lambda: Made(schedule, *compiled(text, *unwanted))

    made = Made(chosen, *compiled(kernel))
    while made.schedule.blocks_per_sm > 1 and made.spilled:
        # A row kept in registers needs more of them than that many blocks leave it.
        chosen = replace(chosen, blocks_per_sm=chosen.blocks_per_sm // 2)
        kernel = emit(plan, target, device, name, chosen)
        made = Made(chosen, *compiled(kernel))
    if any(made.faults) and kernel.wide_tiles is not None:
        sourced = [s.key for s in plan.sigs if has_source(s, chosen.sigs[s.key])]
        made = improved(made, kernel.wide_tiles, another, sourced)
    chosen, resources = made.schedule, made.resources
    if resources.get("serialized"):
        _log.info("%s: ptxas lets products wait for each other", name)
    # Where registers allow for more than were asked for, more may run.
    resident = 1 if chosen.blocks_per_sm == 1 else _THREADS_PER_SM // kernel.threads
    if resident > 1 and len(plan.stages) == 1 and all(map(_is_apart, chosen.sigs.values())):
        resident = A_BLOCK_A_TASK
    return Program(
        name=identifier(name), target=target.kind, arch=target.arch, source=made.source,
        binary=made.binary, threads=kernel.threads, blocks_per_sm=resident,
        max_blocks=kernel.max_blocks,
        shared_bytes=kernel.shared_bytes, scratch_bytes=kernel.scratch_bytes,
        cooperative=kernel.cooperative, overlaps=target.overlaps and not kernel.cooperative,
        inputs=inputs, outputs=outputs,
        aliases=tuple((b.index, b.alias) for b in plan.outputs if b.alias is not None),
        stages=len(plan.stages), barriers=plan.barriers, resources=dict(resources),
        plan_text=plan_to_text(plan), compile_seconds=time.perf_counter() - begin,
        min_blocks=max(map(partners, chosen.sigs.values()), default=1))


def _is_apart(schedule: Any) -> bool:
    """Whether tasks are best a block each: of several places a thread they read what others do, and
    depthwise convolutions took up to 1.08 of their time so. Those of joined parts read little of
    it."""
    if isinstance(schedule, LoopSchedule):
        return not schedule.places or schedule.parts > 1
    return isinstance(schedule, RowSchedule) and schedule.places == 1


def partners(schedule: Any) -> int:
    """Blocks that wait for each other in a task of this schedule: a smaller grid would hang."""
    # Of a gemv and of few rows the block of the last share waits for tasks in front of its own,
    # which run on any grid.
    if isinstance(schedule, AttentionSchedule):
        return 1 if schedule.family == "few" else schedule.split
    return schedule.split_k if isinstance(schedule, DotSchedule) \
        and schedule.family != "gemv" else 1


def identifier(name: str) -> str:
    """``name`` as a C identifier."""
    text = re.sub(r"\W+", "_", name)
    return text if re.match(r"[A-Za-z_]", text) else f"k_{text}"
