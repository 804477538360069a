"""RowForm -> a device function: some rows per task, each shared by a team of threads.

    tier "warp"   group lanes per row, 32 / group rows per warp
    tier "block"  one row per block (also a full reduction to a scalar: one block does it all), or
                  one for each half
    tier "slice"  32 * lanes neighbouring rows per block; its warps share the columns. What lies as
                  rows leaves through shared memory (turned_rows.py)
    tier "thread" ``lanes`` neighbouring rows per thread, which has all of their columns
    tier "short"  a row per thread, which comes and goes through shared memory (short_rows.py)

A team takes one row at a time, or several neighbouring ones that read the same (stencil_rows.py).
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

from jaxmono.codegen.emit import BodyEmitter
from jaxmono.codegen.op_code import Emitted
from jaxmono.codegen.row_chain import RowOutput, emit_row_chain
from jaxmono.codegen.row_schedule import (
    ON_ROWS,
    RowSchedule,
    RowSpace,
    choose_row,
    combined_bytes,
    is_per_row,
    row_places,
    row_tiles,
    short_tiles,
)
from jaxmono.codegen.schedule import reads_few, roots, store_offset
from jaxmono.codegen.short_rows import Tiles
from jaxmono.codegen.sig_code import Function, Request, register
from jaxmono.codegen.small_inputs import touch
from jaxmono.codegen.stencil_rows import at_place
from jaxmono.codegen.team import Team, block_team, own_rows, slice_team, warp_team
from jaxmono.codegen.turned_rows import RowTile
from jaxmono.codegen.writer import Writer
from jaxmono.fusion.indexing import Index, Var
from jaxmono.fusion.plan import RowForm, Sig, Store
from jaxmono.hlo import ops

__all__ = ["RowCode", "RowOutput", "emit_row_chain", "warp_team"]


class RowCode:
    """`SigCode` of rows."""

    def choose(self, sig: Sig, request: Request) -> RowSchedule:
        return choose_row(sig, request.device, request.threads, request.siblings,
                          streaming=request.streaming)

    def tasks(self, sig: Sig, schedule: RowSchedule, threads: int) -> int:
        form = sig.form
        assert isinstance(form, RowForm)
        rows = math.prod(v.size for v in form.rows) // schedule.places
        return math.ceil(rows / _rows_per_task(schedule, threads))

    def shared_bytes(self, sig: Sig, schedule: RowSchedule, threads: int) -> int:
        if schedule.tier == "warp":
            return 0
        if schedule.tier == "short":
            found = _short(sig, schedule)
            return threads // 32 * found.bytes if found else 0
        states = [8 + 8 * len(o.results) for o in sig.body.ops if isinstance(o, ops.Reduce)]
        if schedule.tier == "block":  # combines all of a sweep at once
            return threads // 32 * sum(states) * schedule.places
        return combined_bytes(sig, threads, schedule.lanes) + sum(
            x.bytes for x in _tiles(sig, schedule).values())

    def workspace_bytes(self, sig: Sig, schedule: RowSchedule) -> int:
        return 0

    def counters(self, sig: Sig, schedule: RowSchedule) -> int:
        return 0

    def mail(self, sig: Sig, schedule: RowSchedule) -> int:
        return 0

    def can_flag(self, sig: Sig, schedule: RowSchedule, result: bool, number: int) -> bool:
        form = sig.form
        assert isinstance(form, RowForm)
        short = _short(sig, schedule)
        if result:
            return not _tiles(sig, schedule) and not (short and short.outputs)
        if short and sig.body.inputs[number] in short.inputs:
            return False
        col = RowSpace.of(form).col
        return reads_few(row_places(sig)[sig.body.inputs[number]], col, schedule.along(col.size))

    def emit_prefetch(self, w: Writer, sig: Sig, schedule: Any, function: Function) -> bool:
        del schedule
        return touch(w, sig.body.inputs, function.pointers, function.read_only)

    def can_double(self, sig: Sig, schedule: Any, function: Function) -> bool:
        del sig, schedule, function
        return False

    def emit_load(self, w: Writer, sig: Sig, schedule: Any, function: Function) -> bool:
        del w, sig, schedule, function
        return False

    def emit_body(self, w: Writer, sig: Sig, schedule: RowSchedule, function: Function) -> None:
        form = sig.form
        assert isinstance(form, RowForm)
        space = RowSpace.of(form)
        tiles = _tiles(sig, schedule)
        team = _team(schedule, function, sum(x.bytes for x in tiles.values()))
        if team.size > 1 and not team.lanes_on_rows:
            w.line(f"const int rank = {team.rank} + of_this({function.task});")
            team = replace(team, rank="rank")
        places, row = schedule.places, space.row
        inside = _emit_row(w, schedule, function, row.size // places)
        lane = row if team.lanes_on_rows else space.col
        em = BodyEmitter(w, sig.body, function.pointers, lane=lane, lanes=schedule.lanes,
                         var_names={Var(row.name, row.size // places): "row"},
                         read_only=function.read_only)
        short = _short(sig, schedule)
        if short:
            short.emit_begin(w, em, row, function)
        # What places read in common is the same value at the same index, and read once.
        stores = [(s, {v: at_place(i, row, places, p) for v, i in space.env.items()})
                  for p in range(places) for s in form.stores]
        outputs = [RowOutput(em.unrounded(v), at, is_per_row(form, s))
                   for s, env in stores for v, at in roots(sig, (s,), env)]

        def sink(i: int, x: Emitted) -> None:
            s, env = stores[i]
            if s in tiles:
                tiles[s].emit_put(em, x, Index.of(space.col), function)
                return
            if short and s in short.outputs:
                short.emit_put(em, s, x, Index.of(space.col))
                return
            tests = [inside] if inside else []
            if outputs[i].per_row and team.size > 1:
                tests.append(f"{team.rank} == 0")
            where = (function.outputs[s.result], store_offset(sig, s, env), x,
                     sig.body.outputs[s.result].type.dtype)
            if tests:
                with em.scope(f"if ({' && '.join(tests)})"):
                    em.store(*where)
            else:
                em.store(*where)

        emit_row_chain(em, space.col, outputs, sink, team=team, keep_words=schedule.keep_words,
                       places=places)
        if short:
            short.emit_end(w, function)
        if tiles:
            own = _rows_per_task(schedule, function.threads)
            rows = str(own) if row.size % own == 0 else \
                f"min({own}, {row.size} - {function.task} * {own})"
            w.line("syncthreads();  // all elements of the rows are there")
            for s, tile in tiles.items():
                tile.emit_copy(w, function.outputs[s.result], own, rows, function)


def _short(sig: Sig, schedule: RowSchedule) -> Tiles | None:
    return short_tiles(sig) if schedule.tier == "short" else None


def _tiles(sig: Sig, schedule: RowSchedule) -> dict[Store, RowTile]:
    form = sig.form
    assert isinstance(form, RowForm)
    return row_tiles(sig, RowSpace.of(form), schedule)


def _rows_per_task(s: RowSchedule, threads: int) -> int:
    if s.tier in ("thread", "short"):
        return threads * s.lanes
    return 32 * s.lanes if s.tier == "slice" else threads // s.group


def _team(s: RowSchedule, function: Function, behind: int) -> Team:
    """``behind``: bytes of shared memory that tiles take."""
    if s.tier == "warp":
        return warp_team(s.group)
    if s.tier == "block":
        return block_team(function.threads, function.smem, group=s.group,
                          idle=function.fetched)
    if s.tier in ("thread", "short"):
        return own_rows()
    return slice_team(function.threads, f"{function.smem} + {behind}" if behind else function.smem)


def _emit_row(w: Writer, s: RowSchedule, function: Function, rows: int) -> str:
    """``const int row``; the C test that it is a row of its own, or "" where it always is."""
    per_task = _rows_per_task(s, function.threads)
    if per_task == 1:
        w.line(f"const int row = {function.task};")
        return ""
    mine = "thread_id()" if s.group == 1 else f"thread_id() / {s.group}"
    if s.tier == "slice":
        mine = f"lane_id() * {s.lanes}"
    if s.tier == "thread":
        mine = f"thread_id() * {s.lanes}" if s.lanes > 1 else "thread_id()"
    first = f"{function.task} * {per_task} + {mine}"
    if rows % per_task == 0:
        w.line(f"const int row = {first};")
        return ""
    # Threads past the last row repeat it, so that whole warps and blocks combine together.
    w.line(f"const int own_row = {first};")
    w.line(f"const int row = min(own_row, {rows - (s.lanes if s.tier in ON_ROWS else 1)});")
    return f"own_row < {rows}"


register("row", RowCode())
