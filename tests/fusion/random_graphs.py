"""Random graphs for planner tests, over everything that a plan may hold."""

from __future__ import annotations

import math

import numpy as np

from jaxmono.hlo import ops
from jaxmono.hlo.ir import Graph, Value
from jaxmono.hlo.rewrite import Builder
from jaxmono.hlo.types import DType, TensorType

DIMS = (1, 2, 3, 4, 4, 6)


class RandomGraph:
    """Grows a graph op by op from a pool of values; all values stay small in size."""

    def __init__(self, seed: int, length: int = 18) -> None:
        self.rng = np.random.default_rng(seed)
        self.b = Builder()
        self.pool: list[Value] = []
        self.inputs: list[Value] = []
        for _ in range(int(self.rng.integers(1, 4))):
            self.input(self.shape(), DType.F32)
        self.position = self.input((), DType.S32)
        for _ in range(length):
            self.step()

    def graph(self) -> Graph:
        count = int(self.rng.integers(1, 4))
        made = {r for o in self.b.ops for r in o.results}
        last = [v for v in self.pool if v in made][-count:] or self.pool[:1]
        if self.rng.random() < 0.2:
            last.append(self.pick())
        return Graph(tuple(self.inputs), tuple(self.b.ops), tuple(last), "random")

    def input(self, shape: tuple[int, ...], dtype: DType) -> Value:
        v = Value(TensorType(shape, dtype), f"in{len(self.inputs)}")
        self.inputs.append(v)
        if dtype is DType.F32:
            self.pool.append(v)
        return v

    def shape(self) -> tuple[int, ...]:
        return tuple(int(self.rng.choice(DIMS)) for _ in range(int(self.rng.integers(0, 4))))

    def pick(self, rank: int = 0) -> Value:
        known = [v for v in self.pool if v.type.rank >= rank]
        if not known:
            return self.input((3, 4, 2)[:max(rank, 1)], DType.F32)
        # recent values more often: deep graphs find more than wide ones
        return known[max(int(len(known) - 1 - abs(self.rng.normal()) * len(known) / 3), 0)]

    def step(self) -> None:
        kinds = ("unary", "binary", "binary", "broadcast", "reduce", "reduce", "norm", "dot",
                 "dot", "transpose", "reshape", "slice", "concat", "pad", "select", "update",
                 "window", "slide", "gather", "argmax", "reverse")
        made = getattr(self, str(self.rng.choice(kinds)))()
        for v in made if isinstance(made, tuple) else (made,):
            if v.type.size <= 4096:
                self.pool.append(v)

    def like(self, v: Value) -> Value:
        """A value of the shape of ``v``: one that exists, or one broadcast to it."""
        same = [x for x in self.pool if x.type == v.type]
        if same and self.rng.random() < 0.7:
            return same[int(self.rng.integers(len(same)))]
        shape = v.type.dims
        kept = [d for d in range(len(shape)) if self.rng.random() < 0.6]
        small = self.input(tuple(shape[d] for d in kept), DType.F32)
        return self.b.broadcast_in_dim(small, shape, kept)

    def unary(self) -> Value:
        kind = str(self.rng.choice(["tanh", "negate", "abs", "cosine", "logistic"]))
        return self.b.elementwise(kind, self.pick())

    def binary(self) -> Value:
        x = self.pick()
        kind = str(self.rng.choice(["add", "multiply", "subtract", "maximum"]))
        return self.b.elementwise(kind, x, self.like(x))

    def broadcast(self) -> Value:
        x = self.pick()
        new = [int(self.rng.choice(DIMS))] if self.rng.random() < 0.7 else []
        at = int(self.rng.integers(0, x.type.rank + 1)) if new else 0
        shape = (*x.type.dims[:at], *new, *x.type.dims[at:])
        dims = [d if d < at else d + len(new) for d in range(x.type.rank)]
        return self.b.broadcast_in_dim(x, shape, dims)

    def _dims(self, x: Value) -> list[int]:
        return sorted(set(map(int, self.rng.integers(0, x.type.rank,
                                                     int(self.rng.integers(1, 3))))))

    def reduce(self) -> Value:
        x = self.pick(1)
        kind = str(self.rng.choice(["add", "maximum", "minimum"]))
        start = {"add": 0.0, "maximum": -np.inf, "minimum": np.inf}[kind]
        return self.b.reduce(x, self.b.constant(start, DType.F32), kind, self._dims(x))

    def norm(self) -> Value:
        """x - mean(x), perhaps divided by something of the row as well."""
        x = self.pick(1)
        dims = self._dims(x)
        shape = x.type.dims
        zero = self.b.constant(0.0, DType.F32)
        kept = [d for d in range(len(shape)) if d not in dims]
        total = self.b.reduce(x, zero, "add", dims)
        out = self.b.elementwise("subtract", x, self.b.broadcast_in_dim(total, shape, kept))
        if self.rng.random() < 0.5:
            square = self.b.elementwise("multiply", out, out)
            top = self.b.reduce(square, zero, "add", dims)
            one = self.b.splat(1.0, top.type)
            top = self.b.elementwise("rsqrt", self.b.elementwise("add", top, one))
            out = self.b.elementwise("multiply", out, self.b.broadcast_in_dim(top, shape, kept))
        return out

    def dot(self) -> Value:
        x = self.pick(1)
        shape = x.type.dims
        k = int(self.rng.integers(len(shape)))
        batch = [d for d in range(len(shape)) if d != k and self.rng.random() < 0.3]
        n = int(self.rng.choice(DIMS))
        order = [*(("b", d) for d in batch), ("k", k), ("n", 0)]
        self.rng.shuffle(order)
        rhs_shape = tuple(n if kind == "n" else shape[int(d)] for kind, d in order)
        same = [v for v in self.pool if v.type.shape == rhs_shape]
        rhs = same[-1] if same and self.rng.random() < 0.5 else self.input(rhs_shape, DType.F32)
        at = {(kind, int(d)): i for i, (kind, d) in enumerate(order)}
        rb, rk = [at["b", d] for d in batch], [at["k", k]]
        if self.rng.random() < 0.3:
            return self.b.dot_general(rhs, x, batch=(rb, batch), contract=(rk, [k]),
                                      dtype=DType.F32)
        return self.b.dot_general(x, rhs, batch=(batch, rb), contract=([k], rk), dtype=DType.F32)

    def transpose(self) -> Value:
        x = self.pick(1)
        return self.b.transpose(x, [int(p) for p in self.rng.permutation(x.type.rank)])

    def reshape(self) -> Value:
        x = self.pick(1)
        shape = list(x.type.dims)
        if len(shape) > 1 and self.rng.random() < 0.5:
            d = int(self.rng.integers(len(shape) - 1))
            shape[d:d + 2] = [shape[d] * shape[d + 1]]
        else:
            d = int(self.rng.integers(len(shape)))
            f = next((f for f in (2, 3) if shape[d] % f == 0), 1)
            shape[d:d + 1] = [f, shape[d] // f]
        return self.b.reshape(x, shape)

    def slice(self) -> Value:
        x = self.pick(1)
        start = [int(self.rng.integers(n)) for n in x.type.dims]
        return self.b.slice(x, start, x.type.dims)

    def concat(self) -> Value:
        x = self.pick(1)
        return self.b.concatenate([x, self.like(x)], int(self.rng.integers(x.type.rank)))

    def pad(self) -> Value:
        x = self.pick(1)
        low, high, inner = ([int(self.rng.integers(0, 2)) for _ in x.type.dims]
                            for _ in range(3))
        shape = tuple(a + b + n + max(n - 1, 0) * i for a, b, i, n in
                      zip(low, high, inner, x.type.dims, strict=True))
        return self.b.emit1(ops.Pad, TensorType(shape, x.type.dtype), operand=x,
                            padding_value=self.b.constant(0.5, DType.F32), low=tuple(low),
                            high=tuple(high), interior=tuple(inner))

    def select(self) -> Value:
        x = self.pick()
        y = self.like(x)
        return self.b.elementwise("select", self.b.compare("LT", x, y), x, self.like(x))

    def update(self) -> Value:
        x = self.pick(1)
        shape = tuple(int(self.rng.integers(1, n + 1)) for n in x.type.dims)
        same = [v for v in self.pool if v.type.shape == shape]
        new = same[-1] if same else self.input(shape, DType.F32)
        zero = self.b.constant(0, DType.S32)
        starts = tuple(self.position if self.rng.random() < 0.5 else zero for _ in shape)
        return self.b.emit1(ops.DynamicUpdateSlice, x.type, operand=x, update=new,
                            start_indices=starts)

    def window(self) -> Value:
        x = self.pick(1)
        shape = tuple(int(self.rng.integers(1, n + 1)) for n in x.type.dims)
        return self.b.emit1(ops.DynamicSlice, TensorType(shape, x.type.dtype), operand=x,
                            start_indices=(self.position,) * len(shape), slice_sizes=shape)

    def slide(self) -> Value:
        x = self.pick(1)
        dims = [d for d in range(x.type.rank) if self.rng.random() < 0.6 and x.type.dims[d] > 1]
        sizes = [int(self.rng.integers(1, min(x.type.dims[d], 3) + 1)) for d in dims]
        dilations = [1 if x.type.dims[d] < 2 * n else int(self.rng.integers(1, 3))
                     for d, n in zip(dims, sizes, strict=True)]
        return self.b.window(x, dims, sizes, [int(self.rng.integers(1, 3)) for _ in dims],
                             dilations)

    def gather(self) -> Value:
        x = self.pick(1)
        count = int(self.rng.choice(DIMS))
        ids = self.input((count, 1), DType.S32)
        rest = x.type.dims[1:]
        return self.b.emit1(
            ops.Gather, TensorType((count, *rest), x.type.dtype), operand=x, start_indices=ids,
            offset_dims=tuple(range(1, 1 + len(rest))), collapsed_slice_dims=(0,),
            operand_batching_dims=(), start_indices_batching_dims=(), start_index_map=(0,),
            index_vector_dim=1, slice_sizes=(1, *rest))

    def reverse(self) -> Value:
        x = self.pick(1)
        return self.b.emit1(ops.Reverse, x.type, operand=x, dimensions=tuple(self._dims(x)))

    def argmax(self) -> Value:
        x = self.pick(1)
        d = int(self.rng.integers(x.type.rank))
        where = self.b.iota(x.type.dims, DType.S32, d)
        f, s = TensorType((), DType.F32), TensorType((), DType.S32)
        av, ai, bv, bi = Value(f), Value(s), Value(f), Value(s)
        inner = Builder()
        pick = inner.compare("GE", av, bv)
        outs = (inner.elementwise("select", pick, av, bv),
                inner.elementwise("select", pick, ai, bi))
        body = Graph((av, ai, bv, bi), tuple(inner.ops), outs, "body")
        shape = tuple(n for i, n in enumerate(x.type.dims) if i != d)
        top, at = self.b.emit(
            ops.Reduce, (TensorType(shape, DType.F32), TensorType(shape, DType.S32)),
            args=(x, where), inits=(self.b.constant(-np.inf, DType.F32),
                                    self.b.constant(0, DType.S32)), body=body, dimensions=(d,))
        if math.prod(shape) and self.rng.random() < 0.5:
            return self.b.convert(at, DType.F32)
        return top
