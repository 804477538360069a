"""Calls of device functions in the text of a kernel: which task is whose, and what they are given.

    if (t < 12) {
      f3(pointer<const bf16>(p.buf[0]), pointer<bf16>(p.buf[ref[0].buf], ref[0].offset), t, smem);
    } else { ...

What differs between the groups of a call, or between the trips of a loop of stages, comes from a
table of references, a row for each.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field

from jaxmono.codegen.calls import STEP, Call
from jaxmono.codegen.names import storage, stored_type
from jaxmono.codegen.writer import Writer
from jaxmono.hlo.types import FOUR_BITS

_CONSTANT_BYTES = 32 * 1024
"""Larger tables of references leave constant memory."""


@dataclass
class Dispatch:
    """Writes calls, and keeps the tables that they need.

    Attributes:
      called_often: functions with several call sites, which ask for shared memory themselves.
      scratch: number of the scratch buffer among the pointers.
    """

    called_often: Collection[str]
    scratch: int
    _tables: dict[str, str] = field(default_factory=dict)
    _bytes: int = 0

    def tables(self) -> list[str]:
        """Their declarations."""
        kind = "JM_CONSTANT" if self._bytes <= _CONSTANT_BYTES else "JM_TABLE"
        return [t.replace("TABLE_KIND", kind, 1) for t in self._tables.values()]

    def emit(self, w: Writer, calls: tuple[Call, ...], trip: str, which: str,
             half: str = "0") -> None:
        """Calls the function of task ``t``'s group: ``which`` is "", "_prefetch" or "_load".

        ``trip``: the C expression of the loop's trip, where the stage is in one. ``half``: that of
        `Halves.half`.
        """
        begin = 0
        for n, c in enumerate(calls):
            task = f"t - {begin}" if begin else "t"
            last = n == len(calls) - 1
            if len(calls) == 1:
                self._emit_call(w, c, task, trip, which, half)
                return
            head = "{" if last else f"if (t < {begin + c.tasks}) {{"
            w.line(f"{'} else ' if n else ''}{head}")
            inner = w.child()
            self._emit_call(inner, c, task, trip, which, half)
            w.extend(inner)
            begin += c.tasks
        w.line("}")

    def _emit_call(self, w: Writer, c: Call, task: str, trip: str, which: str,
                   half: str) -> None:
        u = c.unit
        if (which == "_prefetch" and u.prefetch is None) or (which == "_load" and u.load is None):
            return
        varying = [i for i in range(len(c.table[0])) if len({row[i] for row in c.table}) > 1]
        many = c.groups > 1
        if many:
            w.line(f"const int group = ({task}) / {u.tasks};")
            task = f"({task}) % {u.tasks}"
        if varying:
            cells = ", ".join(
                "{" + ", ".join(f"{{{row[i][0]}, {row[i][1] // STEP}u}}" for i in varying) + "}"
                for row in c.table)
            if c.name not in self._tables:
                self._bytes += len(c.table) * len(varying) * 8
            self._tables[c.name] = (f"TABLE_KIND Reference {c.name}[{len(c.table)}]"
                                   f"[{len(varying)}] = {{{cells}}};")
            row = trip if c.trips > 1 else ""
            if many:
                row = f"({row}) * {c.groups} + group" if row else "group"
            w.line(f"const Reference* const ref = {c.name}[{row}];")
        args: list[str] = []
        values = (*u.sig.body.inputs, *u.sig.body.outputs)
        for i, v in enumerate(values):
            t = storage(v.type.dtype)
            if u.flagged and u.flagged[i]:
                at = f"ref[{varying.index(i)}]" if i in varying else str(c.table[0][i][1])
                args.append(f"flagged<{t}>(&flags, {at}, epoch)")
                continue
            t = f"const {t}" if i < len(u.sig.body.inputs) else t
            if i in varying:
                at = f"pointer<{t}>(p.buf, ref[{varying.index(i)}])"
            else:
                buf, offset = c.table[0][i]
                at = f"pointer<{t}>(p.buf[{buf}]{f', {offset}' if offset else ''})"
            packed = v.type.dtype in FOUR_BITS
            args.append(f"{stored_type(v.type.dtype)}({at})" if packed else at)
        own = u.name in self.called_often or u.load is not None
        tail = [task, half] if u.doubled else [task] if own else [task, "smem"]
        if which == "_load":
            w.line(f"at = {u.name}_load({', '.join([*args, 'at', *tail])});")
            return
        if u.workspace:
            step = f" + (long long)group * {u.workspace}" if many else ""
            scratch = self.scratch
            args.append(f"pointer<float>(p.buf[{scratch}], {c.workspace_at}{step})")
        if u.counters:
            step = f" + group * {u.counters}" if many else ""
            args.append(f"{u.name}_arrivals.count{step}")
        if u.mail:
            first, step = c.mailboxes
            terms = ((first, str(first)), (step, f"({trip}) * {step}"), (many, "group"))
            box = " + ".join(text for counts, text in terms if counts)
            args.append(f"{u.name}_mail.words{f' + ({box}) * {u.mail}' if box else ''}")
        if which == "_prefetch":
            w.line(f"{u.name}_prefetch({', '.join([*args, *tail])});")
            return
        if u.prefetch is not None:
            args.append("fetched")
        if u.load is not None:
            args.append("at")
        result = "at = " if u.load is not None else ""
        w.line(f"{result}{u.name}({', '.join([*args, *tail])});")
