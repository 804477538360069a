"""What inference rules share: the error they raise and the checks they repeat."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from jaxmono.hlo.ir import Graph, Value
from jaxmono.hlo.types import DType, TensorType


class RuleError(ValueError):
    """An op breaks a rule of its opcode; the message says which."""


def require(holds: bool, rule: str) -> None:
    """Raises RuleError(rule) unless ``holds``."""
    if not holds:
        raise RuleError(rule)


def same(what: str, got: Any, wanted: Any) -> None:
    require(got == wanted, f"{what} is {_show(got)}, has to be {_show(wanted)}")


def dims_in_range(what: str, dims: Sequence[int], rank: int) -> None:
    """``dims`` are different dimensions of a tensor of that rank."""
    require(all(0 <= d < rank for d in dims), f"{what} {list(dims)} leaves the range 0..{rank - 1}")
    require(len(set(dims)) == len(dims), f"{what} {list(dims)} repeats a dimension")


def per_dim(what: str, values: Sequence[Any], rank: int) -> None:
    require(len(values) == rank, f"{what} has {len(values)} entries for {rank} dimensions")


def scalar(what: str, value: Value, dtype: DType | None = None) -> None:
    require(value.type.rank == 0, f"{what} has to be a scalar, is {value.type}")
    if dtype is not None:
        same(f"the element type of {what}", value.type.dtype, dtype)


def signature(what: str, graph: Graph, inputs: Iterable[TensorType],
              outputs: Iterable[TensorType]) -> None:
    """A region takes and returns exactly these types."""
    same(f"the inputs of {what}", [v.type for v in graph.inputs], list(inputs))
    same(f"the outputs of {what}", [v.type for v in graph.outputs], list(outputs))


def element(value: Value) -> TensorType:
    """The scalar type of a tensor's elements."""
    return TensorType((), value.type.dtype)


def _show(v: Any) -> str:
    if isinstance(v, DType):
        return v.value
    if isinstance(v, (list, tuple)):
        return f"({', '.join(_show(x) for x in v)})"
    return str(v)
