"""From a Python function and the arguments of a jax.jit trace to one ``mono_call``."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.core
import jax.extend.core as jex

from jaxmono import _collect, _compat, _logging
from jaxmono.custom_call.options import Options
from jaxmono.custom_call.primitive import mono_call

_log = _logging.get("api")


def name_of(fun: Any) -> str:
    """A readable name of any callable."""
    while isinstance(fun, functools.partial):
        fun = fun.func
    return getattr(fun, "__name__", None) or type(fun).__name__


def jit_disabled() -> bool:
    """Whether `jax.disable_jit` is in force here."""
    config: Any = jax.config
    return config.jax_disable_jit


def bind(fun: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any],
         options: Options) -> Any:
    """``fun(*args, **kwargs)`` as one ``mono_call`` on flat operands.

    An argument without tracers is static (jax.jit has made tracers of everything else) and goes
    to ``fun`` as it is, never flattened. What ``fun`` closes over becomes operands.

    Raises:
      TypeError: ``fun`` returns something that is no array; names the place in the output.
    """
    dynamic_args = tuple(a if _has_tracer(a) else None for a in args)
    dynamic_kwargs = {k: v for k, v in kwargs.items() if _has_tracer(v)}
    leaves, tree = jax.tree.flatten((dynamic_args, dynamic_kwargs))

    def flat(*flat_args: Any) -> Any:
        new_args, new_kwargs = jax.tree.unflatten(tree, flat_args)
        full = (a if d is None else new
                for a, d, new in zip(args, dynamic_args, new_args, strict=True))
        out = fun(*full, **{**kwargs, **new_kwargs})
        _check_outputs(name_of(fun), out)
        return out

    flat.__name__ = flat.__qualname__ = name_of(fun)
    closed, shapes = jax.make_jaxpr(flat, return_shape=True)(*leaves)
    outs = _call(closed, leaves, options, name_of(fun))
    return jax.tree.unflatten(jax.tree.structure(shapes), outs)


def _call(closed: jex.ClosedJaxpr, leaves: list[Any], options: Options, name: str) -> list[Any]:
    if _compat.uses_refs(closed):
        note = "it uses jax.Ref, whose updates a kernel cannot order among XLA's"
    elif closed.effects and not closed.out_avals:
        note = "it has effects and no results"
    else:
        return mono_call(closed, leaves, options=options, name=name)
    _log.info("%s runs through XLA: %s", name, note)
    collector = _collect.active()
    if collector is not None:
        collector.notes.append(f"{name}: {note}")
    return jex.jaxpr_as_fun(closed)(*leaves)


def _has_tracer(value: Any) -> bool:
    return any(isinstance(leaf, jax.core.Tracer) for leaf in jax.tree.leaves(value))


def _check_outputs(name: str, out: Any) -> None:
    for path, leaf in jax.tree_util.tree_flatten_with_path(out)[0]:
        try:
            jax.typeof(leaf)
        except TypeError:
            place = jax.tree_util.keystr(path) or "its result"
            raise TypeError(
                f"jaxmono.jit: {name} returns a {type(leaf).__name__} ({_short(leaf)}) at {place}; "
                f"outputs must be arrays, scalars or pytrees of them. Return it from a function "
                f"outside jit, or drop it") from None


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."
