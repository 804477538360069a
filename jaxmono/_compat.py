"""Every use of JAX internals (``jax._src`` and ``jaxlib``), for JAX 0.10.2 and later.

The rest of the package uses public modules only, so this file is what a new JAX release can break.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import jax
import jax.extend.core as jex
import jaxlib
from jax._src import core, dispatch, source_info_util, xla_bridge
from jax._src import effects as effects_lib
from jax._src import linear_util as lu
from jax._src.interpreters import ad, batching, mlir
from jax._src.interpreters import partial_eval as pe
from jax._src.sharding_impls import ShardingContext, SPMDAxisContext
from jax._src.state.types import RefEffect
from jax._src.util import merge_lists, split_list, subs_list
from jaxlib import xla_client

if TYPE_CHECKING:
    from jax.extend.lowering import LoweringRuleContext
    from jax.extend.mlir import ir

Primitive = jex.Primitive
"""Public; here so that there is one place to look."""
JAXLIB = str(jaxlib.__version__)
"""Of XLA, too."""


# ---- a primitive that carries a jaxpr ------------------------------------------------------------


def register_call_primitive_rules(prim: jex.Primitive) -> None:
    """Gives ``prim`` (parameter ``call_jaxpr``, others passed along) all rules but the lowering.

    JVP, linearisation, transpose, batching, partial evaluation, DCE and type checks as for a
    plain call; each makes a call of ``prim`` again. An eager call runs through jax.jit.
    """
    public = getattr(jex, "register_call_primitive_rules", None)
    if public is not None:
        public(prim)
    else:
        _register_rules(prim)
    prim.def_impl(partial(dispatch.apply_primitive, prim))


def register_lowering(prim: jex.Primitive, rule: Callable[..., Any]) -> None:
    """``rule`` for all platforms, called anew for every equation (its result is not cached)."""
    mlir.register_lowering(prim, rule, cacheable=False)


def hoist_constants(closed: jex.ClosedJaxpr) -> tuple[jex.ClosedJaxpr, list[Any]]:
    """A jaxpr without constants, and the constants that are its new leading operands."""
    consts = list(closed.consts)
    if not consts:
        return closed, []
    detached: Any = pe.convert_constvars_jaxpr(closed.jaxpr)
    # From 0.11 on a ClosedJaxpr is a Jaxpr, and there is nothing left to close.
    return (detached if issubclass(jex.ClosedJaxpr, jex.Jaxpr)
            else jex.ClosedJaxpr(detached, ())), consts


def uses_refs(closed: jex.ClosedJaxpr) -> bool:
    """Whether a jaxpr reads or writes mutable arrays (`jax.Ref`), its own or its arguments."""
    kinds = (core.InternalMutableArrayEffect, RefEffect)
    return any(isinstance(effect, kinds) for effect in closed.effects)


# ---- the same rules for JAX 0.10.2, where they are not public ------------------------------------
# Parameters of a bound call are ``call_jaxpr`` and others that every derived call repeats.


def _register_rules(prim: jex.Primitive) -> None:
    prim.multiple_results = True
    prim.def_effectful_abstract_eval(_abstract_eval)
    core.custom_typechecks[prim] = _typecheck
    ad.primitive_jvps[prim] = partial(_jvp, prim)
    ad.primitive_linearizations[prim] = partial(_linearize, prim)
    ad.primitive_transposes[prim] = partial(_transpose, prim)
    batching.fancy_primitive_batchers[prim] = partial(_batch, prim)
    pe.custom_partial_eval_rules[prim] = partial(_partial_eval, prim)
    rule: Any = partial(pe.closed_call_partial_eval_custom_rule, "call_jaxpr",
                        lambda *args: args[-2:])
    pe.partial_eval_jaxpr_custom_rules[prim] = rule
    pe.dce_rules[prim] = pe.dce_jaxpr_closed_call_rule


def _abstract_eval(*_: Any, call_jaxpr: Any, **__: Any) -> Any:
    return call_jaxpr.out_avals, core.positional_effects(call_jaxpr)


def _typecheck(_: Any, *atoms: Any, call_jaxpr: Any, **__: Any) -> Any:
    if not all(map(core.typecompat, call_jaxpr.in_avals, [a.aval for a in atoms])):
        raise jex.JaxprTypeError("the operands of a mono_call do not fit its jaxpr")
    return call_jaxpr.out_avals, core.positional_effects(call_jaxpr)


def _bind(prim: jex.Primitive, call_jaxpr: Any, args: Sequence[Any],
          params: dict[str, Any]) -> list[Any]:
    hoisted, consts = hoist_constants(call_jaxpr)
    return prim.bind(*consts, *args, call_jaxpr=hoisted, **params)


def _spread(values: Sequence[Any], present: Sequence[bool], avals: Sequence[Any]) -> list[Any]:
    """``values`` at the places where ``present``, symbolic zeros elsewhere."""
    left = iter(values)
    return [next(left) if p else ad.Zero(a.to_tangent_aval())
            for p, a in zip(present, avals, strict=True)]


def _jvp(prim: jex.Primitive, primals: Any, tangents: Any, *, call_jaxpr: Any,
         **params: Any) -> Any:
    nonzero = [not isinstance(t, ad.Zero) for t in tangents]
    jaxpr, out_nonzero = ad.jvp_jaxpr(call_jaxpr, nonzero, False)
    given = [t for t, nz in zip(tangents, nonzero, strict=True) if nz]
    outs = _bind(prim, jaxpr, [*primals, *given], params)
    primals_out, tangents_out = split_list(outs, [len(call_jaxpr.out_avals)])
    return primals_out, _spread(tangents_out, out_nonzero, call_jaxpr.out_avals)


def _linearize(prim: jex.Primitive, is_vjp: bool, nonzero: Any, *primals: Any, call_jaxpr: Any,
               **params: Any) -> Any:
    primal_jaxpr, residuals, out_nonzero, forwarded, tangent_jaxpr = ad.linearize_jaxpr(
        call_jaxpr, nonzero, is_vjp=is_vjp)
    outs = _bind(prim, primal_jaxpr, primals, params)
    primals_out, own = split_list(outs, [len(outs) - residuals])
    kept = subs_list(forwarded, [*call_jaxpr.consts, *primals], own)

    def tangent_fun(res: Any, *tangents: Any) -> list[Any]:
        given = [ad.instantiate_zeros(t) for t, nz in zip(tangents, nonzero, strict=True) if nz]
        made = _bind(prim, tangent_jaxpr, [*res, *given], params)
        return _spread(made, out_nonzero, call_jaxpr.out_avals)

    return primals_out, out_nonzero, kept, tangent_fun


def _transpose(prim: jex.Primitive, cts: Any, *primals: Any, call_jaxpr: Any,
               **params: Any) -> Any:
    flat, tree = jax.tree.flatten((primals, cts))
    out_tree: Any = None

    def transposed(*values: Any) -> list[Any]:
        nonlocal out_tree
        primals_in, cts_in = jax.tree.unflatten(tree, values)
        made = ad.backward_pass(call_jaxpr.jaxpr, False, call_jaxpr.consts, primals_in, cts_in)
        leaves, out_tree = jax.tree.flatten([None if isinstance(c, ad.Zero) else c for c in made])
        return leaves

    info = call_jaxpr.jaxpr.debug_info.with_unknown_names()
    jaxpr, _, consts = pe.trace_to_jaxpr_dynamic(
        lu.wrap_init(transposed, debug_info=info), [core.typeof(x) for x in flat])
    outs = _bind(prim, jex.ClosedJaxpr(jaxpr, consts), flat, params)
    return jax.tree.unflatten(out_tree, outs)


def _batch(prim: jex.Primitive, axis_data: Any, args: Any, dims: Any, *, call_jaxpr: Any,
           **params: Any) -> Any:
    jaxpr, out_dims = batching.batch_jaxpr2(call_jaxpr, axis_data, tuple(dims))
    return _bind(prim, jaxpr, args, params), out_dims


def _partial_eval(prim: jex.Primitive, trace: Any, *tracers: Any, call_jaxpr: Any,
                  **params: Any) -> Any:
    known = [t.pval.get_known() for t in tracers if t.pval.is_known()]
    unknown = [t for t in tracers if not t.pval.is_known()]
    known_jaxpr, unknown_jaxpr, out_unknown, residuals, forwarded = (
        pe.partial_eval_jaxpr_nounits_fwd(
            call_jaxpr, [not t.pval.is_known() for t in tracers], instantiate=False))
    outs = _bind(prim, known_jaxpr, known, params)
    known_outs, own = split_list(outs, [len(outs) - len(residuals)])
    kept = subs_list(forwarded, [*call_jaxpr.consts, *known], own)
    operands = [*map(trace.new_instantiated_const, kept), *unknown]
    results = [pe.JaxprTracer(trace, pe.PartialVal.unknown(a), None)
               for a in unknown_jaxpr.out_avals]
    eqn = pe.new_eqn_recipe(trace, operands, results, prim,
                            dict(params, call_jaxpr=unknown_jaxpr),
                            core.positional_effects(unknown_jaxpr), source_info_util.current())
    for tracer in results:
        tracer.recipe = eqn
    if effects_lib.partial_eval_kept_effects.filter_in(unknown_jaxpr.effects):
        trace.effect_handles.append(pe.EffectHandle(operands, eqn))
    return merge_lists(out_unknown, known_outs, results)


# ---- lowering ------------------------------------------------------------------------------------


def lower_call(ctx: LoweringRuleContext, args: Sequence[Any], call_jaxpr: jex.ClosedJaxpr,
               name: str) -> tuple[Sequence[Any], ir.Operation | None]:
    """Emits a call of ``call_jaxpr`` as a function of the current module.

    Returns:
      The results for the lowering rule, and the callee (a ``func.func``, shared by equal calls),
      or None where the call has no results.
    """
    out = mlir.core_call_lowering(ctx, *args, name=name, call_jaxpr=call_jaxpr)
    values: list[Any] = jax.tree.leaves(out)
    if not values:
        return out, None
    call = values[0].owner
    while call.name != "func.call":  # a sharding annotation around the call's result
        call = call.operands[0].owner
    symbol = mlir.ir.FlatSymbolRefAttr(call.attributes["callee"]).value
    return out, ctx.module_context.symbol_table[symbol].operation


def lowering_platforms(ctx: LoweringRuleContext) -> tuple[str, ...]:
    """The platforms that this equation is lowered for; more than one only in an export."""
    return tuple(ctx.platforms or ctx.module_context.platforms)


def partitioned_automatically(ctx: LoweringRuleContext) -> int:
    """Over how many devices XLA will partition this equation by itself; 1: not at all.

    Inside ``shard_map`` over all mesh axes the program is per device already.
    """
    axes: Any = ctx.module_context.axis_context
    if isinstance(axes, ShardingContext):
        return axes.num_devices
    if isinstance(axes, SPMDAxisContext):
        count = 1
        for axis, size in axes.mesh.shape.items():
            count *= 1 if axis in axes.manual_axes else size
        return count
    return 1


# ---- FFI registration ----------------------------------------------------------------------------


def accept_cpu_types() -> None:
    """Lets FFI types be registered for the CPU before its client exists.

    JAX queues registrations made before a backend exists, and on creating the CPU client it
    flushes the queue of handlers before that of types, so a handler with a state type fails. With
    the type handler installed first, as the client's constructor itself would do, order is right.
    """
    xla_client.register_custom_type_handler("cpu", xla_client._xla.register_custom_type)


def on_plugins_discovered(callback: Callable[[], None]) -> None:
    """Calls ``callback`` once a PJRT plugin (a GPU) is loaded; at once if it is already."""

    def once(c_api: Any) -> None:
        del c_api
        callback()

    xla_bridge.register_plugin_callbacks(once)


def plugin_names() -> tuple[str, ...]:
    """Names of the backends that plugins offer; asking starts none."""
    return tuple(n for n, f in xla_bridge._backend_factories.items() if f.c_api is not None)


def local_gpu_ordinal() -> int | None:
    """The CUDA ordinal of this process's first GPU; None where the GPU backend is not in use."""
    if not xla_bridge.backends_are_initialized() or jax.default_backend() not in ("gpu", "cuda"):
        return None
    return int(jax.local_devices()[0].local_hardware_id or 0)
