"""Which registers of a kernel's PTX are read on some way from its beginning that has not set them.

ptxas thinks that such a value comes from the beginning, and keeps a register for it in all that is
on the way: the loops over layers and tasks, and every other stage's products.

    for each layer:                        %f7 is live
      for each task of a product:          in all of this,
        for each group of rows:            and in the layer's
          %f7 = first ? 0 : %f7            other products
          %f7 = %f7 + ...

Sums that wgmma begins with zeros for count as well: its text names them as read. Attention's are
such ones; setting them gained nothing in BERT-base and ViT-B/16.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

_REGISTER = re.compile(r"%(?:rd|rs|r|fd|f|p|h|hh)\d+\b")
_LABEL = re.compile(r"(\$?\w+):\s*")
_GUARD = re.compile(r"@!?(%?\w+)\s+")
_BRANCH = re.compile(r"bra(?:\.uni)?\s+(\$?\w+)")
_FIRST = re.compile(r"\s*(\{[^}]*\}|[^,;{]*)(.*)", re.DOTALL)
_NO_RESULT = ("bar", "barrier", "bra", "call", "discard", "fence", "griddepcontrol", "membar",
              "nanosleep", "prefetch", "red", "ret", "setmaxnreg", "st.", "stmatrix", "trap",
              "wgmma.commit", "wgmma.fence", "wgmma.wait")


def unset(ptx: str) -> list[str]:
    """Of each such register the first statement that reads it."""
    functions = re.split(r"^(?:\.\w+ )?\.(?:entry|func)\b", ptx, flags=re.MULTILINE)[1:]
    bodies = [f[f.index("\n{\n") + 3:f.rindex("\n}")] for f in functions if "\n{\n" in f]
    assert bodies
    return [x for body in bodies for x in _Function(body).unset()]


class _Function:
    def __init__(self, body: str) -> None:
        self.bits: dict[str, int] = {}
        self.labels: dict[str, int] = {}
        self.statements = list(self._statements(body))
        self.reads = [self._mask(_read(s)) for s in self.statements]
        self.sets = [self._mask(_set(s)) for s in self.statements]
        self.next = [list(self._successors(i)) for i in range(len(self.statements))]

    def _statements(self, body: str) -> Iterator[str]:
        code = re.sub(r"//[^\n]*|^\s*\.[^\n]*$", "", body, flags=re.MULTILINE)
        count = 0
        for part in code.split(";"):
            text = part.lstrip("{} \t\n")
            while label := _LABEL.match(text):
                self.labels[label[1]] = count
                text = text[label.end():].lstrip("{} \t\n")
            if text and not text.startswith("."):
                count += 1
                yield text

    def _mask(self, registers: set[str]) -> int:
        return sum(1 << self.bits.setdefault(r, len(self.bits)) for r in registers)

    def _successors(self, i: int) -> Iterator[int]:
        guard = _GUARD.match(s := self.statements[i])
        code = s[guard.end():] if guard else s
        assert not code.startswith("brx"), "a branch by table"
        branch = _BRANCH.match(code)
        if branch:
            yield self.labels[branch[1]]
        if (guard or not (branch or code.startswith(("ret", "exit", "trap")))) \
                and i + 1 < len(self.statements):
            yield i + 1

    def unset(self) -> list[str]:
        before: list[list[int]] = [[] for _ in self.statements]
        for i, following in enumerate(self.next):
            for j in following:
                before[j].append(i)
        live = list(self.reads)
        todo = list(range(len(live)))
        while todo:
            i = todo.pop()
            now = self.reads[i]
            for j in self.next[i]:
                now |= live[j] & ~self.sets[i]
            if now != live[i]:
                live[i] = now
                todo += before[i]
        names = [r for r, bit in self.bits.items() if live and live[0] >> bit & 1]
        return [next(s for s, reads in zip(self.statements, self.reads, strict=True)
                     if reads >> self.bits[r] & 1) for r in names]


def _parts(statement: str) -> tuple[set[str], str, str, bool]:
    """Of a statement: its guard, its first operand, the others, whether the first is a result."""
    guard = _GUARD.match(statement)
    code = statement[guard.end():] if guard else statement
    op, _, operands = code.partition(" ") if " " in code else code.partition("\t")
    first = _FIRST.match(operands)
    assert first is not None
    result = not op.startswith(_NO_RESULT) and "[" not in first[1]
    return set(_REGISTER.findall(guard[1])) if guard else set(), first[1], first[2], result


def _read(statement: str) -> set[str]:
    guard, first, others, result = _parts(statement)
    also = not result or "wgmma.mma" in statement  # its sums are both
    return guard | set(_REGISTER.findall(others + (first if also else "")))


def _set(statement: str) -> set[str]:
    guard, first, _, result = _parts(statement)
    return set(_REGISTER.findall(first)) if result and not guard else set()
