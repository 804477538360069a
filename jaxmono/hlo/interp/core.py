"""The evaluation loop, the numeric modes and the table of op implementations."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Literal, TypeAlias, TypeVar

import numpy as np

from jaxmono.hlo import ops
from jaxmono.hlo.ir import Graph, Op, Value
from jaxmono.hlo.types import DType, TensorType

Array: TypeAlias = np.ndarray[Any, Any]
OpT = TypeVar("OpT", bound=Op)


class Unsupported(NotImplementedError):
    """The interpreter has no meaning for an op; the message names the op and its source line."""


class Context:
    """What an implementation needs besides its op: the values so far and the numeric mode.

    Attributes:
      wide: every float op computes and stays in f64 (complex in c128).
      env: the array of every Value computed so far, those of enclosing graphs included.
    """

    def __init__(self, wide: bool) -> None:
        self.wide = wide
        self.env: dict[Value, Array] = {}

    def stored(self, dtype: DType) -> np.dtype[Any]:
        """The NumPy dtype in which values of ``dtype`` are kept."""
        if self.wide and dtype.is_float:
            return np.dtype(np.float64)
        if self.wide and dtype.is_complex:
            return np.dtype(np.complex128)
        return dtype.numpy

    def compute(self, dtype: DType) -> np.dtype[Any]:
        """The NumPy dtype in which arithmetic on ``dtype`` is done: at least f32 for floats."""
        stored = self.stored(dtype)
        if dtype.is_float and stored.itemsize < 4:
            return np.dtype(np.float32)
        return stored

    def get(self, v: Value) -> Array:
        """The array of a Value."""
        return self.env[v]

    def wider(self, v: Value) -> Array:
        """The array of a Value in its `compute` dtype."""
        return self.env[v].astype(self.compute(v.type.dtype), copy=False)

    def run(self, graph: Graph, inputs: Sequence[Array]) -> list[Array]:
        """Evaluates a graph or region; its captures are in ``env``."""
        self.env.update(zip(graph.inputs, inputs, strict=True))
        for op in graph.ops:
            implementation = IMPLEMENTATIONS.get(type(op))
            if implementation is None:
                raise Unsupported(f"the reference interpreter has no {op.opcode} op ({op.loc})")
            results = implementation(op, self)
            for v, a in zip(op.results, results, strict=True):
                # NumPy gives scalars for 0-d results; a no-op astype costs nothing.
                self.env[v] = np.asarray(a).astype(self.stored(v.type.dtype), copy=False)
        return [self.env[v] for v in graph.outputs]

    def run_lifted(self, graph: Graph, inputs: Sequence[Array]) -> list[Array]:
        """Evaluates a region on scalars (a reducer, a comparator) for whole arrays at once.

        The inputs are arrays of one shape; so are the results. Only ops that work element by
        element mean the same on arrays.

        Raises:
          Unsupported: if the region holds any other op.
        """
        for op in graph.ops:
            if not isinstance(op, LIFTABLE):
                raise Unsupported(
                    f"the reference interpreter cannot vectorise {op.opcode} in a reducer or "
                    f"comparator ({op.loc})")
        shape = np.broadcast_shapes(*(a.shape for a in inputs))
        return [np.broadcast_to(a, shape) for a in self.run(graph, inputs)]


Implementation: TypeAlias = Callable[[Any, Context], Sequence[Any]]
IMPLEMENTATIONS: dict[type[Op], Implementation] = {}

LIFTABLE = (ops.Constant, ops.Elementwise, ops.Compare, ops.Convert, ops.BitcastConvert,
            ops.ReducePrecision, ops.OptimizationBarrier)
"""Ops whose implementations accept arrays where the Graph says scalars. A scalar Constant
broadcasts against them."""


def implements(cls: type[OpT]) -> Callable[[Callable[[OpT, Context], Sequence[Any]]],
                                           Callable[[OpT, Context], Sequence[Any]]]:
    """Registers the meaning of an op class: ``f(op, context) -> one array per result``."""

    def register(f: Callable[[OpT, Context], Sequence[Any]]) -> Any:
        IMPLEMENTATIONS[cls] = f
        return f

    return register


def evaluate(graph: Graph, inputs: Sequence[Any], *,
             accumulate: Literal["f32", "f64"] = "f32") -> list[Array]:
    """Runs ``graph`` on NumPy arrays.

    Args:
      graph: a self-contained graph with static shapes.
      inputs: one array (or array-like) per graph input, of its shape and dtype. In f64 mode
        float inputs may be float64 whatever the graph says.
      accumulate: "f32" rounds the result of every op to its dtype; sums and contractions of
        f16, bf16 and f32 accumulate in f32. "f64" computes every float op in f64 and keeps it
        there (float outputs are float64), integers as they are: a more precise reference.

    Returns:
      One array per graph output.

    Raises:
      ValueError: if an input has the wrong shape or dtype, or if their number is wrong.
      Unsupported: at an op without a meaning here (`custom_call`, `unknown`, few others).
    """
    if accumulate not in ("f32", "f64"):
        raise ValueError(f"evaluate: accumulate must be 'f32' or 'f64', not {accumulate!r}")
    if len(inputs) != len(graph.inputs):
        raise ValueError(f"evaluate: graph {graph.name!r} takes {len(graph.inputs)} inputs, "
                         f"got {len(inputs)}")
    context = Context(wide=accumulate == "f64")
    arrays = [_input(i, a, v.type, context)
              for i, (a, v) in enumerate(zip(inputs, graph.inputs, strict=True))]
    with np.errstate(all="ignore"):
        return context.run(graph, arrays)


def _input(i: int, value: Any, type: TensorType, context: Context) -> Array:
    array = np.asarray(value)
    stored = context.stored(type.dtype)
    if array.shape != type.dims or array.dtype not in (type.dtype.numpy, stored):
        raise ValueError(f"evaluate: input {i} must be {type}, got {array.dtype} with shape "
                         f"{array.shape}")
    return array.astype(stored, copy=False)

