"""The least a program must do, read from its jaxpr: bytes to and from device memory, and flops.

Bytes: every input and every output once. Of an input that is only gathered or sliced from (an
embedding table), what is taken counts; of a result that is a donated input with a part written
anew (a cache), that part counts; what is handed through counts nothing.

Flops: matrix products and convolutions, two per multiply-add. What elementwise ops compute does
not run at the matrix rate and is never the bound of these programs.

The bodies of scans count once per trip; those of loops with an unknown number of trips count once
(`Floor.open_loops` counts them), so that the floor stays a floor.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend.core import Literal

# Primitives whose result is a view of operand 0: a use of the result is a use of the operand.
_VIEWS = frozenset({"reshape", "transpose", "squeeze", "expand_dims", "convert_element_type",
                    "copy", "copy_p", "optimization_barrier", "reduce_precision", "rev",
                    "stop_gradient"})
_TAKES = frozenset({"gather", "dynamic_slice", "slice"})
_UPDATES = {"dynamic_update_slice": 1, "scatter": 2, "scatter-add": 2, "scatter_add": 2}
"""Primitives that write operand k into a copy of operand 0."""


@dataclass(frozen=True)
class Floor:
    """What a program cannot do without.

    Attributes:
      read_bytes, written_bytes: device memory.
      flops: of matrix products and convolutions.
      open_loops: loops whose number of trips only the data tells.
    """

    read_bytes: int
    written_bytes: int
    flops: int
    open_loops: int = 0

    def us(self, bytes_per_s: float, flops_per_s: float) -> float:
        """The larger of the two times, in microseconds."""
        moved = (self.read_bytes + self.written_bytes) / bytes_per_s
        return max(moved, self.flops / flops_per_s) * 1e6


@dataclass
class _Flat:
    """A jaxpr with its calls inlined: equations over variables that are unique by identity."""

    eqns: list[tuple[Any, list[Any], list[Any]]] = field(default_factory=list)
    inputs: list[Any] = field(default_factory=list)
    outputs: list[Any] = field(default_factory=list)


def floor_of(step: Callable[..., Any], *abstract: Any) -> Floor:
    """The floor of ``step(*abstract)``; arguments are arrays or `jax.ShapeDtypeStruct`s."""
    closed = jax.make_jaxpr(step)(*abstract)
    flat = _flatten(closed.jaxpr)
    uses = _uses(flat)
    consts = sum(_nbytes(v) for v in closed.jaxpr.constvars)
    read = consts + sum(min(_read(flat, uses, v, set()), _nbytes(v)) for v in flat.inputs)
    made = {id(v): eqn for eqn in flat.eqns for v in eqn[2]}
    inputs = {id(v) for v in flat.inputs}
    unique = {id(v): v for v in flat.outputs if not isinstance(v, Literal)}
    written = sum(min(_written(made, inputs, v), _nbytes(v)) for v in unique.values())
    flops, loops = _flops(closed.jaxpr)
    return Floor(read, written, flops, loops)


def _nbytes(var: Any) -> int:
    aval = var.aval
    if not hasattr(aval, "shape"):
        return 0
    return math.prod(aval.shape) * _bits(aval.dtype) // 8


def _bits(dtype: Any) -> int:
    """Of an element in a buffer; random keys have some too."""
    if jnp.issubdtype(dtype, jnp.integer):
        return int(jnp.iinfo(dtype).bits)
    return 8 * int(getattr(dtype, "itemsize", 0))


def _inner(eqn: Any) -> Any | None:
    """The jaxpr that an equation calls exactly once with its own operands, or None."""
    if eqn.primitive.name in ("scan", "while", "cond"):
        return None
    found = [p for name in ("jaxpr", "call_jaxpr", "fun_jaxpr")
             if (p := eqn.params.get(name)) is not None]
    if not found:
        return None
    jaxpr = getattr(found[0], "jaxpr", found[0])
    same = len(jaxpr.invars) == len(eqn.invars) and len(jaxpr.outvars) == len(eqn.outvars)
    return jaxpr if same else None


class _Fresh:
    """A variable of one inlined call: a jaxpr that is called twice gets two sets of them."""

    def __init__(self, aval: Any) -> None:
        self.aval = aval


def _flatten(jaxpr: Any) -> _Flat:
    flat = _Flat(inputs=[_Fresh(v.aval) for v in jaxpr.invars])
    flat.outputs = _inline(jaxpr, flat.inputs, flat.eqns)
    return flat


def _inline(jaxpr: Any, arguments: list[Any], eqns: list[Any]) -> list[Any]:
    names: dict[Any, Any] = dict(zip(jaxpr.invars, arguments, strict=True))
    names |= {v: _Fresh(v.aval) for v in jaxpr.constvars}

    def get(atom: Any) -> Any:
        return atom if isinstance(atom, Literal) else names[atom]

    for eqn in jaxpr.eqns:
        operands = [get(v) for v in eqn.invars]
        inner = _inner(eqn)
        results = [_Fresh(v.aval) for v in eqn.outvars] if inner is None \
            else _inline(inner, operands, eqns)
        names |= dict(zip(eqn.outvars, results, strict=True))
        if inner is None:
            eqns.append((eqn, operands, results))
    return [get(v) for v in jaxpr.outvars]


_Uses = dict[int, list[tuple[tuple[Any, list[Any], list[Any]], int]]]


def _uses(flat: _Flat) -> _Uses:
    found: _Uses = {}
    for eqn in flat.eqns:
        for place, operand in enumerate(eqn[1]):
            found.setdefault(id(operand), []).append((eqn, place))
    return found


def _read(flat: _Flat, uses: _Uses, var: Any, seen: set[int]) -> int:
    """Bytes that are read of a value; may exceed its size when several uses take of it."""
    total = 0
    for (eqn, _, results), place in uses.get(id(var), ()):
        name = eqn.primitive.name
        if place == 0 and name in _TAKES:
            total += sum(_nbytes(v) for v in results) * _itembits(var) // _itembits(results[0])
        elif place == 0 and (name in _VIEWS or name in _UPDATES):
            if id(eqn) not in seen:
                share = _itembits(var) / _itembits(results[0])
                total += int(_read(flat, uses, results[0], {*seen, id(eqn)}) * share)
        else:
            return _nbytes(var)
    return total


def _itembits(var: Any) -> int:
    return max(_bits(var.aval.dtype), 1)


def _written(made: dict[int, Any], inputs: set[int], var: Any) -> int:
    """Bytes that have to be written of a result."""
    total = 0
    while id(var) not in inputs:
        found = made.get(id(var))
        if found is None:
            return total  # a constant handed out
        eqn, operands, _ = found
        name = eqn.primitive.name
        if name not in _UPDATES:
            return _nbytes(var)
        total += _nbytes(operands[_UPDATES[name]])
        var = operands[0]
        if isinstance(var, Literal):
            return _nbytes(found[2][0])
    return total


def _flops(jaxpr: Any) -> tuple[int, int]:
    """(flops, loops with an unknown number of trips) of a jaxpr."""
    flops = loops = 0
    for eqn in jaxpr.eqns:
        name = eqn.primitive.name
        if name == "dot_general":
            (contracted, _), _ = eqn.params["dimension_numbers"]
            depth = math.prod(eqn.invars[0].aval.shape[d] for d in contracted)
            flops += 2 * math.prod(eqn.outvars[0].aval.shape) * depth
        elif name == "conv_general_dilated":
            flops += _convolution(eqn)
        elif name == "cond":
            parts = [_flops(_open(b)) for b in eqn.params["branches"]]
            flops, loops = flops + max(p[0] for p in parts), loops + max(p[1] for p in parts)
        else:
            times = int(eqn.params["length"]) if name == "scan" else 1
            for part in _bodies(eqn):
                inner = _flops(part)
                flops, loops = flops + times * inner[0], loops + inner[1]
            loops += name == "while"
    return flops, loops


def _convolution(eqn: Any) -> int:
    """Two per multiply-add with an element that is there: neither padding nor a hole."""
    lhs, rhs = (v.aval.shape for v in eqn.invars)
    out, numbers = eqn.outvars[0].aval.shape, eqn.params["dimension_numbers"]
    taps = 1
    for axis, (low, _) in enumerate(eqn.params["padding"]):
        size, kernel = lhs[numbers.lhs_spec[2 + axis]], rhs[numbers.rhs_spec[2 + axis]]
        hole = eqn.params["lhs_dilation"][axis]
        start = np.arange(out[numbers.out_spec[2 + axis]]) * eqn.params["window_strides"][axis]
        at = start[:, None] + np.arange(kernel) * eqn.params["rhs_dilation"][axis] - low
        taps *= int(((at >= 0) & (at <= (size - 1) * hole) & (at % hole == 0)).sum())
    channels = rhs[numbers.rhs_spec[1]]
    images = out[numbers.out_spec[0]] * out[numbers.out_spec[1]]
    return 2 * images * taps * channels


def _bodies(eqn: Any) -> Iterator[Any]:
    for value in eqn.params.values():
        for part in value if isinstance(value, tuple | list) else (value,):
            if hasattr(_open(part), "eqns"):
                yield _open(part)


def _open(jaxpr: Any) -> Any:
    return getattr(jaxpr, "jaxpr", jaxpr)
