"""Symbolic index arithmetic: linear expressions over ranged variables, with exact div and mod.

Every movement op of the Graph (broadcast, reshape, transpose, slice, gather...) is a function from
an element's index in the result to an element's index in the operand. Composing these functions
symbolically lets a chain of movement ops cost nothing: what is left is one address. The normal
form is a sum ``c0 + c1*a1 + c2*a2 ...`` over atoms; an atom is a Var, a floor division or a
remainder that could not be resolved, or a Dyn (an index read from memory).

The simplifications are the few that reshapes need:
    (64*h + d) // 64 -> h        where 0 <= d < 64
    (64*h + d) %  64 -> d
    64*(k // 64) + k % 64 -> k
    3*((k // 3) % 16) + k % 3 -> k % 48     pixels of a patch, each of three channels, lie in a row
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TypeAlias

from jaxmono.hlo.ir import Value


@dataclass(frozen=True)
class Var:
    """A loop variable with range ``[0, size)``."""

    name: str
    size: int


@dataclass(frozen=True)
class Div:
    """``floor(x / d)`` for a constant d > 0."""

    x: Index
    d: int


@dataclass(frozen=True)
class Mod:
    """``x - d * floor(x / d)``, in ``[0, d)``."""

    x: Index
    d: int


@dataclass(frozen=True)
class Dyn:
    """An index read from memory: ``clamp(low, value[index], high)``, as StableHLO clamps starts."""

    value: Value
    index: tuple[Index, ...]
    low: int
    high: int


Atom: TypeAlias = Var | Div | Mod | Dyn


@dataclass(frozen=True)
class Index:
    """``const + sum(coef * atom)``; terms are sorted and coefficients are never zero."""

    terms: tuple[tuple[Atom, int], ...] = ()
    const: int = 0

    # ---- construction ----
    @staticmethod
    def of(x: Index | Atom | int) -> Index:
        if isinstance(x, Index):
            return x
        if isinstance(x, int):
            return Index((), x)
        if isinstance(x, Var) and x.size == 1:
            return ZERO
        return Index(((x, 1),), 0)

    def __add__(self, other: Index | int) -> Index:
        other = Index.of(other)
        acc = dict(self.terms)
        for a, c in other.terms:
            acc[a] = acc.get(a, 0) + c
        return _recombine(acc, self.const + other.const)

    def __sub__(self, other: Index | int) -> Index:
        return self + Index.of(other) * -1

    def __mul__(self, k: int) -> Index:
        if k == 0:
            return ZERO
        return Index(tuple((a, c * k) for a, c in self.terms), self.const * k)

    def __floordiv__(self, d: int) -> Index:
        if d == 1:
            return self
        exact, rest = _split(self, d)
        quotient = Index(tuple((a, c // d) for a, c in exact.terms), exact.const // d)
        low, high = rest.bounds
        if low // d == high // d:
            return quotient + low // d
        return quotient + _div_atom(rest, d)

    def __mod__(self, d: int) -> Index:
        if d == 1:
            return ZERO
        _, rest = _split(self, d)
        low, high = rest.bounds
        if low // d == high // d:
            return rest - (low // d) * d
        if (parts := _aligned(rest, d)) is not None:  # (g*x + r) % (g*d) = g*(x % d) + r
            g, x, r = parts
            return (x % (d // g)) * g + r
        if len(rest.terms) == 1 and rest.const == 0:
            (atom, c), = rest.terms
            if isinstance(atom, Mod) and c == 1 and atom.d % d == 0:
                return atom.x % d
        return Index.of(Mod(rest, d))

    # ---- queries ----
    @cached_property
    def bounds(self) -> tuple[int, int]:
        """Smallest and largest value, both inclusive (exact for sums of independent Vars)."""
        low = high = self.const
        for a, c in self.terms:
            al, ah = _atom_bounds(a)
            low += min(c * al, c * ah)
            high += max(c * al, c * ah)
        return low, high

    @property
    def is_const(self) -> bool:
        return not self.terms

    def coefficient(self, atom: Atom) -> int:
        return dict(self.terms).get(atom, 0)

    def depends_on(self, var: Var) -> bool:
        return var in self.variables

    @cached_property
    def variables(self) -> frozenset[Var]:
        """All Vars, those inside divisions, remainders and dynamic indices included."""
        out: set[Var] = set()
        for a, _ in self.terms:
            if isinstance(a, Var):
                out.add(a)
            elif isinstance(a, Dyn):
                for i in a.index:
                    out |= i.variables
            else:
                out |= a.x.variables
        return frozenset(out)

    @cached_property
    def is_static(self) -> bool:
        """True when no index is read from memory."""
        return not any(True for _ in self.dynamics())

    def dynamics(self) -> Iterable[Dyn]:
        for a, _ in self.terms:
            if isinstance(a, Dyn):
                yield a
            elif isinstance(a, (Div, Mod)):
                yield from a.x.dynamics()

    def substitute(self, env: Mapping[Var, Index]) -> Index:
        """The same expression with Vars replaced (and simplified again)."""
        if not any(v in env for v in self.variables):
            return self
        out = Index((), self.const)
        for a, c in self.terms:
            if isinstance(a, Var):
                new = env.get(a, Index.of(a))
            elif isinstance(a, Div):
                new = a.x.substitute(env) // a.d
            elif isinstance(a, Mod):
                new = a.x.substitute(env) % a.d
            else:
                new = Index.of(Dyn(a.value, tuple(i.substitute(env) for i in a.index),
                                   a.low, a.high))
            out = out + new * c
        return out

    def multiple_of(self) -> int:
        """The largest n for which the value is provably always a multiple of n (0 if it is 0)."""
        return math.gcd(self.const, *(c for _, c in self.terms))

    def __str__(self) -> str:
        parts = [f"{c}*{_atom_str(a)}" if c != 1 else _atom_str(a) for a, c in self.terms]
        if self.const or not parts:
            parts.append(str(self.const))
        return " + ".join(parts)


ZERO = Index()
IndexMap: TypeAlias = tuple[Index, ...]


def _atom_str(a: Atom) -> str:
    if isinstance(a, Var):
        return a.name
    if isinstance(a, Div):
        return f"({a.x})/{a.d}"
    if isinstance(a, Mod):
        return f"({a.x})%{a.d}"
    return f"clamp({a.low}, {a.value!r}[{', '.join(map(str, a.index))}], {a.high})"


def _atom_bounds(a: Atom) -> tuple[int, int]:
    if isinstance(a, Var):
        return 0, max(a.size - 1, 0)
    if isinstance(a, Mod):
        return 0, a.d - 1
    if isinstance(a, Div):
        low, high = a.x.bounds
        return low // a.d, high // a.d
    return a.low, a.high


def _split(x: Index, d: int) -> tuple[Index, Index]:
    """``x`` as (a part whose every coefficient is a multiple of d) + (the rest, const in [0,d))."""
    exact = tuple((a, c) for a, c in x.terms if c % d == 0)
    rest = tuple((a, c) for a, c in x.terms if c % d != 0)
    return Index(exact, x.const - x.const % d), Index(rest, x.const % d)


def _aligned(x: Index, d: int) -> tuple[int, Index, Index] | None:
    """``x`` as ``g*y + r`` with g a divisor of d, g > 1 and ``0 <= r < g``; None if impossible."""
    for g in sorted({math.gcd(c, d) for _, c in x.terms} - {1}, reverse=True):
        big, small = _split(x, g)
        low, high = small.bounds
        if low >= 0 and high < g and big.terms:
            y = Index(tuple((a, c // g) for a, c in big.terms), big.const // g)
            return g, y, small
    return None


def _div_atom(rest: Index, d: int) -> Index:
    if (parts := _aligned(rest, d)) is not None:  # floor((g*x + r) / (g*d)) = floor(x / d)
        g, x, _ = parts
        return x // (d // g)
    if len(rest.terms) == 1 and rest.const == 0:
        (atom, c), = rest.terms
        if isinstance(atom, Div) and c == 1:
            return atom.x // (atom.d * d)
        if isinstance(atom, Mod) and c == 1 and atom.d % d == 0:
            return (atom.x // d) % (atom.d // d)
    return Index.of(Div(rest, d))


def _sort_key(item: tuple[Atom, int]) -> tuple[int, str]:
    return (-abs(item[1]), _atom_str(item[0]))


def _recombine(acc: dict[Atom, int], const: int) -> Index:
    """Normal form of a sum; folds ``c*d*(x/d) + c*(x%d)`` back into ``c*x``, and
    ``c*d*((x/d)%n) + c*(x%d)`` into ``c*(x%(d*n))``."""
    changed = True
    while changed:
        changed = False
        for a, c in list(acc.items()):
            if not isinstance(a, Mod) or c == 0:
                continue
            quotient = a.x // a.d
            outer = next((b for b in acc if isinstance(b, Mod) and b.x == quotient
                          and acc[b] == c * a.d), None)
            if outer is not None:
                del acc[a], acc[outer]
                whole = a.x % (a.d * outer.d)
                for t, tc in whole.terms:
                    acc[t] = acc.get(t, 0) + tc * c
                const += whole.const * c
                changed = True
                break
            if quotient.const or len(quotient.terms) != 1:
                continue
            (q, qc), = quotient.terms
            if qc == 1 and acc.get(q, 0) == c * a.d:
                del acc[a], acc[q]
                for t, tc in a.x.terms:
                    acc[t] = acc.get(t, 0) + tc * c
                const += a.x.const * c
                changed = True
                break
    terms = [(a, c) for a, c in acc.items() if c != 0]
    return Index(tuple(sorted(terms, key=_sort_key)), const)


def variables(prefix: str, sizes: Sequence[int]) -> tuple[Var, ...]:
    """One Var per size, named ``prefix0, prefix1, ...``."""
    return tuple(Var(f"{prefix}{i}", s) for i, s in enumerate(sizes))


def as_map(vars: Iterable[Var | Index]) -> IndexMap:
    return tuple(Index.of(v) for v in vars)


def linearize(index: Sequence[Index], shape: Sequence[int]) -> Index:
    """Row-major offset of an element, in elements."""
    out = ZERO
    for i, d in zip(index, shape, strict=True):
        out = out * d + i
    return out


def delinearize(offset: Index, shape: Sequence[int]) -> IndexMap:
    """Inverse of `linearize`: the index whose row-major offset is ``offset``."""
    out: list[Index] = []
    inner = 1
    for axis in range(len(shape) - 1, -1, -1):
        d = shape[axis]
        i = offset // inner if axis == 0 else (offset // inner) % d
        out.append(ZERO if d == 1 else i)
        inner *= d
    return tuple(reversed(out))


def contiguous(offset: Index, var: Var, piece: int, *, ragged: bool = False) -> bool:
    """True if ``piece`` elements along ``var`` (from a multiple of piece) are adjacent and aligned;
    ``ragged``: the last ones may be fewer.

    Proven by substituting ``var = piece * hi + lo`` and looking at what is left of ``lo``.
    """
    if piece == 1:
        return stride(offset, var) == 1
    if var.size % piece and not ragged:
        return False
    high, low = Var(f"{var.name}_hi", -(-var.size // piece)), Var(f"{var.name}_lo", piece)
    split = offset.substitute({var: Index.of(high) * piece + Index.of(low)})
    rest = split - Index.of(low)
    return (split.coefficient(low) == 1 and not rest.depends_on(low)
            and rest.multiple_of() % piece == 0)


def uniform(index: Index, var: Var, piece: int) -> bool:
    """True if ``index`` is the same for ``piece`` elements along ``var``, from a multiple of
    piece."""
    if var.size % piece:
        return False
    high, low = Var(f"{var.name}_hi", var.size // piece), Var(f"{var.name}_lo", piece)
    return not index.substitute({var: Index.of(high) * piece + Index.of(low)}).depends_on(low)


def stride(offset: Index, var: Var) -> int | None:
    """Elements between neighbours along ``var``; None if that is not constant."""
    if not offset.depends_on(var):
        return 0
    rest = offset - Index.of(var) * offset.coefficient(var)
    return None if rest.depends_on(var) else offset.coefficient(var)


def apply(index: IndexMap, f: Callable[[Index], Index]) -> IndexMap:
    return tuple(f(i) for i in index)
