"""Kernels with a barrier or wait taken out of their text: what the emulator finds wrong with them.

A test removes one statement and runs many thread orders (seeds of the emulator) until a result is
wrong or the emulator reports an error.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import pytest
from contraction_harness import Array, build
from harness import run_program

from jaxmono.codegen import compile as compiling
from jaxmono.codegen import headers
from jaxmono.codegen.headers import DEVICE
from jaxmono.fusion.plan import Plan
from jaxmono.hlo.interp import evaluate

Change = Callable[[str], str]


@dataclass(frozen=True, eq=False)
class Case:
    """A kernel that is right as it is.

    Attributes:
      sigs: the schedules of its Sigs.
      rtol: what is no error, of the mean and the largest magnitude of an output together; 0 where
        results are exact.
      seeds: thread orders that are tried.
      blocks: in turns.
    """

    plan: Plan
    sigs: dict[str, Any]
    given: list[Array]
    rtol: float
    threads: int = 128
    seeds: int = 16
    blocks: tuple[int, ...] = (2,)

    @cached_property
    def wanted(self) -> list[Array]:
        return evaluate(self.plan.graph, self.given, accumulate="f64")


def failure(case: Case, monkeypatch: pytest.MonkeyPatch, change: Change) -> str:
    """What goes wrong first with the changed text; "" if nothing does."""
    with monkeypatch.context() as patched:
        patched.setattr(compiling, "bundle", lambda source: change(headers.bundle(source)))
        program = build(case.plan, case.sigs, threads=case.threads)
    for seed in range(case.seeds):
        try:
            found = run_program(program, case.given, seed=seed,
                                blocks=case.blocks[seed % len(case.blocks)])
        except RuntimeError as error:
            return f"seed {seed}: {error}"
        for a, b in zip(found, case.wanted, strict=True):
            size = np.abs(b).mean() + np.abs(b).max()
            error = np.abs(a.astype(np.float64) - b.astype(a.dtype).astype(np.float64)).max()
            if not error <= case.rtol * size:  # a NaN is not
                return f"seed {seed}: wrong result"
    return ""


def own_text(name: str) -> str:
    """A device header without its includes: it is in every bundled source as it is."""
    text = (DEVICE / name).read_text()
    last = [m.end() for m in re.finditer(r"^#include[^\n]*\n", text, re.M)][-1]
    return text[last:].strip()


def rewritten(name: str, change: Change) -> Change:
    """Changes one header's own text in a bundled source."""
    old = own_text(name)
    new = change(old)

    def apply(text: str) -> str:
        assert text.count(old) == 1 and new != old
        return text.replace(old, new)

    return apply


def replaced(there: str, instead: str) -> Change:
    """Writes other text wherever this one is in a bundled source."""
    def change(text: str) -> str:
        assert there in text
        return text.replace(there, instead)

    return change


def removed(name: str, statement: re.Pattern[str], number: int) -> Change:
    """Takes one of a header's statements that match out of it."""
    def change(text: str) -> str:
        found = list(statement.finditer(text))[number]
        return text[:found.start()] + ";" + text[found.end():]

    return rewritten(name, change)
