"""A plan of one stage that runs a Sig, and nothing else, as the profiler measures it."""

from __future__ import annotations

from jaxmono.fusion.plan import Buffer, DotForm, Group, Place, Plan, Sig, Stage
from jaxmono.fusion.verify import updated_param, verify
from jaxmono.hlo.ir import Graph, Op, Value


def alone(sig: Sig, siblings: int = 1) -> Plan:
    """``siblings`` groups of ``sig`` in one stage; every body input and output is the kernel's.

    Groups that run side by side mostly share their left operand (queries, keys and values of the
    same rows; gates and values of the same rows), so the copies of a contraction do. Everything
    else they have of their own.
    """
    body = sig.body
    shared = _left_inputs(sig) if siblings > 1 else set[Value]()
    inputs: list[Value] = []
    made_ops: list[Op] = []
    outputs: list[Value] = []
    params: list[tuple[int, ...]] = []
    aliases: dict[int, int] = {}
    first: dict[Value, Value] = {}
    for copy in range(siblings):
        mapping: dict[Value, Value] = {}
        for v in body.inputs:
            if copy and v in shared:
                mapping[v] = first[v]
                continue
            mapping[v] = Value(v.type, v.hint)
            inputs.append(mapping[v])
        if not copy:
            first = dict(mapping)
        for o in body.ops:
            made = o.clone(mapping, fresh_results=True)
            mapping.update(zip(o.results, made.results, strict=True))
            made_ops.append(made)
        params.append(tuple(inputs.index(mapping[v]) for v in body.inputs))
        for result, v in enumerate(body.outputs):
            if (param := updated_param(sig, result)) is not None:
                aliases[len(outputs)] = params[-1][param]
            outputs.append(mapping[v])
    graph = Graph(tuple(inputs), tuple(made_ops), tuple(outputs), sig.name)
    buffers = [Buffer(i, v.type, Place.INPUT, index=i, first=-1, last=0)
               for i, v in enumerate(inputs)]
    buffers += [Buffer(len(inputs) + i, v.type, Place.OUTPUT, index=i, first=0, last=1,
                       alias=aliases.get(i)) for i, v in enumerate(outputs)]
    n = len(body.outputs)
    groups = tuple(Group(c, sig, params[c], tuple(range(len(inputs) + c * n,
                                                        len(inputs) + (c + 1) * n)))
                   for c in range(siblings))
    plan = Plan(graph, tuple(buffers), (Stage(groups),), (), (), 0, 0)
    verify(plan)
    return plan


def _left_inputs(sig: Sig) -> set[Value]:
    """Body inputs that only the left operand of a contraction reads."""
    form, body = sig.form, sig.body
    if not isinstance(form, DotForm):
        return set()
    left = _sources(body, form.dot.lhs)
    others = _sources(body, form.dot.rhs)
    for v in body.outputs:
        others |= _sources(body, v, stop=form.dot)
    return left - others


def _sources(body: Graph, v: Value, stop: Op | None = None) -> set[Value]:
    """Body inputs that ``v`` is computed from, not looking behind ``stop``."""
    found: set[Value] = set()
    seen: set[Value] = set()
    todo = [v]
    while todo:
        at = todo.pop()
        if at in seen:
            continue
        seen.add(at)
        producer = body.producer.get(at)
        if producer is None:
            found.add(at)
        elif producer is not stop:
            todo.extend(producer.uses)
    return found & set(body.inputs)

