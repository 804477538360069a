"""Symbolic indices as C++ integer expressions."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from jaxmono.codegen.errors import CodegenError
from jaxmono.fusion.demand import Guard
from jaxmono.fusion.indexing import Atom, Div, Dyn, Index, Mod, Var

_INT_MAX = 2**31 - 1


@dataclass(frozen=True)
class VarCode:
    """The C value of a Var: ``name / scale`` (``name`` is a multiple of ``scale``).

    The lane Var of a vectorised body is split into ``scale * high + low``; what is at hand in C is
    ``scale * high``, and nearly every use multiplies ``high`` by a multiple of ``scale``.
    """

    name: str
    scale: int = 1


def fits_int(index: Index) -> bool:
    """Whether every partial sum of the expression fits 32 bits, so that ``int`` will do."""
    low = high = index.const
    for a, c in index.terms:
        al, ah = Index.of(a).bounds if not isinstance(a, Var) else (0, max(a.size - 1, 0))
        low, high = low + min(c * al, c * ah, 0), high + max(c * al, c * ah, 0)
    return low >= -_INT_MAX and high <= _INT_MAX


def index_code(index: Index, names: Mapping[Var, VarCode], dynamic: Callable[[Dyn], str]) -> str:
    """``index`` as a C expression, of type ``int`` or, where that is too small, ``long long``.

    Args:
      names: the C value of every Var that occurs.
      dynamic: the C expression (int, clamped) of an index that is read from memory.

    Raises:
      CodegenError: at a Var without a name.
    """
    wide = not fits_int(index)
    parts: list[str] = []
    for atom, coef in index.terms:
        text, rest = _atom(atom, coef, names, dynamic)
        if wide:
            text = f"(long long){text}"
        parts.append(text if rest == 1 else f"{rest} * {text}")
    if index.const or not parts:
        parts.append(str(index.const))
    return " + ".join(parts).replace("+ -", "- ")


def guard_code(guard: Guard, code: Callable[[Index], str], *, branches: bool = True) -> str:
    """The C condition that ``guard`` holds, without tests that always do; "" if none is left.

    Args:
      code: gives the C expression of an index.
      branches: whether the first test that fails may skip the others. Else the condition is one
        number, for predicates that must not cost a branch.
    """
    tests: list[str] = []
    for x, low, high in guard.bounds:
        least, most = x.bounds
        text = code(x)
        if not branches and least < low and most >= high:
            kind = "int" if fits_int(x) else "long long"
            tests.append(f"within<{kind}>({text}, {low}, {high})")
            continue
        if least < low:
            tests.append(f"{low} <= {text}")
        if most >= high:
            tests.append(f"{text} < {high}")
    if branches:
        return " && ".join(tests)
    return " & ".join(t if t.startswith("within") else f"({t})" for t in tests)


def one_of(tests: Sequence[str], values: Sequence[str]) -> str:
    """The C expression of the value whose test is the first that holds, or else of the last one."""
    return "".join(f"{t} ? {x} : " for t, x in zip(tests, values[:-1], strict=True)) + values[-1]


def _atom(atom: Atom, coef: int, names: Mapping[Var, VarCode],
          dynamic: Callable[[Dyn], str]) -> tuple[str, int]:
    """The C text of an atom and the factor that is left of its coefficient."""
    if isinstance(atom, Var):
        if atom not in names:
            raise CodegenError(f"index uses {atom.name}, which has no value in this body")
        code = names[atom]
        if code.scale == 1:
            return code.name, coef
        if coef % code.scale == 0:
            return code.name, coef // code.scale
        return f"udiv<{code.scale}>({code.name})", coef
    if isinstance(atom, Dyn):
        return dynamic(atom), coef
    assert isinstance(atom, (Div, Mod))
    kind = "div" if isinstance(atom, Div) else "mod"
    # Unsigned division by a constant is shorter; floordiv and floormod take negative values too.
    sign = "u" if atom.x.bounds[0] >= 0 else "floor"
    return f"{sign}{kind}<{atom.d}>({index_code(atom.x, names, dynamic)})", coef
