"""How many kernels an XLA program launches, read from its optimised HLO text."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator

# Instructions that launch nothing: names for values, and control flow that is followed instead.
_FREE = frozenset({
    "parameter", "constant", "tuple", "get-tuple-element", "bitcast", "after-all", "partition-id",
    "replica-id", "opt-barrier", "domain", "add-dependency", "call", "while", "conditional",
    "async-start", "async-update", "async-done", "copy-done",
})
_HEADER = re.compile(r"^(ENTRY )?%?([\w.\-]+) .*\{$")
_INSTRUCTION = re.compile(r"^\s+(?:ROOT )?%?[\w.\-]+ = .*?([a-z][a-z0-9\-]*)\(")
_CALLED = re.compile(r"\b(?:to_apply|body|condition|calls|true_computation|false_computation)"
                     r"=%?([\w.\-]+)")
_BRANCHES = re.compile(r"branch_computations=\{([^}]*)\}")


def count_kernels(hlo: str) -> Counter[str]:
    """Instructions of an optimised HLO module that run something, by kind.

    Fusions count once, whatever is inside. Bodies of calls and loops are followed; a loop body
    counts once, however often it runs. A library call (``custom-call``) counts once too, although
    it may launch more than one kernel, so the total is a lower bound.

    Args:
      hlo: `jax.stages.Compiled.as_text()`.

    Raises:
      ValueError: the text has no entry computation.
    """
    bodies: dict[str, list[str]] = {}
    entry = current = ""
    for line in hlo.splitlines():
        header = _HEADER.match(line)
        if header:
            current = header[2]
            bodies[current] = []
            entry = current if header[1] else entry
        elif current:
            bodies[current].append(line)
    if not entry:
        raise ValueError("this is no HLO module: it has no ENTRY computation")
    return Counter(_kinds(bodies, entry))


def _kinds(bodies: dict[str, list[str]], name: str) -> Iterator[str]:
    for line in bodies[name]:
        # Attributes and shapes may hold anything; the opcode is the first word before a bracket.
        found = _INSTRUCTION.match(line)
        if found is None:
            continue
        kind = found[1]
        if kind not in _FREE:
            yield kind
        elif kind not in ("parameter", "constant"):
            branches = _BRANCHES.search(line)
            called = re.split(r",\s*", branches[1]) if branches else []
            for other in (*_CALLED.findall(line), *called):
                yield from _kinds(bodies, other.lstrip("%"))


def described(kernels: Counter[str]) -> str:
    """For people: ``142 fusion, 36 custom-call``."""
    return ", ".join(f"{n} {kind}" for kind, n in kernels.most_common())
