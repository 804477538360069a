"""MLIR types to `TensorType`."""

from __future__ import annotations

from jax.extend.mlir import ir

from jaxmono.hlo.types import Dim, DType, SymDim, TensorType

ELEMENTS: dict[str, DType] = {
    "i1": DType.PRED,
    "i4": DType.S4, "i8": DType.S8, "i16": DType.S16, "i32": DType.S32, "i64": DType.S64,
    "ui4": DType.U4, "ui8": DType.U8, "ui16": DType.U16, "ui32": DType.U32, "ui64": DType.U64,
    "f16": DType.F16, "bf16": DType.BF16, "f32": DType.F32, "f64": DType.F64,
    "complex<f32>": DType.C64, "complex<f64>": DType.C128,
    "f8E4M3FN": DType.F8E4M3FN, "f8E5M2": DType.F8E5M2,
}


class Types:
    """Converts types, each distinct static one once."""

    def __init__(self) -> None:
        self._known: dict[ir.Type, TensorType] = {}
        self._dynamic = 0

    def tensor(self, type: ir.Type) -> TensorType:
        """The TensorType; `DType.OPAQUE` where a token or element type has no name here.

        A dynamic dimension becomes a SymDim of its own, since nothing says that two are equal.
        """
        found = self._known.get(type)
        if found is not None:
            return found
        if not isinstance(type, ir.RankedTensorType):
            converted = TensorType((), DType.OPAQUE)
        else:
            shape: list[Dim] = []
            for i in range(type.rank):
                if type.is_dynamic_dim(i):
                    shape.append(SymDim(f"?{self._dynamic}"))
                    self._dynamic += 1
                else:
                    shape.append(type.get_dim_size(i))
            dtype = ELEMENTS.get(str(type.element_type), DType.OPAQUE)
            if type.encoding is not None:
                dtype = DType.OPAQUE
            converted = TensorType(tuple(shape), dtype)
        if converted.is_static:
            self._known[type] = converted
        return converted
