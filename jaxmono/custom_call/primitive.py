"""``mono_call``: a call of a jaxpr that is lowered to generated kernels.

Transformations of it are again ``mono_call``s (a gradient, a batched function), so what JAX makes
of a jaxmono function is compiled by jaxmono too.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import jax.extend.core as jex

from jaxmono import _compat
from jaxmono.custom_call import lowering, registration
from jaxmono.custom_call.options import Options

mono_call_p = jex.Primitive("mono_call")
"""Parameters: ``call_jaxpr`` (a ClosedJaxpr without constants), ``options``, ``name``."""

_compat.register_call_primitive_rules(mono_call_p)
_compat.register_lowering(mono_call_p, lowering.lower_mono_call)
registration.install()


def mono_call(closed: jex.ClosedJaxpr, operands: Sequence[Any], *, options: Options,
              name: str = "fun") -> list[Any]:
    """Calls a jaxpr through ``mono_call``.

    Args:
      closed: what to call; its constants become operands, so that kernels do not contain them.
      operands: one array or tracer per input of ``closed``.
      options: those of the `jaxmono.jit` function.
      name: for functions, kernels and messages; other characters than ``[A-Za-z0-9_]`` become
        underscores.

    Returns:
      The results, flat.
    """
    hoisted, consts = _compat.hoist_constants(closed)
    word = re.sub(r"\W+", "_", name, flags=re.ASCII).strip("_") or "fun"
    return mono_call_p.bind(*consts, *operands, call_jaxpr=hoisted, options=options, name=word)
