"""Random programs that update donated inputs by what other random programs compute."""

from __future__ import annotations

import numpy as np
from random_graphs import RandomGraph

from jaxmono.hlo.ir import Graph, Value
from jaxmono.hlo.rewrite import Builder
from jaxmono.hlo.types import DType

Pairs = tuple[tuple[int, int], ...]


def with_updates(seed: int, length: int) -> tuple[Graph, Pairs]:
    """A graph and the (output, input) pairs that one buffer may hold, whether or not it can."""
    graph = RandomGraph(seed, length).graph()
    rng = np.random.default_rng(seed)
    b = Builder()
    for o in graph.ops:
        b.append(o)
    inputs, outputs = list(graph.inputs), list(graph.outputs)
    pairs: list[tuple[int, int]] = []
    values = [v for o in graph.ops for v in o.results if v.type.dtype is DType.F32]
    for v in rng.permutation(len(values))[:int(rng.integers(1, 5))]:
        made = values[int(v)]
        for _ in range(int(rng.integers(1, 3))):  # moments, and weights
            old = Value(made.type, f"old{len(inputs)}")
            inputs.append(old)
            made = b.elementwise(str(rng.choice(["add", "subtract", "multiply", "maximum"])),
                                 *(made, _read(b, old, rng)))
            pairs.append((len(outputs), len(inputs) - 1))
            outputs.append(made)
            if rng.random() < 0.3:  # and somebody else reads the old one
                outputs.append(_used(b, old, rng))
    inverse = rng.permutation(len(pairs)) if rng.random() < 0.3 else range(len(pairs))
    mixed = [(pairs[i][0], pairs[int(j)][1]) for i, j in enumerate(inverse)]
    kept = tuple((o, i) for o, i in mixed if outputs[o].type == inputs[i].type)
    return Graph(tuple(inputs), tuple(b.ops), tuple(outputs), "updates"), kept


def _read(b: Builder, old: Value, rng: np.random.Generator) -> Value:
    kind = rng.random()
    if kind < 0.12 and old.type.rank == 2 and old.type.dims[0] == old.type.dims[1]:
        return b.transpose(old, (1, 0))
    if kind < 0.2 and old.type.rank:
        return b.broadcast_in_dim(
            b.reduce(old, b.constant(0.0, DType.F32), "add", (old.type.rank - 1,)),
            old.type.dims, range(old.type.rank - 1))
    if kind < 0.4:
        return b.elementwise("tanh", old)
    return old


def _used(b: Builder, old: Value, rng: np.random.Generator) -> Value:
    if rng.random() < 0.5 and old.type.rank:
        return b.reduce(old, b.constant(0.0, DType.F32), "add", (old.type.rank - 1,))
    return b.elementwise("negate", old)
