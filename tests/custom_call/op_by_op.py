"""A compiler for tests of the lowering: every f32 elementwise op becomes a kernel of its own.

It has nothing of jaxmono's planner or generator: a kernel is ten lines of C++ that the host
compiler makes into a shared object with the interpreter's entry point.
"""

from __future__ import annotations

import functools
import subprocess
import tempfile
from collections.abc import Callable
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import jax

from jaxmono.codegen.program import Program
from jaxmono.custom_call.compiler import CompileResult, Region, get_compiler, set_compiler
from jaxmono.custom_call.options import Options
from jaxmono.custom_call.primitive import mono_call
from jaxmono.hlo import ops
from jaxmono.hlo.importer import Imported
from jaxmono.hlo.types import DType, TensorType

EXPRESSIONS = {
    "add": "a[i] + b[i]", "subtract": "a[i] - b[i]", "multiply": "a[i] * b[i]",
    "divide": "a[i] / b[i]", "maximum": "a[i] > b[i] ? a[i] : b[i]", "negate": "-a[i]",
    "tanh": "__builtin_tanhf(a[i])", "exponential": "__builtin_expf(a[i])",
    "cosine": "__builtin_cosf(a[i])", "sine": "__builtin_sinf(a[i])",
}

ELEMENTWISE = """
extern "C" int jaxmono_emulate(void* const* buf, int, unsigned long long, char*, int) {
  const float* a = (const float*)buf[0];
  const float* b = (const float*)buf[ARITY > 1];
  float* out = (float*)buf[ARITY];
  for (long i = 0; i < SIZE; ++i) out[i] = EXPRESSION;
  return 0;
}
"""


@functools.cache
def shared_object(source: str) -> bytes:
    """The bytes of a shared object made from C++ source."""
    with tempfile.TemporaryDirectory() as d:
        out = Path(d) / "k.so"
        subprocess.run(["g++", "-x", "c++", "-O1", "-shared", "-fPIC", "-s", "-o", str(out), "-"],
                       input=source.encode(), check=True)
        return out.read_bytes()


def program(source: str, inputs: list[TensorType], outputs: list[TensorType],
            **changes: Any) -> Program:
    """An "interpret" Program around C++ source that defines jaxmono_emulate."""
    fields: dict[str, Any] = {
        "name": "k", "target": "interpret", "arch": "host", "source": source,
        "binary": shared_object(source), "threads": 32, "blocks_per_sm": 1, "max_blocks": 8,
        "shared_bytes": 0, "scratch_bytes": 0, "cooperative": False, "inputs": tuple(inputs),
        "outputs": tuple(outputs), "aliases": (), "stages": 1, "barriers": 0, "resources": {},
        "plan_text": "", "compile_seconds": 0.0,
    }
    return Program(**{**fields, **changes})


class OpByOp:
    """Attributes:
      kernels: how many it has made.
      notes: what `observe` was told.
    """

    def __init__(self) -> None:
        self.kernels = 0
        self.notes: list[str] = []

    def compile_regions(self, imported: Imported, options: Options,
                        platform: str) -> CompileResult:
        regions: list[Region] = []
        programs: list[Program] = []
        for i, op in enumerate(imported.graph.ops):
            if _takes(op):
                assert isinstance(op, ops.Elementwise)
                source = (ELEMENTWISE.replace("EXPRESSION", EXPRESSIONS[op.kind])
                          .replace("SIZE", str(op.result.type.size))
                          .replace("ARITY", str(len(op.args))))
                regions.append(Region((i,), op.args, op.results))
                programs.append(program(source, [v.type for v in op.args], [op.result.type],
                                        name=f"k_{op.kind}"))
        self.kernels += len(programs)
        return CompileResult(tuple(regions), tuple(programs))

    def observe(self, imported: Callable[[], Imported], options: Options, platform: str,
                note: str) -> None:
        self.notes.append(note)


def _takes(op: Any) -> bool:
    return (isinstance(op, ops.Elementwise) and op.kind in EXPRESSIONS
            and all(v.type.is_static and v.type.dtype is DType.F32
                    for v in (*op.args, *op.results)))


@contextmanager
def using(compiler: Any) -> Any:
    """``compiler`` in the slot for the body, with fresh caches of JAX."""
    before = get_compiler()
    set_compiler(compiler)
    jax.clear_caches()
    try:
        yield compiler
    finally:
        if before is not None:
            set_compiler(before)
        jax.clear_caches()


def wrap(fun: Callable[..., Any], *, on_unsupported: str = "error", interpret: bool = True,
         **jit: Any) -> Any:
    """``jax.jit`` around one mono_call of ``fun`` (arrays and pytrees of them in and out)."""
    options = Options(on_unsupported=on_unsupported, interpret=interpret)

    @functools.wraps(fun)
    def wrapped(*args: Any) -> Any:
        leaves, tree = jax.tree.flatten(args)
        closed, shapes = jax.make_jaxpr(lambda *flat: fun(*jax.tree.unflatten(tree, flat)),
                                        return_shape=True)(*leaves)
        outs = mono_call(closed, leaves, options=options, name=fun.__name__)
        return jax.tree.unflatten(jax.tree.structure(shapes), outs)

    return jax.jit(wrapped, **jit)
