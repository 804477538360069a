"""`Lowered` and `Compiled`: the stages of `jax.stages` that also know the kernels inside.

Both wrap JAX's own object and pass everything else through to it.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import jax

from jaxmono import _beside, _collect, _tune
from jaxmono._collect import Collector
from jaxmono._errors import close_matches, one_of
from jaxmono._explain import Report, merged
from jaxmono.custom_call.options import Options
from jaxmono.tuning import TuningReport

_TEXTS = ("stablehlo", "hlo", "plan", "cuda", "ptxas")


class _Stage:
    """What both stages share: the kernels' texts and the report."""

    _inner: Any
    _options: Options
    _collected: Collector

    def explain(self) -> Report:
        """The `Report` on the kernels of this program, as compiled."""
        return _report(self._collected, self._options)

    def _kernel_text(self, dialect: str) -> str:
        """The plans, sources or resource reports of all kernels, each under a banner."""
        if not any(outcome.built for outcome in self._collected.outcomes):
            return f"// no jaxmono kernel: {self.explain().note or 'nothing could be taken'}\n"
        return "\n".join(text for o in self._collected.outcomes for text in o.texts(dialect))

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return getattr(self._inner, name)


class Lowered(_Stage):
    """A function lowered for given argument types, as `jax.stages.Lowered`.

    The generated kernels are compiled already; they are custom calls in the module. Attributes
    that are not listed here (``in_tree``, ``out_tree``, ``donate_argnums``, ``compiler_ir``,
    ``cost_analysis``, ...) are those of the `jax.stages.Lowered` inside.
    """

    def __init__(self, inner: jax.stages.Lowered, options: Options,
                 collected: Collector) -> None:
        self._inner = inner
        self._options = options
        self._collected = collected

    @property
    def args_info(self) -> Any:
        """Pytree of `jax.stages.ArgInfo`."""
        return self._inner.args_info

    @property
    def out_info(self) -> Any:
        """Pytree of `jax.ShapeDtypeStruct`."""
        return self._inner.out_info

    def as_text(self, dialect: str | None = None, *, debug_info: bool = False) -> str:
        """The program as text.

        Args:
          dialect: "stablehlo" (default) or "hlo": the module with the kernels as custom calls;
            "plan": the kernels' plans; "cuda": their generated source; "ptxas": the compiler's
            report on registers, spills and shared memory.
          debug_info: include source locations (stablehlo).

        Raises:
          ValueError: another dialect.
        """
        if _checked("lower().as_text", dialect) in ("plan", "cuda", "ptxas"):
            return self._kernel_text(str(dialect))
        return self._inner.as_text(dialect, debug_info=debug_info)

    def compile(self, *args: Any, **kwargs: Any) -> Compiled:
        """Compiles with XLA; arguments as for `jax.stages.Lowered.compile`."""
        return Compiled(self._inner.compile(*args, **kwargs), self)

    def __repr__(self) -> str:
        return f"jaxmono.Lowered({self.explain().kernels} kernels)"


class Compiled(_Stage):
    """A compiled function, as `jax.stages.Compiled`; call it with arguments of its types.

    Attributes that are not listed here (``input_shardings``, ``out_info``, ...) are those of the
    `jax.stages.Compiled` inside.
    """

    def __init__(self, inner: jax.stages.Compiled, lowered: Lowered) -> None:
        self._inner = inner
        self._lowered = lowered
        self._options = lowered._options
        self._collected = lowered._collected

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self._inner(*args, **kwargs)

    def as_text(self, dialect: str | None = None) -> str:
        """As `Lowered.as_text`; without ``dialect`` or with "hlo" XLA's optimised HLO.

        Raises:
          ValueError: an unknown dialect.
        """
        if _checked("compile().as_text", dialect) in ("plan", "cuda", "ptxas"):
            return self._kernel_text(str(dialect))
        if dialect == "stablehlo":
            return self._lowered.as_text("stablehlo")
        return self._inner.as_text() or ""

    def cost_analysis(self) -> Any:
        """XLA's estimate; it knows nothing of the work inside the kernels (see `explain`)."""
        return self._inner.cost_analysis()

    def memory_analysis(self) -> Any:
        """XLA's memory use, with the kernels' scratch, which is a result of their calls."""
        return self._inner.memory_analysis()

    def __repr__(self) -> str:
        return f"jaxmono.Compiled({self.explain().kernels} kernels)"


def lower(fresh: Callable[[], Any], options: Options, /, *args: Any, **kwargs: Any) -> Lowered:
    """``fresh()`` (a new jax.jit function) lowered for these arguments."""
    with _collect.collecting() as collector:
        inner = fresh().lower(*args, **kwargs)
    return Lowered(inner, options, collector)


def explain(fresh: Callable[[], Any], options: Options, /, *args: Any, **kwargs: Any) -> Report:
    """The report on ``fresh()`` for these arguments, from planning alone."""
    with _collect.collecting(plan_only=True) as collector:
        fresh().lower(*args, **kwargs)
    return _report(collector, options)


def tune(fresh: Callable[[], Any], by_xla: Callable[[], Any], seconds: float | None, /,
         *args: Any, **kwargs: Any) -> TuningReport:
    """Builds ``fresh()`` for these arguments, measures schedules for its kernels, and times it
    beside ``by_xla()``, likewise a new jax.jit function."""
    begin = time.perf_counter()
    with _tune.tuning(seconds) as request, _collect.collecting() as collector:
        fresh().lower(*args, **kwargs)
    beside, why = _beside.beside_xla(fresh, by_xla, args, kwargs, collector.outcomes, seconds,
                                     again=any(r.fresh for r in request.reports))
    said = [*request.notes, *collector.notes, *(o.note for o in collector.outcomes if o.note), why]
    if not request.reports and not any(said):
        said.append("no kernel of this function has schedules to choose from")
    once = {r.name: r for r in reversed(request.reports)}  # regions may have equal groups
    return TuningReport(tuple(reversed(once.values())), time.perf_counter() - begin,
                        "; ".join(dict.fromkeys(filter(None, said))), beside)


def _report(collected: Collector, options: Options) -> Report:
    return merged((o.report for o in collected.outcomes), notes=collected.notes,
                  platform=jax.default_backend(), interpret=options.interpret, mode=options.mode)


def _checked(where: str, dialect: Any) -> Any:
    if dialect is not None and dialect not in _TEXTS:
        near = close_matches(dialect, _TEXTS) if isinstance(dialect, str) else ""
        raise ValueError(f"{where}: dialect={dialect!r} is not one of {one_of(_TEXTS)}.{near}")
    return dialect
