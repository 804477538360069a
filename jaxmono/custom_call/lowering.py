"""Lowering of ``mono_call``: JAX's own lowering first, then kernels in place of its body.

    mono_call ──core_call_lowering──► func.func @f, func.call @f     (always right: XLA can run it)
                                          │ small constants, import, compile_regions
                                          ▼
                                      func.func @f { custom calls, and ops left to XLA }

Where anything stands in the way, @f stays as JAX made it. One rule serves all platforms: rules per
platform fail in an export for several. The rule never traces again (that breaks under shard_map).
"""

from __future__ import annotations

import dataclasses
import logging
import re
import threading
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import jax
import jax.extend.core as jex
from jax.extend.mlir import ir

from jaxmono import _compat
from jaxmono._errors import CompileError, ConfigError, JaxmonoError, UnsupportedError, warn
from jaxmono.custom_call import constants, registration, stitch
from jaxmono.custom_call.compiler import (
    Compiler,
    CompileResult,
    MadeLaterError,
    Region,
    get_compiler,
    set_compiler,
)
from jaxmono.custom_call.options import Options
from jaxmono.hlo.importer import Imported, import_function

if TYPE_CHECKING:
    from jax.extend.lowering import LoweringRuleContext

__all__ = ["CompileResult", "Compiler", "Region", "get_compiler", "lower_mono_call",
           "set_compiler"]

_log = logging.getLogger("jaxmono.custom_call")
_GPU = ("cuda", "gpu")


class _Depth(threading.local):
    """How many mono_calls this thread is lowering, each inside the one before."""

    value = 0


_depth = _Depth()


def lower_mono_call(ctx: LoweringRuleContext, *args: Any, call_jaxpr: jex.ClosedJaxpr,
                    options: Options, name: str) -> Sequence[Any]:
    """The lowering rule (see the module's text)."""
    outermost = _depth.value == 0
    note = _reason_for_xla(ctx, options) if outermost else "inside another jaxmono function"
    literals = constants.small(args)
    # JAX shares functions of equal name and jaxpr. What becomes kernels must not be shared with
    # what stays as it is, nor between different options, or constants that stand in it.
    symbol = name + constants.tag(literals) + (options.tag if not note else "_xla")
    _depth.value += 1
    try:
        out, function = _compat.lower_call(ctx, args, call_jaxpr, symbol)
    finally:
        _depth.value -= 1
    if outermost and function is not None and _first_time(ctx, function):
        platform = _platform(_compat.lowering_platforms(ctx))
        constants.put_inside(function, literals, first_operand(function, args))
        if options.later is not None and (not _is_of(ctx, name) or jax.process_count() > 1):
            options = dataclasses.replace(options, later=None)
        _replace_body(ctx, function, options, platform, name, note, args, out)
    return out


def first_operand(function: ir.Operation, args: Sequence[Any]) -> int:
    """The first argument of the function that is an operand of the call: those in front of it are
    an export's sizes, or the number of its platform."""
    return len(function.regions[0].blocks[0].arguments) - len(jax.tree.leaves(args))


def _is_of(ctx: LoweringRuleContext, name: str) -> bool:
    """Whether the module is that of the jaxmono.jit function itself, by the name that jax.jit gives
    it, and the module's own scope. A module that only calls it is not lowered anew when kernels are
    made; jax.jit(jax.grad(fun)) is one of the same name."""
    of = str(ir.StringAttr(ctx.module_context.module.operation.attributes["sym_name"]).value)
    words = [re.findall("[A-Za-z0-9]+", text) for text in (of, f"jit_{name}")]
    return words[0] == words[1] and bool(str(ctx.name_stack))


def _donated(args: Sequence[Any], out: Sequence[Any], first: int) -> tuple[tuple[int, int], ...]:
    """(result, argument) pairs of the call that JAX wants in one buffer: of arguments that the
    caller donates to the module's main function, whose results are this call's."""
    results = [v.type for v in jax.tree.leaves(out)]
    found: list[tuple[int, int]] = []
    for i, v in enumerate(jax.tree.leaves(args), first):
        if not isinstance(v.owner, ir.Block):
            continue
        attributes = v.owner.owner.attributes
        if "arg_attrs" not in attributes or "function_type" not in attributes:
            continue
        wanted = ir.DictAttr(ir.ArrayAttr(attributes["arg_attrs"])[ir.BlockArgument(v).arg_number])
        function = ir.FunctionType(ir.TypeAttr(attributes["function_type"]).value)
        if "tf.aliasing_output" in wanted and list(function.results) == results:
            found.append((ir.IntegerAttr(wanted["tf.aliasing_output"]).value, i))
    return tuple(found)


def _platform(platforms: tuple[str, ...]) -> str:
    return "cuda" if platforms[0] in _GPU else platforms[0]


def _reason_for_xla(ctx: LoweringRuleContext, options: Options) -> str:
    """Why XLA runs the function whatever the compiler could do; "" where it need not."""
    platforms = _compat.lowering_platforms(ctx)
    if len(platforms) > 1:
        return (f"exported for several platforms ({', '.join(platforms)}): a kernel fits one; "
                f"export for one platform")
    platform = _platform(platforms)
    if platform == "cpu" and not options.interpret:
        return ("the CPU backend runs the program through XLA; interpret=True runs the generated "
                "kernels in the SIMT interpreter")
    if platform not in ("cpu", "cuda"):
        return f"jaxmono has no kernels for the platform {platform!r}"
    if platform == "cuda" and options.interpret:
        return "interpret=True needs the CPU backend, and this program is for the GPU"
    devices = _compat.partitioned_automatically(ctx)
    if devices > 1:
        return (f"XLA partitions the program over {devices} devices, which a kernel would force "
                f"it to undo; call the function inside jax.shard_map")
    return ""


def _first_time(ctx: LoweringRuleContext, function: ir.Operation) -> bool:
    """Whether this function of the module has not been here (equal calls share one)."""
    seen = ctx.module_context.cached_primitive_lowerings
    key = ("jaxmono", str(function.attributes["sym_name"]))
    if key in seen:
        return False
    seen[key] = True
    return True


def _replace_body(ctx: LoweringRuleContext, function: ir.Operation, options: Options,
                  platform: str, name: str, note: str, args: Sequence[Any],
                  out: Sequence[Any]) -> None:
    compiler = get_compiler()
    if compiler is None:
        return
    module = ctx.module_context.module

    def imported() -> Imported:
        return dataclasses.replace(import_function(function, module), donated=_donated(
            args, out, first_operand(function, args)))

    try:
        if note:
            compiler.observe(imported, options, platform, note)
            return
        graph = imported()
        result = compiler.compile_regions(graph, options, platform)
        if result.regions or result.inside:
            registration.register(platform)
            for program in result.all_programs():
                registration.probe(program)
            stitch.rewrite(function, graph, result)
    except (ConfigError, UnsupportedError):
        raise
    except MadeLaterError as error:
        _log.info("%s: %s", name, error)
    except Exception as error:
        if options.on_unsupported == "error" and not note:
            if isinstance(error, JaxmonoError):
                raise
            raise CompileError(f"{name}: {type(error).__name__}: {error}") from error
        _log.debug("%s stays with XLA", name, exc_info=error)
        warn(f"jaxmono: {name} could not be made into kernels ({type(error).__name__}: {error}); "
             f"XLA runs it, with the same results. JAXMONO_LOGS=debug shows where it failed; "
             f"on_unsupported='error' raises")
        if not note:
            compiler.observe(imported, options, platform, f"its kernels could not be used: {error}")
