"""Rewrites the body of a lowered function: kernels as custom calls, the other ops as they were.

    func @f(%a, %b) {              func @f(%a, %b) {
      %0 = dot %a, %b                %0:2 = custom_call @jaxmono_cuda(%a, %b)   // + scratch
      %1 = tanh %0          ──►      %1 = sort %0#0
      %2 = sort %1                   return %1
      return %2                    }
    }

Ops are emitted on demand, from the outputs and side effects backwards, so that what only kernels
need disappears, and what both need (a constant) stays. A loop that XLA runs is emitted as it was,
and then the body of the copy is rewritten the same way (the one that it was imported from may be in
a function that others call).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np
from jax.extend.mlir import ir
from jax.extend.mlir.dialects import stablehlo

from jaxmono import _config
from jaxmono._errors import CompileError
from jaxmono.codegen.program import Program
from jaxmono.custom_call.compiler import CompileResult, Region
from jaxmono.hlo.importer import Imported
from jaxmono.hlo.ir import Op, Value
from jaxmono.hlo.ops import has_side_effect
from jaxmono.hlo.types import DType, TensorType

TARGETS = {"cuda": "jaxmono_cuda", "interpret": "jaxmono_interpret"}
"""Names of the FFI handlers by `Program.target`."""

_FFI_API_VERSION = 4
_ELEMENTS = {
    DType.PRED: "i1", DType.S8: "i8", DType.S16: "i16", DType.S32: "i32", DType.S64: "i64",
    DType.U8: "ui8", DType.U16: "ui16", DType.U32: "ui32", DType.U64: "ui64", DType.F16: "f16",
    DType.BF16: "bf16", DType.F32: "f32", DType.F64: "f64", DType.C64: "complex<f32>",
    DType.C128: "complex<f64>", DType.F8E4M3FN: "f8E4M3FN", DType.F8E5M2: "f8E5M2",
}

_Step: TypeAlias = Op | int
"""Something to emit: an op, or the index of a region."""


def rewrite(function: ir.Operation, imported: Imported, made: CompileResult) -> None:
    """Replaces the body of ``function`` in place; on an error the body is as it was.

    Args:
      function: the ``func.func`` that ``imported`` was made from.
      imported: its graph and origins, as the importer gave them.
      made: disjoint convex parts and their programs; Values are those of ``imported.graph``.

    Raises:
      CompileError: regions and programs do not fit each other or the function.
    """
    _fill(function.regions[0].blocks[0], made.instead or imported, made, {}, function.location)


def _fill(block: ir.Block, imported: Imported, made: CompileResult,
          outside: Mapping[Value, ir.Value[Any]], location: ir.Location) -> None:
    """Replaces all of a block but its terminator. outside: what the block may use besides."""
    _check(made.regions, made.programs)
    before = [view.operation for view in block.operations]
    end = before[-1]
    steps = _schedule(imported, made.regions)
    emitted: list[ir.Operation] = []
    values = {**outside, **dict(zip(imported.graph.inputs, block.arguments, strict=True))}
    origins = dict(zip(imported.graph.ops, imported.origins, strict=True))
    here = ir.InsertionPoint(end)
    try:
        for step in steps:
            if isinstance(step, int):
                region = made.regions[step]
                operands = [values[v] for v in region.inputs]
                new = custom_call(made.programs[step], operands, location, here)
                results = list(new.results)[:len(region.outputs)]
                pairs = zip(region.outputs, results, strict=True)
            else:
                new = origins[step].clone(values, here)
                pairs = zip(step.results, new.results, strict=True)
            emitted.append(new)
            if not isinstance(step, int) and (inside := made.inside.get(step)):
                for copied, inner, within in zip(new.regions, origins[step].regions, inside,
                                                 strict=True):
                    if within is not None:
                        _fill(copied.blocks[0], within.instead or inner, within, values,
                              location)
            for value, result in pairs:
                values.setdefault(value, result)
        outputs = [values[v] for v in imported.graph.outputs]
    except Exception:
        for op in reversed(emitted):
            op.erase()
        raise
    for i, result in enumerate(outputs):
        end.operands[i] = result
    for op in reversed(before[:-1]):
        op.erase()


def custom_call(program: Program, operands: Sequence[ir.Value[Any]], location: ir.Location,
                insertion_point: ir.InsertionPoint) -> ir.Operation:
    """One launch of ``program``: results are its outputs, then scratch if it needs any.

    Every buffer has the row-major layout that the kernel assumes.
    """
    with location.context:
        types = [mlir_type(t) for t in program.outputs]
        ranks = [t.rank for t in program.outputs]
        if program.scratch_bytes > 0:
            types.append(mlir_type(TensorType((program.scratch_bytes,), DType.U8)))
            ranks.append(1)
        single = len(types) == 1
        aliases = [
            stablehlo.OutputOperandAlias.get(output_tuple_indices=[] if single else [output],
                                             operand_index=operand, operand_tuple_indices=[])
            for output, operand in program.aliases]
        attributes: dict[str, ir.Attribute] = {
            "call_target_name": ir.StringAttr.get(TARGETS[program.target]),
            "has_side_effect": ir.BoolAttr.get(False),
            "api_version": _i32(_FFI_API_VERSION),
            "called_computations": ir.ArrayAttr.get([]),
            "backend_config": ir.DictAttr.get({
                k: _attribute(v) for k, v in configuration(program).items()}),
            "operand_layouts": _row_major([t.rank for t in program.inputs]),
            "result_layouts": _row_major(ranks),
            "output_operand_aliases": ir.ArrayAttr.get(aliases),
        }
        named = ir.Location.name(program.name, childLoc=location)
        return ir.Operation.create("stablehlo.custom_call", results=types, operands=operands,
                                   attributes=attributes, loc=named, ip=insertion_point)


def mlir_type(type: TensorType) -> ir.Type:
    """The MLIR tensor type of a static TensorType, in the current context.

    Raises:
      CompileError: an element type that no kernel takes.
    """
    if type.dtype not in _ELEMENTS:
        raise CompileError(f"a kernel cannot read or write {type}; leave its ops to XLA")
    dims = "".join(f"{d}x" for d in type.dims)
    return ir.Type.parse(f"tensor<{dims}{_ELEMENTS[type.dtype]}>")


def configuration(program: Program) -> dict[str, Any]:
    """The attributes that the handler of ``program.target`` reads (native/*_ffi.cc), as
    `jax.ffi.ffi_call` takes them."""
    config: dict[str, Any] = {
        # An array attribute: a string of this size is escaped byte by byte, several times over.
        "binary": np.frombuffer(program.binary, np.uint8),
        "name": program.name,
        "buffers": np.int32(program.buffers),
    }
    if program.target == "interpret":
        settings = _config.read()
        seed = settings.interpret_seed
        blocks = max(settings.interpret_blocks, program.min_blocks)
        config["blocks"] = np.int32(max(1, min(blocks, program.max_blocks)))
        config["seed"] = np.int64(seed - 2**64 if seed >= 2**63 else seed)
        return config
    config["arch"] = program.arch
    config["cooperative"] = np.bool_(program.cooperative)
    config["overlaps"] = np.bool_(program.overlaps)
    for field in ("threads", "blocks_per_sm", "max_blocks", "shared_bytes"):
        config[field] = np.int32(getattr(program, field))
    return config


def _attribute(value: Any) -> ir.Attribute:
    if isinstance(value, str):
        return ir.StringAttr.get(value)
    if isinstance(value, np.bool_):
        return ir.BoolAttr.get(bool(value))
    if isinstance(value, np.integer):
        return ir.IntegerAttr.get(ir.IntegerType.get_signless(8 * value.itemsize), int(value))
    return _array(value, type=ir.IntegerType.get_unsigned(8))


def _i32(value: int) -> ir.IntegerAttr:
    return ir.IntegerAttr.get(ir.IntegerType.get_signless(32), value)


def _row_major(ranks: Sequence[int]) -> ir.ArrayAttr:
    layouts = [np.arange(rank, dtype=np.int64)[::-1].copy() for rank in ranks]
    return ir.ArrayAttr.get([_array(layout, type=ir.IndexType.get()) for layout in layouts])


def _array(array: Any, **kw: Any) -> ir.Attribute:
    # The bindings' stubs leave out the overload that takes a buffer.
    get: Any = ir.DenseElementsAttr.get
    return get(array, **kw)


def _check(regions: Sequence[Region], programs: Sequence[Program]) -> None:
    if len(regions) != len(programs):
        raise CompileError(f"{len(regions)} regions came with {len(programs)} programs; this is a "
                           f"bug in the compiler above")
    for region, program in zip(regions, programs, strict=True):
        for what, values, types in (("reads", region.inputs, program.inputs),
                                    ("writes", region.outputs, program.outputs)):
            have = tuple(v.type for v in values)
            if have != types:
                raise CompileError(f"kernel {program.name} {what} {_types(types)} and its region "
                                   f"has {_types(have)}; this is a bug in the compiler above")


def _types(types: Sequence[TensorType]) -> str:
    return f"({', '.join(map(str, types))})"


def _schedule(imported: Imported, regions: Sequence[Region]) -> list[_Step]:
    """What to emit, in an order in which every operand comes first.

    Raises:
      CompileError: a region depends on itself through ops outside (it is not convex).
    """
    graph = imported.graph
    makers: dict[Value, _Step] = dict(graph.producer)
    for i, region in enumerate(regions):
        makers.update(dict.fromkeys(region.outputs, i))
    inside = {i for region in regions for i in region.op_indices}
    effects = [op for i, op in enumerate(graph.ops) if i not in inside and has_side_effect(op)]
    order: list[_Step] = []
    done: dict[_Step, bool] = {}  # False while its operands are being emitted
    roots: list[_Step] = [*effects, *(makers[v] for v in graph.outputs if v in makers)]
    for root in roots:
        stack: list[tuple[_Step, bool]] = [(root, False)]
        while stack:
            step, leaving = stack.pop()
            if leaving:
                done[step] = True
                order.append(step)
                continue
            if step in done:
                if not done[step]:
                    raise CompileError("a region is not convex: it needs a value that depends on "
                                       "its own result; this is a bug in the compiler above")
                continue
            done[step] = False
            stack.append((step, True))
            needs = _operands(step, regions, makers)
            stack.extend((n, False) for n in reversed(needs) if not done.get(n, False))
    return order


def _operands(step: _Step, regions: Sequence[Region],
              makers: Mapping[Value, _Step]) -> list[Any]:
    values = regions[step].inputs if isinstance(step, int) else step.uses
    return list(dict.fromkeys(makers[v] for v in values if v in makers))
