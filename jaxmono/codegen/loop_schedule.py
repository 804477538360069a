"""Schedules of loops: how elements are dealt out to threads."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from jaxmono.codegen import turned_loop
from jaxmono.codegen.instructions import instructions
from jaxmono.codegen.loads_first import loads_first, most_first
from jaxmono.codegen.loop_order import source_order
from jaxmono.codegen.padded_copy import MOST_IN_FLIGHT, padded_copy
from jaxmono.codegen.parts_loop import parts_loop
from jaxmono.codegen.schedule import roots, sinks, widest_input
from jaxmono.codegen.shared_loop import shared_loop
from jaxmono.codegen.stencil_loop import loads_of, stencil_loop
from jaxmono.codegen.traverse import dynamics, vector_width, walk
from jaxmono.fusion.accumulated import accumulation
from jaxmono.fusion.cost import weight
from jaxmono.fusion.indexing import Index, IndexMap, Var, delinearize
from jaxmono.fusion.plan import Device, LoopForm, Sig
from jaxmono.hlo import ops
from jaxmono.hlo.ir import Graph, Value

_MOVES = (ops.Pad, ops.Stored, ops.Slice, ops.Reshape, ops.Transpose, ops.Constant,
          ops.ReducePrecision)
_FEW_TASKS = 32
"""A loop of no more tasks than this takes as few as it can beside contractions: GPT-J's 16 and 128
of a contraction do not fit 132 SMs at once; 4 do."""


_ACCESS = 16, 32
"""Bytes of a thread's widest access: where others' loads are in flight as well, and where they are
not. Threads that take 32 of f32 beside 16 of bf16 ask for halves of sectors: bf16 widened to f32
took 49 us of an H100, in vectors of 4 elements 38; AdamW's step with gradients of bf16 220 and 199.
So where a kernel only streams, and where loads come first: behind a product that step takes 56 us
in vectors of 8, 53 in vectors of 4."""
_HEAVY = 150
"""Weight of an op, as random bits have it, whose elements are worth a thread of their own where
they are few: 16384 random numbers took 2.4 us of an H100 in vectors of 4, 1.7 one by one."""
_LOOKED_UP = 64
"""Vectors for each thread of the GPU from which on a thread has eight in flight in place of four
where a load waits for an index: lines of 768 that are looked up took 59 and 50 us. With fewer the
tasks are too few to be shared out evenly (DIEN's training, 1127 us and 1272)."""
_IN_FLIGHT = 64
"""Bytes that a thread of a copy loads before it stores: narrow loads have to be many to fill the
time that memory takes."""
_HELD_WORDS = 64
"""Registers of a thread for what a scan's loop makes of a piece: a vector for each element. With
neighbours in a thread as well, which share what they read of Mamba's inputs, 580 bytes were
spilled."""
_MUCH, _RATHER_MUCH = 320, 240
"""Instructions of an element from which on its arithmetic fills the time that loads take: a thread
has one vector of at most 4, or two, and a multiprocessor more threads. Black and Scholes' prices
and gradients took 168 registers and 37 us of an H200 with four vectors of four, 25 with one; six
sines (408) 248 us with four, 208 with two and 190 with one; sums of exponentials (about 300) 329,
283 and 289; six logarithms (168) 216, 226 and 246."""
_LOADED_WORDS = 96
"""Registers of a thread, beside contractions, for what it loads before it computes. Four vectors of
3 x 3 taps are 144, and ptxas, which loads all of them first, spilled some (GoogLeNet b32)."""


_LARGE = 1 << 22
"""Elements of a turned loop from which on tiles pay in a kernel that also multiplies: producers of
its next stage wait for the shared memory."""


@dataclass(frozen=True)
class LoopSchedule:
    """Attributes:
      lanes: neighbouring elements per vector.
      unroll: vectors per thread whose loads are all issued before the first use (MonoNN's
        instruction rescheduling, section 4.2.2).
      order: of the form's variables between threads, outermost first, the last one's vectors for
        the last one (`loop_order`); empty: as the form has them.
      places: neighbours along each of the form's variables that a thread takes (`stencil_loop`,
        `shared_loop`); empty: one. Then ``unroll`` is 1 and ``order`` empty.
      parts: equal ones of the last variable, of each of which a thread takes the same place
        (`parts_loop`); of several ``places`` has one along it.
      turned: through tiles in shared memory (`turned_loop`); nothing else is said then.
    """

    lanes: int = 1
    unroll: int = 1
    order: tuple[int, ...] = ()
    places: tuple[int, ...] = ()
    parts: int = 1
    turned: bool = False


def flat_loop(form: LoopForm, lanes: int = 1, order: tuple[int, ...] = (),
              places: tuple[int, ...] = (), parts: int = 1) -> tuple[Var, dict[Var, Index]]:
    """The iteration space as one Var, and the form's Vars as functions of it: of several ``places``
    and ``parts`` the first."""
    if not order:
        counts = places or (1,) * len(form.vars)
        sizes = [v.size // n for v, n in zip(form.vars, counts, strict=True)]
        if parts > 1:
            sizes[-1] //= parts
        flat = Var("e", math.prod(sizes))
        split = delinearize(Index.of(flat), sizes)
        return flat, {v: i * n for v, i, n in zip(form.vars, split, counts, strict=True)}
    flat = Var("e", math.prod(v.size for v in form.vars))
    last = len(form.vars) - 1
    sizes = [form.vars[i].size // (lanes if i == last else 1) for i in order]
    # Of a warp neighbours of both sides: 32 bytes of the source, and as many as that leaves of what
    # is stored.
    near, far = 2 * lanes, 16 // lanes
    at_far = order.index(last)
    tiled = at_far < len(order) - 1 and sizes[-1] % near == 0 and sizes[at_far] % far == 0
    if not tiled:
        near = far = 1
    sizes[-1] //= near
    sizes[at_far] //= far
    *split, far_at, near_at, lane = delinearize(Index.of(flat), [*sizes, far, near, lanes])
    split[-1] = split[-1] * near + near_at
    split[at_far] = split[at_far] * far + far_at
    at = dict(zip((form.vars[i] for i in order), split, strict=True))
    return flat, {**at, form.vars[last]: at[form.vars[last]] * lanes + lane}


def turned(sig: Sig) -> turned_loop.Turned | None:
    """How a loop is taken apart whose source lies turned."""
    form = sig.form
    assert isinstance(form, LoopForm)
    plain = {v: Index.of(v) for v in form.vars}
    if any(n.guards or dynamics(n.index) for n in walk(sig.body, roots(sig, form.stores, plain))):
        return None
    return turned_loop.turned_loop(sig.body, roots(sig, form.stores, plain),
                                   sinks(sig, form.stores, plain), form.vars)


def _in_turn(sig: Sig) -> bool:
    """Whether a loop makes parts of arrays, each of the one before (`stacks.in_turn`)."""
    return any(isinstance(o, ops.Stored) and o.in_turn for o in sig.body.ops)


def vector_lanes(sig: Sig, *, streaming: bool) -> int:
    """Elements of a vector as wide as can be, by what a loop loads and stores alone."""
    form = sig.form
    assert isinstance(form, LoopForm)
    flat, env = flat_loop(form)
    values, offsets = roots(sig, form.stores, env), sinks(sig, form.stores, env)
    lanes = vector_width(sig.body, values, offsets, flat, widest=_ACCESS[not streaming],
                         in_turn=True, pairs=True)
    if not streaming and loads_first(sig.body, values, flat, lanes):
        lanes = vector_width(sig.body, values, offsets, flat, widest=_ACCESS[0], in_turn=True,
                             pairs=True)
    return lanes


def choose_loop(sig: Sig, device: Device, threads: int, siblings: int = 1, *,
                beside: bool = False, streaming: bool = False) -> LoopSchedule:
    """Vectors as wide as possible, of stencils as wide as it pays; unrolled as far as every SM
    still gets work.

    Args:
      beside: contractions of the same stage fill the SMs; then few tasks disturb them least, and
        threads have registers for a few loads.
      streaming: the kernel only moves data; other blocks' loads are in flight, too.
    """
    form = sig.form
    assert isinstance(form, LoopForm)
    flat, env = flat_loop(form)
    values, offsets = roots(sig, form.stores, env), sinks(sig, form.stores, env)
    lanes = vector_lanes(sig, streaming=streaming)
    if any(weight(o) >= _HEAVY for o in sig.body.ops):
        while lanes > 1 and 2 * flat.size * siblings <= device.sm_count * threads * lanes:
            lanes //= 2
    if _in_turn(sig):
        while lanes > 1 and (lanes * len(form.stores) > _HELD_WORDS
                             or flat.size < device.sm_count * threads * lanes):
            lanes //= 2
        return LoopSchedule(lanes)
    if any(accumulation(sig.body, v) for v, _ in values):
        lanes = vector_width(sig.body, values, offsets, flat, widest=_ACCESS[0])
        return LoopSchedule(lanes, _unrolled(flat.size * siblings / lanes / threads
                                             / device.sm_count, 4))
    if (text := instructions(sig.body)) >= _MUCH:
        lanes = min(lanes, 4)
    moves = all(isinstance(o, _MOVES) for o in sig.body.ops)
    wide = vector_width(sig.body, values, offsets, flat, unaligned=True) if moves else 1
    padded = len(values) == 1 and padded_copy(sig.body, *values[0], flat, wide) is not None
    if padded or (lanes == 1 and moves):
        # Where each element takes a dozen divisions to find (3 channels padded to 4), one search
        # and one store do for several, whose loads stay narrow.
        lanes = wide
    vectors = flat.size * siblings / lanes / threads
    if not beside or vectors > _FEW_TASKS:
        vectors /= device.sm_count
    if padded:  # as few rounds as its registers allow, and all of them full
        rounds = max(1, math.ceil(vectors / MOST_IN_FLIGHT))
        return LoopSchedule(lanes, max(1, math.ceil(vectors / rounds)))
    plain = {v: Index.of(v) for v in form.vars}
    stencil = None if moves or beside else stencil_loop(
        sig.body, roots(sig, form.stores, plain), form.vars, lanes, itemsize=widest_input(sig),
        device=device, threads=threads)
    if stencil is not None:
        lanes, places = stencil
        return LoopSchedule(lanes, places=places)
    joined = None if moves or beside else parts_loop(
        sig.body, roots(sig, form.stores, plain), form.vars, lanes, sm_count=device.sm_count,
        threads=threads)
    if joined is not None:
        parts, places = joined
        return LoopSchedule(lanes, places=places, parts=parts)
    shared = None if moves or beside else shared_loop(
        sig.body, roots(sig, form.stores, plain), form.vars, lanes, sm_count=device.sm_count,
        threads=threads)
    if shared is not None:
        return LoopSchedule(lanes, places=shared)
    order: tuple[int, ...] = ()
    if lanes == 1 and not beside and threads == turned_loop.THREADS \
            and (streaming or flat.size >= _LARGE) \
            and (tiles := turned(sig)) is not None and tiles.tasks * siblings >= device.sm_count:
        return LoopSchedule(turned=True)
    if lanes == 1:
        found = source_order(sig.body, roots(sig, form.stores, plain),
                             sinks(sig, form.stores, plain), form.vars)
        if found is not None:
            order, lanes = found
            vectors /= lanes
    most = 8 if lanes <= 4 and vectors >= _LOOKED_UP and _looks_up(sig.body, values) else 4
    if moves:
        most = max(4, _IN_FLIGHT // (lanes * max(n for _, n in offsets)))
    elif beside:
        loads = loads_of(sig.body, roots(sig, form.stores, plain))
        most = min(4, _LOADED_WORDS // max(1, loads * lanes * widest_input(sig) // 4))
    if text >= _RATHER_MUCH:
        most = 1 if text >= _MUCH else min(most, 2)
    if not order and (ahead := loads_first(sig.body, values, flat, lanes)):
        most = min(most, most_first(ahead, lanes))
    return LoopSchedule(lanes, _unrolled(vectors, most), order)


def _unrolled(vectors: float, most: int) -> int:
    """Vectors of a thread, whose loads are in flight together, of so many for each of the GPU."""
    return max(1, min(most, 1 << int(math.log2(max(vectors, 1)))))


def _looks_up(body: Graph, values: Sequence[tuple[Value, IndexMap]]) -> bool:
    """Whether indices are read from memory: a load waits for another one."""
    return any(dynamics(n.index) for n in walk(body, values))
