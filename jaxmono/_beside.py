"""A tuned function beside XLA's program of it, on the GPU, so that whoever tunes is never slower.

Kernels are measured alone while they are tuned; what counts for users is the whole function. The
shorter of both times decides who runs it from then on (`_tune.left_to_xla`).
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxmono import _config, _logging, _tune
from jaxmono.codegen.stopwatch import stopwatch
from jaxmono.custom_call.timing import Stopwatch
from jaxmono.tuning import Beside

if TYPE_CHECKING:
    from jaxmono._driver import Outcome

_log = _logging.get("tuning")
PLATFORMS = {"cuda": "cuda"}
"""Of XLA's handlers, by kind of target. The interpreter is for correctness: nobody times it."""
_TURNS = 3
"""Of both, one behind the other: the median counts."""


def beside_xla(functions: Callable[[], tuple[Any, Any]], args: Sequence[Any],
               kwargs: Mapping[str, Any], outcomes: Sequence[Outcome], seconds: float | None,
               ) -> tuple[Beside | None, str]:
    """Times of a function, and of XLA's program of it, kept for all processes; or why there are
    none, "" where there is nothing to compare.

    Args:
      functions: both, new jax.jit functions; they donate nothing.
      args, kwargs: of a call; in place of a `jax.ShapeDtypeStruct` numbers are drawn.
      outcomes: what tuning it made. seconds: of `_tune.tuning`.
    """
    made = [o for o in outcomes if o.built and not o.note]
    if not made or any(o.facts.target.kind not in PLATFORMS or not o.facts.here for o in made):
        return None, ""
    if len(outcomes) > 1:
        return None, "not timed beside XLA: it calls several jaxmono functions; tune each"
    if jax.process_count() > 1 or any(map(_is_spread, jax.tree.leaves((args, kwargs)))):
        return None, "not timed beside XLA: it runs on several devices"
    (outcome,) = made
    config = _config.read()
    key = _tune.function_key(outcome.graph, outcome.facts, outcome.options.mode)
    if (known := _tune.timed_before(key, config)) is not None:
        return known, ""
    try:
        args, kwargs = jax.tree.map(_drawn, (tuple(args), dict(kwargs)))
        target = outcome.facts.target
        watch = Stopwatch(stopwatch(target), PLATFORMS[target.kind])
        with _tune.tuning(seconds):
            ours, theirs = (lambda f=f: f(*args, **kwargs) for f in functions())
            jax.block_until_ready((ours(), theirs()))
        taken: tuple[list[float], list[float]] = ([], [])
        for _ in range(_TURNS):
            for us, start in zip(taken, (ours, theirs), strict=True):
                us += watch.us(start)
        found = Beside(*map(statistics.median, taken))
    except Exception as error:  # what was tuned stays tuned
        _log.debug("timing beside XLA failed", exc_info=error)
        return None, f"not timed beside XLA ({type(error).__name__}: {error})"
    _log.info("%s: %s", outcome.name, found)
    _tune.keep(key, found, config)
    return found, ""


def _is_spread(x: Any) -> bool:
    sharding = getattr(x, "sharding", None)
    return sharding is not None and len(sharding.device_set) > 1


def _drawn(x: Any) -> Any:
    """An array of a type: normal numbers, small integers."""
    if not isinstance(x, jax.ShapeDtypeStruct):
        return x
    rng = np.random.default_rng(0)
    if jax.dtypes.issubdtype(x.dtype, jax.dtypes.prng_key):
        return jax.random.split(jax.random.key(0), x.shape) if x.shape else jax.random.key(0)
    if jax.dtypes.issubdtype(x.dtype, np.complexfloating):
        return jnp.asarray(rng.standard_normal(x.shape) + 1j * rng.standard_normal(x.shape),
                           x.dtype)
    if jax.dtypes.issubdtype(x.dtype, np.floating):
        return jnp.asarray(rng.standard_normal(x.shape, np.float32)).astype(x.dtype)
    return jnp.asarray(rng.integers(0, 2, x.shape)).astype(x.dtype)
