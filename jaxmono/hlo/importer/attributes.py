"""Readers for the MLIR attributes of StableHLO ops."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
from jax.extend.mlir import ir
from jax.extend.mlir.dialects import stablehlo

_ENUM = re.compile(r"#\w+<\w+ (\w+)>\Z")


class Attributes:
    """The attributes of one op, read by name with a default for absent ones."""

    def __init__(self, attributes: ir.OpAttributeMap | ir.DictAttr) -> None:
        self._attributes = attributes

    def __contains__(self, name: str) -> bool:
        return name in self._attributes

    def raw(self, name: str) -> ir.Attribute:
        return self._attributes[name]

    def integer(self, name: str) -> int:
        return int(ir.IntegerAttr(self.raw(name)).value)

    def flag(self, name: str) -> bool:
        return name in self and bool(ir.BoolAttr(self.raw(name)).value)

    def string(self, name: str) -> str:
        return str(ir.StringAttr(self.raw(name)).value) if name in self else ""

    def symbol(self, name: str) -> str:
        return str(ir.FlatSymbolRefAttr(self.raw(name)).value)

    def dictionary(self, name: str) -> Attributes:
        """The entries of a dictionary attribute."""
        return Attributes(ir.DictAttr(self.raw(name)))

    def printed(self, name: str) -> str:
        return str(self.raw(name)) if name in self else ""

    def enum(self, name: str, default: str = "") -> str:
        """``THREE_FRY`` of ``#stablehlo<rng_algorithm THREE_FRY>``."""
        if name not in self:
            return default
        m = _ENUM.match(str(self.raw(name)))
        return m.group(1) if m else default

    def integers(self, name: str, default: tuple[int, ...] = ()) -> tuple[int, ...]:
        """An ``array<i64: ...>`` (or an older ``dense<...>``) as a tuple."""
        if name not in self:
            return default
        attribute = self.raw(name)
        if isinstance(attribute, ir.DenseIntElementsAttr):
            return tuple(int(v) for v in np.asarray(attribute).reshape(-1))
        return tuple(int(v) for v in ir.DenseI64ArrayAttr(attribute))

    def flags(self, name: str, default: tuple[bool, ...]) -> tuple[bool, ...]:
        if name not in self:
            return default
        return tuple(bool(v) for v in ir.DenseBoolArrayAttr(self.raw(name)))

    def pairs(self, name: str, count: int) -> tuple[tuple[int, int], ...]:
        """An ``[n, 2]`` padding attribute; zeros where it is absent."""
        if name not in self:
            return ((0, 0),) * count
        table = np.asarray(ir.DenseIntElementsAttr(self.raw(name)))
        return tuple((int(low), int(high)) for low, high in table)

    def precision(self) -> tuple[str, str]:
        """The ``precision_config`` of a dot or convolution."""
        if "precision_config" not in self:
            return ("DEFAULT", "DEFAULT")
        names = [_ENUM.match(str(a)) for a in ir.ArrayAttr(self.raw("precision_config"))]
        words = [m.group(1) if m else "DEFAULT" for m in names]
        return (words[0], words[1]) if len(words) == 2 else ("DEFAULT", "DEFAULT")

    def accuracy(self) -> str:
        """A ``result_accuracy`` that is not the default, as text."""
        text = self.printed("result_accuracy")
        return "" if "mode<DEFAULT>" in text or "mode = DEFAULT" in text else text

    def others(self, *known: str) -> str:
        """The attributes that are not ``known``, by name, as text."""
        return ", ".join(f"{n} = {a}" for n, a in sorted(self._items()) if n not in known)

    def _items(self) -> list[tuple[str, str]]:
        return [(n, str(self._attributes[n])) for n in self._names()]

    def _names(self) -> list[str]:
        # An OpAttributeMap iterates over names in newer bindings, over NamedAttributes in older.
        return [a if isinstance(a, str) else a.name for a in self._attributes]


def dot_dimensions(a: Attributes) -> dict[str, Any]:
    """The dimension fields of `ops.DotGeneral`."""
    d = stablehlo.DotDimensionNumbers(a.raw("dot_dimension_numbers"))
    return {
        "lhs_batch": tuple(d.lhs_batching_dimensions),
        "rhs_batch": tuple(d.rhs_batching_dimensions),
        "lhs_contract": tuple(d.lhs_contracting_dimensions),
        "rhs_contract": tuple(d.rhs_contracting_dimensions),
    }


def ragged_dimensions(a: Attributes) -> dict[str, Any]:
    """The dimension fields of `ops.RaggedDot`. The attribute has no class in Python: it is read as
    it is printed, without what is empty."""
    text = a.printed("ragged_dot_dimension_numbers")

    def dims(name: str) -> tuple[int, ...]:
        m = re.search(rf"\b{name} = \[([\d, ]*)\]", text)
        return tuple(map(int, m.group(1).split(","))) if m and m.group(1) else ()

    return {
        "lhs_batch": dims("lhs_batching_dimensions"), "rhs_batch": dims("rhs_batching_dimensions"),
        "lhs_contract": dims("lhs_contracting_dimensions"),
        "rhs_contract": dims("rhs_contracting_dimensions"),
        "lhs_ragged": dims("lhs_ragged_dimensions"), "rhs_group": dims("rhs_group_dimensions"),
    }


def convolution_dimensions(a: Attributes) -> dict[str, Any]:
    """The dimension fields of `ops.Convolution`."""
    d = stablehlo.ConvDimensionNumbers(a.raw("dimension_numbers"))
    return {
        "input_batch": d.input_batch_dimension,
        "input_feature": d.input_feature_dimension,
        "input_spatial": tuple(d.input_spatial_dimensions),
        "kernel_input_feature": d.kernel_input_feature_dimension,
        "kernel_output_feature": d.kernel_output_feature_dimension,
        "kernel_spatial": tuple(d.kernel_spatial_dimensions),
        "output_batch": d.output_batch_dimension,
        "output_feature": d.output_feature_dimension,
        "output_spatial": tuple(d.output_spatial_dimensions),
    }


def gather_dimensions(a: Attributes) -> dict[str, Any]:
    """The dimension fields of `ops.Gather`."""
    d = stablehlo.GatherDimensionNumbers(a.raw("dimension_numbers"))
    # The bindings have an accessor for every field but this one.
    m = re.search(r"\boperand_batching_dims = \[([0-9, ]*)\]", a.printed("dimension_numbers"))
    batching = tuple(int(i) for i in m.group(1).split(",")) if m else ()
    return {
        "offset_dims": tuple(d.offset_dims),
        "collapsed_slice_dims": tuple(d.collapsed_slice_dims),
        "operand_batching_dims": batching,
        "start_indices_batching_dims": tuple(d.start_indices_batching_dims),
        "start_index_map": tuple(d.start_index_map),
        "index_vector_dim": d.index_vector_dim,
    }


def scatter_dimensions(a: Attributes) -> dict[str, Any]:
    """The dimension fields of `ops.Scatter`."""
    d = stablehlo.ScatterDimensionNumbers(a.raw("scatter_dimension_numbers"))
    return {
        "update_window_dims": tuple(d.update_window_dims),
        "inserted_window_dims": tuple(d.inserted_window_dims),
        "input_batching_dims": tuple(d.input_batching_dims),
        "scatter_indices_batching_dims": tuple(d.scatter_indices_batching_dims),
        "scatter_dims_to_operand_dims": tuple(d.scattered_dims_to_operand_dims),
        "index_vector_dim": d.index_vector_dim,
    }
