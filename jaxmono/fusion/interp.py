"""Runs a Plan in NumPy over real bytes, to show that the plan alone gives the program's result.

    memory      inputs, outputs (those updated in place share the input's bytes), one scratch array
    a stage     its groups in a random order; each writes exactly what its stores say
    poison      0xFF (NaN, -1) in every byte of scratch that no buffer needs any more
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal

import numpy as np

from jaxmono.fusion.accumulated import accumulation, updates_of
from jaxmono.fusion.errors import PlanError
from jaxmono.fusion.indexing import Dyn, Index
from jaxmono.fusion.plan import Buffer, Group, Place, Plan, Sig, Store
from jaxmono.fusion.points import offsets
from jaxmono.hlo import ops
from jaxmono.hlo.interp import evaluate
from jaxmono.hlo.interp.indexing import UFUNCS
from jaxmono.hlo.ir import Graph, Value

Array = np.ndarray[Any, Any]
POISON = 0xFF


def run_plan(plan: Plan, inputs: Sequence[Array], *, seed: int = 0,
             accumulate: Literal["f32", "f64"] = "f32") -> list[Array]:
    """The program's outputs as the plan computes them.

    Args:
      inputs: one array per graph input; not changed.
      seed: of the order of groups within stages.
      accumulate: as in `hlo.interp.evaluate` ("f64" only for plans whose floats are all f64).

    Raises:
      PlanError: a store leaves its buffer or writes an element twice.
    """
    machine = _Machine(plan, inputs, accumulate)
    rng = np.random.default_rng(seed)

    def run(first: int, last: int) -> None:
        for number, stage in enumerate(plan.stages[first:last], first):
            for i in rng.permutation(len(stage.groups)):
                machine.run(stage.groups[i])
            machine.poison(number)

    count = len(plan.stages)
    run(0, plan.repeat.start if plan.repeat else count)
    while plan.repeat and machine.view(plan.buffers[plan.repeat.going]):
        run(plan.repeat.start, count)
    return [machine.view(b).copy() for b in plan.outputs]


class _Machine:
    def __init__(self, plan: Plan, inputs: Sequence[Array],
                 accumulate: Literal["f32", "f64"]) -> None:
        self.plan = plan
        self.accumulate: Literal["f32", "f64"] = accumulate
        self.scratch = np.full(plan.scratch_bytes, POISON, np.uint8)
        self.bytes: dict[int, Array] = {}
        self.stored: dict[str, list[Array | None]] = {}
        for b, a in zip(plan.inputs, inputs, strict=True):
            own = np.array(a, b.type.dtype.numpy, order="C").reshape(-1)
            self.bytes[b.id] = own.view(np.uint8).reshape(-1)
        for b in plan.outputs:
            self.bytes[b.id] = (self.bytes[plan.inputs[b.alias].id] if b.alias is not None
                                else np.full(b.type.nbytes, POISON, np.uint8))
        for b in plan.buffers:
            if b.place is Place.FLAGGED:
                self.bytes[b.id] = np.full(b.type.nbytes, POISON, np.uint8)

    def view(self, b: Buffer) -> Array:
        """A buffer's bytes as an array of its type; writing it writes memory."""
        return self.raw(b).view(b.type.dtype.numpy).reshape(b.type.dims)

    def raw(self, b: Buffer) -> Array:
        if b.place is Place.PART:
            return self.raw(self.plan.buffers[b.index])[b.offset:b.offset + b.type.nbytes]
        if b.place is Place.STATE:
            return self.bytes[self.plan.outputs[b.index].id]
        return (self.scratch[b.offset:b.offset + b.type.nbytes] if b.place is Place.SCRATCH
                else self.bytes[b.id])

    def run(self, g: Group) -> None:
        body = g.sig.body
        dynamic = dict.fromkeys((*_dynamic_values(g.sig), *(
            v for out in body.outputs if (op := accumulation(body, out)) for v in op.uses)))
        wider = Graph(body.inputs, body.ops, (*body.outputs, *dynamic), body.name)
        arrays = [self.view(self.plan.buffers[p]).reshape(v.type.dims).copy()
                  for p, v in zip(g.params, body.inputs, strict=True)]
        made = evaluate(wider, arrays, accumulate=self.accumulate)
        values = dict(zip(dynamic, made[len(body.outputs):], strict=True))
        for s in g.sig.form.stores:
            shape = body.outputs[s.result].type.dims
            target = self.view(self.plan.buffers[g.results[s.result]]).reshape(-1)
            if (op := accumulation(body, body.outputs[s.result])) is not None:
                _add_updates(op, s, target, values)
                continue
            try:
                at = offsets(s.index, shape, s.over, values)
            except IndexError as e:
                raise PlanError(f"group g{g.id} ({g.sig.name}), result {s.result}: {e}") from e
            written = np.zeros(target.size, bool)  # np.unique takes 15 times as long
            written[at] = True
            if np.count_nonzero(written) != at.size:
                raise PlanError(f"group g{g.id} ({g.sig.name}) writes an element of result "
                                f"{s.result} twice")
            target[at] = made[s.result].reshape(-1)[at].astype(target.dtype)

    def poison(self, stage: int) -> None:
        """Spoils all scratch bytes that no buffer has to keep beyond this stage."""
        keep = np.zeros(self.scratch.size, bool)
        for b in self.plan.buffers:
            if b.place is Place.SCRATCH and b.first <= stage < b.last:
                keep[b.offset:b.offset + b.type.nbytes] = True
        self.scratch[~keep] = POISON


def _add_updates(op: ops.Accumulate, store: Store, target: Array,
                values: Mapping[Value, Array]) -> None:
    """Adds the elements of the updates that a store names to ``target``, flat."""
    at = updates_of(op, store)
    if at is None:
        raise PlanError(f"{op.opcode} at {op.loc}: a store adds to no line of its updates")
    which = offsets(at, op.update.type.dims, store.over, values).reshape(-1)
    width = max(op.update.type.size // max(op.update.type.dims[0], 1), 1)
    line = values[op.lines][which // width]
    there = line >= 0
    UFUNCS[op.kind].at(target, (line * width + which % width)[there],
                       values[op.update].reshape(-1)[which][there].astype(target.dtype))


def _dynamic_values(sig: Sig) -> tuple[Value, ...]:
    out: dict[Value, None] = {}

    def visit(i: Index) -> None:
        for d in i.dynamics():
            assert isinstance(d, Dyn)
            out[d.value] = None
            for j in d.index:
                visit(j)

    for s in sig.form.stores:
        for i in s.index:
            visit(i)
    return tuple(out)
