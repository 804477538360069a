"""The text of the device functions of one Sig."""

from __future__ import annotations

from dataclasses import replace

from jaxmono.codegen.calls import Unit
from jaxmono.codegen.dot_wgmma_shared import LOW_BYTES
from jaxmono.codegen.names import storage, stored_type
from jaxmono.codegen.sig_code import Function
from jaxmono.codegen.writer import Writer
from jaxmono.fusion.plan import Sig
from jaxmono.hlo.ir import Value
from jaxmono.hlo.types import FOUR_BITS


def emit_function(w: Writer, u: Unit, names: Function, *, often: bool) -> None:
    """Writes the function of a Sig, with what it counts and mails by; and its prefetch and load
    functions, where it has them.

    Args:
      names: of its params and results.
      often: several places in the text call it.
    """
    body = u.sig.body
    has_flags = u.flagged or (False,) * (len(body.inputs) + len(body.outputs))
    restrict = " __restrict__" if u.alone else ""

    def pointer(v: Value, name: str, flags: bool, const: str = "") -> str:
        t = storage(v.type.dtype)
        if v.type.dtype in FOUR_BITS:
            return f"{stored_type(v.type.dtype)} {name}"
        return f"Flagged<{t}> {name}" if flags else f"{const}{t}*{restrict} {name}"

    ins = [pointer(v, f"p{i}", f, "const ") for i, (v, f) in enumerate(
        zip(body.inputs, has_flags, strict=False))]
    outs = [pointer(v, f"r{i}", f) for i, (v, f) in enumerate(
        zip(body.outputs, has_flags[len(body.inputs):], strict=True))]
    extra = ["float* workspace"] if u.workspace else []
    if u.counters:
        w.line(f"JM_STATE Counters<{u.slots * u.counters}> {u.name}_arrivals;")
        extra.append("uint32_t* arrivals")
    if u.mail:
        w.line(f"JM_STATE Mailbox<{u.mailboxes * u.mail}> {u.name}_mail;")
        extra.append("float* mailed")
    w.comment(f"{u.sig.kind} {u.sig.name}: {_ops(u.sig)}")
    w.comment(f"{u.tasks} tasks, {u.schedule}")
    # A function with several call sites is compiled once. It asks for shared memory itself:
    # through a parameter the compiler would not know the address space.
    prefix = "JM_CALLED" if often else "JM_DEVICE"
    # Not where wgmma is: ptxas cannot see across calls which products are in flight, and waits
    # for each one before it issues the next (its note C7510).
    consumer = prefix if u.load is None else "JM_DEVICE"
    own = often or u.load is not None or u.doubled
    tail = ["int task"] if own else ["int task", "unsigned char* smem"]
    if u.doubled:
        tail.append("int half")

    def begin() -> None:
        if own:
            above = f" + {LOW_BYTES}" if u.load is not None else " + half" * u.doubled
            w.line(f"unsigned char* const smem = dynamic_shared(){above};")
            w.line("(void)smem;")

    if u.prefetch is not None:
        w.comment(f"before the grid barrier in front of {u.name}")
        args = ", ".join([*ins, *outs, *extra, *tail])
        with w.block(f"{prefix} void {u.name}_prefetch({args})"):
            begin()
            w.extend(u.prefetch)
        extra.append("bool fetched")
    result = "void"
    if u.load is not None:
        result = "Place"
        args = ", ".join([*ins, *outs, "Place at", *tail])
        w.comment("producer warps")
        with w.block(f"{prefix} Place {u.name}_load({args})"):
            begin()
            w.line("Roles* const roles = block_roles();")
            w.extend(u.load)
        extra.append("Place at")
    args = ", ".join([*ins, *outs, *extra, *tail])
    with w.block(f"{consumer} {result} {u.name}({args})"):
        begin()
        if u.load is not None:
            w.line("Roles* const roles = block_roles();")
        u.code.emit_body(w, u.sig, u.schedule, replace(
            names, workspace="workspace" if u.workspace else "",
            arrivals="arrivals" if u.counters else "", mail="mailed" if u.mail else "",
            fetched="fetched" if u.prefetch is not None else "false", doubled=u.doubled))
    w.line()


def _ops(sig: Sig) -> str:
    return ", ".join(dict.fromkeys(getattr(o, "kind", o.opcode) for o in sig.body.ops))
