"""What is tuned: one Sig, with as many copies side by side as its stage has groups of its shape."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Hashable
from dataclasses import dataclass, fields, is_dataclass
from functools import cached_property
from typing import Any

from jaxmono.codegen.generate import requests
from jaxmono.codegen.sig_code import Request, Tunable, code_for
from jaxmono.codegen.target import Target
from jaxmono.fusion.plan import AttentionForm, Device, DotForm, Plan, Sig


@dataclass(frozen=True)
class Conditions:
    """What a measurement holds for, besides the Sig.

    Attributes:
      device, target: what schedules are chosen and compiled for.
      driver: version of the GPU's driver.
      generator: hash of everything that decides what text a Sig becomes.
      compiler: version and flags.
    """

    device: Device
    target: Target
    driver: str
    generator: str
    compiler: str


@dataclass(frozen=True, eq=False)
class Problem:
    """A Sig to be tuned."""

    sig: Sig
    request: Request
    conditions: Conditions

    @property
    def siblings(self) -> int:
        return self.request.siblings

    @cached_property
    def fields(self) -> dict[str, Hashable]:
        """Everything that a measured time may depend on, readable; the key is their hash."""
        body, at = self.sig.body, self.conditions
        return {
            "name": self.sig.name,
            "dtypes": ",".join(v.type.dtype.value for v in (*body.inputs, *body.outputs)),
            "shape": shape_text(self.sig),
            "siblings": self.siblings,
            "behind": self.request.behind,
            "stage": self.request.stage,
            # Layouts, strides, prologue and epilogue: the Sig's canonical text.
            "body": self.sig.key,
            "device": at.device.name,
            "sm_count": at.device.sm_count,
            "alone": self.request.alone,
            "sole": self.request.sole,
            "shared_bytes": self.request.shared_bytes,
            "threads": self.request.threads,
            "arch": at.target.arch,
            "driver": at.driver,
            "generator": at.generator,
            "compiler": at.compiler,
        }

    @cached_property
    def key(self) -> str:
        """64 hex digits."""
        content = {k: v for k, v in self.fields.items() if k != "name"}
        return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()

    @cached_property
    def candidates(self) -> tuple[Any, ...]:
        """Legal schedules worth measuring, different ones, the analytic choice first."""
        code = code_for(self.sig)
        if not isinstance(code, Tunable):
            return (code.choose(self.sig, self.request),)
        return tuple({schedule_text(s): s for s in code.candidates(self.sig, self.request)}
                     .values())

    def late_us(self, text: str) -> float:
        """What the candidate of a text takes longer in its kernel than alone, in microseconds,
        where others have producer warps that are ahead of it."""
        code = code_for(self.sig)
        if not self.request.wgmma:
            return 0.0
        found = {schedule_text(s): s for s in self.candidates}.get(text)
        if found is None or not isinstance(code, Tunable):
            return 0.0
        return code.late_us(self.sig, self.request, found)

    def __str__(self) -> str:
        copies = f" x{self.siblings}" if self.siblings > 1 else ""
        dtype = self.sig.body.inputs[0].type.dtype.value if self.sig.body.inputs else ""
        return f"{self.sig.name} {shape_text(self.sig)}{copies} {dtype}".strip()


def problems_of(plan: Plan, conditions: Conditions) -> tuple[Problem, ...]:
    """The Sigs of a plan that have something to tune, in order of first use."""
    asked = requests(plan, conditions.target, conditions.device)
    found = (Problem(s, asked[s.key], conditions) for s in plan.sigs
             if isinstance(code_for(s), Tunable) and _is_work(s))
    return tuple(p for p in found if len(p.candidates) > 1)


def _is_work(sig: Sig) -> bool:
    return all(v.type.is_static and v.type.size > 0
               for v in (*sig.body.inputs, *sig.body.outputs))


def shape_text(sig: Sig) -> str:
    """``128x768x3072`` (m, n, k), with the batch before it where there is one."""
    form = sig.form
    if isinstance(form, DotForm):
        sizes = [form.batch.size, form.m.size, form.n.size, form.k.size]
    elif isinstance(form, AttentionForm):
        sizes = [form.batch.size, form.m.size, form.n.size, form.k.size, form.v.size]
    else:
        return "x".join(str(d) for v in sig.body.outputs[:1] for d in v.type.dims)
    return "x".join(map(str, sizes[1:] if sizes[0] == 1 else sizes))


def schedule_text(schedule: Any) -> str:
    """A schedule as canonical JSON: equal text, equal schedule. Fields at their defaults count."""
    if not is_dataclass(schedule):
        raise TypeError(f"a schedule is a dataclass of plain values, not {schedule!r}")
    values = {f.name: getattr(schedule, f.name) for f in fields(schedule)}
    return json.dumps({"type": type(schedule).__name__, **values}, sort_keys=True)
