"""A tuned function beside XLA's program of it, on the GPU, so that whoever tunes is never slower.

Kernels are measured alone while they are tuned; what counts for users is the whole function. The
shorter of both times decides who runs it from then on (`_tune.left_to_xla`).
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxmono import _config, _logging, _tune
from jaxmono.codegen.stopwatch import stopwatch
from jaxmono.codegen.target import Target
from jaxmono.custom_call.timing import Stopwatch
from jaxmono.tuning import Beside

if TYPE_CHECKING:
    from jaxmono._driver import Outcome

_log = _logging.get("tuning")
PLATFORMS = {"cuda": "cuda"}
"""Of XLA's handlers, by kind of target. The interpreter is for correctness: nobody times it."""
_TURNS = 3
"""Of both, one behind the other: the median counts."""


def beside_xla(fresh: Callable[[], Any], by_xla: Callable[[], Any], args: Sequence[Any],
               kwargs: Mapping[str, Any], outcomes: Sequence[Outcome], seconds: float | None, *,
               again: bool) -> tuple[Beside | None, str]:
    """Times of a function, and of XLA's program of it, kept for all processes; or why there are
    none, "" where there is nothing to compare.

    Args:
      fresh, by_xla: give both, as new jax.jit functions.
      args, kwargs: of a call; in place of a `jax.ShapeDtypeStruct` numbers are drawn.
      outcomes: what tuning it made. seconds: of `_tune.tuning`.
      again: its kernels are not those that may have been timed before.
    """
    made = [o for o in outcomes if o.built and not o.note]
    if not made or any(o.facts.target.kind not in PLATFORMS or not o.facts.here for o in made):
        return None, ""
    try:
        with _tune.tuning(seconds):
            theirs = by_xla()
            traced = theirs.trace(*args, **kwargs)
            why = _refusal(traced.jaxpr, args, kwargs, outcomes)
            if why:
                return None, f"not timed beside XLA: {why}"
            (outcome,) = made
            config = _config.read()
            key = _tune.function_key(outcome.graph, outcome.facts, outcome.options.mode)
            if not again and (known := _tune.timed_before(key, config)) is not None:
                return known, ""
            found = _timed(fresh(), theirs, args, kwargs, outcome.facts.target)
    except Exception as error:  # what was tuned stays tuned
        _log.debug("timing beside XLA failed", exc_info=error)
        return None, f"not timed beside XLA ({type(error).__name__}: {error})"
    _log.info("%s: %s", outcome.name, found)
    _tune.keep(key, found, config)
    return found, ""


def _timed(ours: Any, theirs: Any, args: Sequence[Any], kwargs: Mapping[str, Any],
           target: Target) -> Beside:
    args, kwargs = jax.tree.map(_on_device, (tuple(args), dict(kwargs)))
    results = jax.tree.leaves(jax.block_until_ready((ours(*args, **kwargs),
                                                     theirs(*args, **kwargs))))
    device = jax.local_devices()[0]  # as in `_device.facts_for`
    if any(x.devices() != {device} for x in results):
        raise ValueError("it runs on another device than the one that kernels are made for, the "
                         "first of this process")
    watch = Stopwatch(stopwatch(target), PLATFORMS[target.kind], device)
    taken: tuple[list[float], list[float]] = ([], [])
    for _ in range(_TURNS):
        for us, function in zip(taken, (ours, theirs), strict=True):
            us += watch.us(lambda f=function: f(*args, **kwargs))
    return Beside(*map(statistics.median, taken))


def _refusal(jaxpr: Any, args: Sequence[Any], kwargs: Mapping[str, Any],
             outcomes: Sequence[Outcome]) -> str:
    """Why a function should not be run some hundred times, or what that would not tell."""
    if len(outcomes) > 1:
        return "it calls several jaxmono functions; tune each"
    if jaxpr.effects:
        return "it has side effects"
    if any(o.donates for o in outcomes):
        return "it donates arguments"
    leaves = jax.tree.leaves((args, kwargs))
    if jax.process_count() > 1 or any(map(_is_spread, leaves)):
        return "it runs on several devices"
    names = set(_primitives(jaxpr))
    if "mono_call" in names:
        return "it calls jaxmono functions; tune these"
    drawn = [x for x in leaves if isinstance(x, jax.ShapeDtypeStruct)]
    if drawn and "while" in names:
        return "what ends its loops is in its arguments; give arrays"
    if any(jax.dtypes.issubdtype(x.dtype, jax.dtypes.prng_key)
           and x.dtype != jax.random.key(0).dtype for x in drawn):
        return "it takes keys of another kind than jax.random.key makes; give arrays"
    return ""


def _primitives(jaxpr: Any) -> Iterator[str]:
    """Names of those in a jaxpr, and in what its equations run."""
    for eqn in getattr(jaxpr, "jaxpr", jaxpr).eqns:
        yield eqn.primitive.name
        for x in jax.tree.leaves(list(eqn.params.values()), is_leaf=lambda p: hasattr(p, "eqns")):
            if hasattr(x, "eqns") or hasattr(x, "jaxpr"):
                yield from _primitives(x)


def _is_spread(x: Any) -> bool:
    sharding = getattr(x, "sharding", None)
    return sharding is not None and len(sharding.device_set) > 1


def _on_device(x: Any) -> Any:
    """An array as it is, or one of a type: normal numbers, small integers."""
    if isinstance(x, np.ndarray):
        return jax.device_put(x)
    if not isinstance(x, jax.ShapeDtypeStruct):
        return x
    key = jax.random.key(0)
    if jax.dtypes.issubdtype(x.dtype, jax.dtypes.prng_key):
        return jax.random.split(key, x.shape) if x.shape else key
    if jax.dtypes.issubdtype(x.dtype, np.complexfloating):
        return jax.random.normal(key, x.shape, x.dtype)
    if jax.dtypes.issubdtype(x.dtype, np.floating):
        return jax.random.normal(key, x.shape, jnp.float32).astype(x.dtype)
    return jax.random.randint(key, x.shape, 0, 2, jnp.int32).astype(x.dtype)
