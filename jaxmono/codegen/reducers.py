"""A reduce's region as a C++ struct that the templates of device/reduce.cuh combine with.

Single associative ops have an identity, and so have searches (`jnp.argmax`, `jnp.argmin`): the
value behind all others, at the greatest place that the type has. Any other region (a sum of
pairs...) gets a state that knows whether it holds anything yet, since StableHLO names no identity
for it.
"""

from __future__ import annotations

from dataclasses import dataclass

from jaxmono.codegen.emit import BodyEmitter
from jaxmono.codegen.finder import Finder
from jaxmono.codegen.names import compute, literal
from jaxmono.codegen.op_code import Emitted
from jaxmono.codegen.writer import Writer
from jaxmono.hlo import ops
from jaxmono.hlo.interp.monoids import MONOIDS
from jaxmono.hlo.ir import Graph
from jaxmono.hlo.print import to_text
from jaxmono.hlo.rewrite import binary_kind
from jaxmono.hlo.searches import begins, counts, search_kind
from jaxmono.hlo.types import DType, highest, lowest


@dataclass(frozen=True)
class Reducer:
    """A declared reducer struct.

    Attributes:
      name: of the struct.
      dtypes: of the accumulators, fields ``a0, a1...`` of its State.
      state_bytes: size of a State (a multiple of 4).
      along: what combines states whose columns are in order.
    """

    name: str
    dtypes: tuple[DType, ...]
    state_bytes: int
    along: str


def monoid_kind(body: Graph) -> str | None:
    """The kind of a region that is one associative, commutative op on its two inputs."""
    kind = binary_kind(body)
    return kind if kind in MONOIDS else None


def identity(kind: str, dtype: DType) -> str:
    """C literal ``e`` with ``kind(e, x) == x`` for every x, NaN and -0 included."""
    if kind == "add":
        # -0 + x is x for x = -0 too; for pred add is or.
        return literal(-0.0 if dtype.is_float else 0, dtype)
    if kind in ("or", "xor"):
        return literal(0, dtype)
    if kind == "multiply":
        return literal(1, dtype)
    if kind == "and":
        ones = f"{compute(dtype)}(~{literal(0, dtype)})"
        return literal(1, dtype) if dtype is DType.PRED else ones
    return literal((lowest if kind == "maximum" else highest)(dtype), dtype)


def _commutes(kind: str | None, dtypes: tuple[DType, ...]) -> bool:
    """Whether the order of two operands does not show: of a float's maximum +0 and -0 may."""
    return kind in ("add", "multiply") or (kind is not None and not dtypes[0].is_float)


def declare_reducer(em: BodyEmitter, op: ops.Reduce) -> Reducer:
    """Declares the struct of ``op``'s region at file scope, once per distinct region."""
    dtypes = tuple(v.type.dtype for v in op.results)
    types = [compute(d) for d in dtypes]
    sizes = [max(4, 8 if t in ("double", "int64_t", "uint64_t") else 4) for t in types]
    search = search_kind(op.body)
    empty = _identity(op, search)
    ordered = search if search is not None and _is_in_order(em.body, op, search) else None
    w = Writer(parent=em.w)
    with w.block("struct {name}", "};"):
        with w.block(f"struct alignas({max(sizes)}) State", "};"):
            for i, t in enumerate(types):
                w.line(f"{t} a{i};")
            if empty is None:
                w.line("bool any;")
        commutes = "true" if _commutes(monoid_kind(op.body), dtypes) else "false"
        w.line(f"static constexpr bool COMMUTES = {commutes};")
        elements = ", ".join(f"{t} x{i}" for i, t in enumerate(types))
        fields = ", ".join(f"x{i}" for i in range(len(types)))
        full, any_ = (", true", "s.any = true; ") if empty is None else ("", "")
        if empty is None:
            empty = ", ".join([f"{t}(0)" for t in types] + ["false"])
        w.line(f"JM_DEVICE static State identity() {{ return State{{{empty}}}; }}")
        w.line(f"JM_DEVICE static State of({elements}) {{ return State{{{fields}{full}}}; }}")
        w.line(f"JM_DEVICE static State full(State s) {{ {any_}return s; }}")
        with w.block("JM_DEVICE static State combine(const State& l, const State& r)"):
            if ordered is not None:
                _combine(w, ordered, is_float=dtypes[0].is_float)
            else:
                if full:
                    w.line("if (!l.any) return r;")
                    w.line("if (!r.any) return l;")
                inner = BodyEmitter(w, op.body, {}, var_names={})
                args = [Emitted(f"{s}.a{i}", exact=not d.is_float)
                        for s in ("l", "r") for i, d in enumerate(dtypes)]
                out = inner.region(op.body, args)
                w.line(f"return State{{{', '.join(x.name for x in out)}{full}}};")
        if ordered is not None:
            _next(w, ordered, is_float=dtypes[0].is_float)
    # A State is padded to its alignment by its own `alignas`.
    align = max(sizes)
    used = sum(8 if t in ("double", "int64_t", "uint64_t") else 4 for t in types) + 4
    key = f"reducer {ordered} {to_text(op.body, locs=False)}"
    name = em.w.declare(key, "reducer", w.text().rstrip())
    along = name if ordered is None else f"InOrder<{name}>"
    return Reducer(name, dtypes, -(-used // align) * align, along)


def _identity(op: ops.Reduce, search: str | None) -> str | None:
    """The fields of a state that holds nothing; None where none is known."""
    first, *others = (v.type.dtype for v in op.results)
    if (kind := monoid_kind(op.body)) is not None:
        return identity(kind, first)
    if search is None:
        return None
    return f"{identity(search, first)}, {identity('minimum', others[0])}"


def _combine(w: Writer, search: str, *, is_float: bool) -> None:
    """Of equal values, and of two NaNs, that with the first place: the lanes' places alternate.

    ``!(l <= r)`` is true of a NaN, too, which is beyond all numbers, but not beyond another. No
    branches: with some a codebook of 8192 for 256 dimensions took 214 us of an H200, and 122 so.
    """
    more, less = ("le", "ge") if search == "maximum" else ("ge", "le")
    for name, outside, other in (("more", more, "r"), ("less", less, "l")):
        beyond = f"op_not(op_compare_{outside}(l.a0, r.a0))"
        number = f"op_compare_eq({other}.a0, {other}.a0)"
        w.line(f"const bool {name} = {f'op_and({beyond}, {number})' if is_float else beyond};")
    w.line("const bool first = op_and(op_not(less), op_compare_lt(l.a1, r.a1));")
    w.line("const bool stays = op_or(more, first);")
    w.line("return State{op_select(stays, l.a0, r.a0), op_select(stays, l.a1, r.a1)};")


def _next(w: Writer, search: str, *, is_float: bool) -> None:
    """Of equal values the one in front stays. With 1000 columns of f32 an element takes 5
    instructions so, and 12 with a flag for what has nothing yet and places that are compared."""
    stays = f"op_compare_{'ge' if search == 'maximum' else 'le'}(l.a0, r.a0)"
    if is_float:
        stays = f"op_or({stays}, op_compare_ne(l.a0, l.a0))"
    with w.block("JM_DEVICE static State next(const State& l, const State& r)"):
        w.line(f"const bool stays = {stays};")
        w.line("return State{op_select(stays, l.a0, r.a0), op_select(stays, l.a1, r.a1)};")


def _is_in_order(body: Graph, op: ops.Reduce, search: str) -> bool:
    """Whether a search over one dimension begins with what is behind all others, at place 0, and
    places count up: a row of nothing else ends with the beginning's place, whatever `next` kept."""
    number = Finder(body.producer, lambda v: False, lambda v: False).number
    return begins(op, search, number) and len(op.dimensions) == 1 \
        and op.dimensions[0] in counts(op.args[1], body.producer)
