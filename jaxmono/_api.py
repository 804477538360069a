"""`jit`, `explain` and `tune`: the public face.

`jit(fun)` is a real `jax.jit` function around a wrapper that traces ``fun`` to a jaxpr, hoists its
closure constants to operands and binds one ``mono_call``. Static arguments, pytrees, donation and
shardings are therefore jax.jit's own, and every transformation meets an ordinary JAX primitive.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import inspect
import weakref
from collections.abc import Callable
from typing import Any, ParamSpec, Protocol, TypeVar, overload

import jax

from jaxmono import _stages, _trace
from jaxmono._errors import close_matches, one_of
from jaxmono._explain import Report
from jaxmono._later import Later
from jaxmono._trace import name_of
from jaxmono.custom_call.options import Options
from jaxmono.tuning import TuningReport

P = ParamSpec("P")
R = TypeVar("R")
R_co = TypeVar("R_co", covariant=True)

MODES = ("auto", "monolithic", "layer", "stitch", "elementwise")
BUILT_MODES = ("auto", "monolithic", "stitch")
ON_UNSUPPORTED = ("xla", "error")
_OWN = ("mode", "on_unsupported", "interpret", "wait")


class Jitted(Protocol[P, R_co]):
    """What `jit` returns: a jax.jit function with `explain`, and `lower` that knows kernels."""

    __name__: str
    __wrapped__: Callable[..., Any]

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R_co: ...

    def lower(self, *args: P.args, **kwargs: P.kwargs) -> _stages.Lowered: ...

    def explain(self, *args: P.args, **kwargs: P.kwargs) -> Report: ...

    def trace(self, *args: P.args, **kwargs: P.kwargs) -> jax.stages.Traced: ...

    def eval_shape(self, *args: P.args, **kwargs: P.kwargs) -> Any: ...

    def clear_cache(self) -> None: ...

    def wait(self, timeout: float | None = None) -> bool:
        """Until all kernels are made that were begun under ``wait=False``, or so many seconds.
        Returns whether they are; the next call runs them."""
        ...

    def __get__(self, instance: Any, owner: Any = None, /) -> Jitted[..., R_co]: ...


@overload
def jit(
    fun: Callable[P, R], /, *, mode: str = ..., on_unsupported: str = ...,
    interpret: bool = ..., wait: bool = ..., **jax_jit_keywords: Any,
) -> Jitted[P, R]: ...


@overload
def jit(
    fun: None = None, /, *, mode: str = ..., on_unsupported: str = ...,
    interpret: bool = ..., wait: bool = ..., **jax_jit_keywords: Any,
) -> Callable[[Callable[P, R]], Jitted[P, R]]: ...


def jit(fun: Any = None, /, **kw: Any) -> Any:
    """`jax.jit` whose program runs as one generated kernel, where all of it can.

    What cannot be taken runs through XLA between the kernels; `explain` names each such op with
    its source line and the reason.

    Args:
      fun: a function of arrays and pytrees of them. Without it, a decorator is returned.
      mode: how much goes into one kernel: "auto" (the best known), "monolithic" (all that can
        be taken) or "stitch" (contractions stay with XLA's libraries, what lies between them is
        stitched). "layer" and "elementwise" are planned.
      on_unsupported: "xla" leaves unsupported ops to XLA; "error" raises `UnsupportedError`.
      interpret: run the generated kernels in the SIMT interpreter on the CPU (needs g++). It is
        for tests and for trying jaxmono without a GPU, not for speed.
      wait: whether the first call with arguments of some types waits until its kernels are
        compiled. With False XLA runs such calls until they are, in a thread beside them (``wait``
        of the function waits for that); then they run, and results may differ by rounding. Where
        another compiled function calls it (jit, scan), under ``lower`` and ``trace``, with several
        processes and with ``JAXMONO_TUNE=on`` kernels are waited for always.
      **kw: every keyword of `jax.jit` of the installed JAX, with its meaning there.

    Returns:
      A `jax.jit` function that also has `explain` and `wait`, and whose `lower` gives `Lowered`.

    Raises:
      TypeError: ``fun`` is not callable; a keyword is unknown or has the wrong type.
      ValueError: ``mode`` or ``on_unsupported`` is none of the accepted strings.
      NotImplementedError: ``mode`` is one that is not built yet.
    """
    options, wait, jax_kw = _split(kw)
    if fun is None:
        return functools.partial(_jit, options=options, wait=wait, jax_kw=jax_kw)
    return _jit(fun, options=options, wait=wait, jax_kw=jax_kw)


def explain(fun: Callable[P, Any], /, **kw: Any) -> Callable[P, Report]:
    """``explain(fun, **kw)(*args)``: the `Report` on ``jit(fun, **kw)`` for these arguments.

    Plans without compiling. Arguments may be arrays or `jax.ShapeDtypeStruct`s. A function that
    `jit` made is taken with its own keywords.

    Raises:
      TypeError: ``fun`` is not callable, or ``kw`` was given with a function made by `jit`.
    """
    own = getattr(fun, "_jaxmono_explain", None)
    if own is None:
        return jit(fun, **kw).explain
    if kw:
        raise TypeError(f"jaxmono.explain: {name_of(fun)} already is a jaxmono.jit function, so "
                        f"the keywords {sorted(kw)} have no effect; give them to jaxmono.jit")
    return own


def tune(fun: Callable[P, Any], /, *, seconds: float | None = None,
         **kw: Any) -> Callable[P, TuningReport]:
    """``tune(fun, **kw)(*args)``: measures schedules for the kernels of ``jit(fun, **kw)``.

    It compiles and times, each alone, a few tens of schedules of every contraction on this
    process's GPU, and keeps the times in the tuning cache (``JAXMONO_CACHE_DIR``). Kernels that are
    built from then on, in any process, use the fastest. Tune before the first call: a function
    that was called keeps its kernels until ``clear_cache()``. What is known already is not measured
    again. Arguments may be arrays or `jax.ShapeDtypeStruct`s.

    Then it runs the whole function, and XLA's program of it, some hundred times each: calls queued
    one behind the other. Where XLA's is faster (by 3 % and more), XLA runs this function from then
    on, and `explain` says so. Not timed so are functions with side effects, that donate arguments,
    that call jaxmono functions, or run on several devices; and where loops end when their data says
    so, functions of `jax.ShapeDtypeStruct`s, for which numbers are drawn. The report says why.

    Args:
      fun: a function, or what `jit` made of one.
      seconds: that measuring may take for each kernel; default: ``JAXMONO_TUNE_SECONDS``.
      **kw: as for `jit`.

    Raises:
      TypeError: ``fun`` is not callable, or ``kw`` was given with a function made by `jit`.
      ValueError: ``seconds`` is not positive.
    """
    if seconds is not None and not seconds > 0:
        raise ValueError(f"jaxmono.tune: seconds must be positive, not {seconds!r}")
    own = getattr(fun, "_jaxmono_tune", None)
    if own is None:
        own = jit(fun, **kw)._jaxmono_tune  # type: ignore[attr-defined]
    elif kw:
        raise TypeError(f"jaxmono.tune: {name_of(fun)} already is a jaxmono.jit function, so the "
                        f"keywords {sorted(kw)} have no effect; give them to jaxmono.jit")
    return functools.partial(own, seconds)


def _split(kw: dict[str, Any]) -> tuple[Options, bool, dict[str, Any]]:
    """Checks all keywords; separates jaxmono's from those of jax.jit."""
    known = [p.name for p in inspect.signature(jax.jit).parameters.values()
             if p.kind is inspect.Parameter.KEYWORD_ONLY]
    for key in kw:
        if key not in _OWN and key not in known:
            raise TypeError(f"jaxmono.jit: unknown keyword argument {key!r}."
                            f"{close_matches(key, [*_OWN, *known])} Accepted are "
                            f"{', '.join(_OWN)} and those of jax.jit: {', '.join(known)}")
    mode = _choice("mode", kw.get("mode", "auto"), MODES)
    if mode not in BUILT_MODES:
        raise NotImplementedError(f"jaxmono.jit: mode={mode!r} is not built yet; available are "
                                  f"{one_of(BUILT_MODES)}")
    on_unsupported = _choice("on_unsupported", kw.get("on_unsupported", "xla"), ON_UNSUPPORTED)
    interpret = _switch("interpret", kw.get("interpret", False))
    wait = _switch("wait", kw.get("wait", True))
    options = Options(mode=mode, on_unsupported=on_unsupported, interpret=interpret)
    return options, wait, {k: v for k, v in kw.items() if k not in _OWN}


def _switch(argument: str, value: Any) -> bool:
    if not isinstance(value, bool):
        raise TypeError(f"jaxmono.jit: {argument} must be True or False, not {value!r}")
    return value


def _choice(argument: str, value: Any, accepted: tuple[str, ...]) -> str:
    if not isinstance(value, str):
        raise TypeError(f"jaxmono.jit: {argument} must be a string, {one_of(accepted)}, "
                        f"not {value!r}")
    if value not in accepted:
        raise ValueError(f"jaxmono.jit: {argument}={value!r} is not one of {one_of(accepted)}."
                         f"{close_matches(value, accepted)}")
    return value


def _jit(fun: Any, *, options: Options, wait: bool, jax_kw: dict[str, Any]) -> Any:
    if isinstance(fun, str):
        raise TypeError(f"jaxmono.jit: the first argument must be the function to compile, not the "
                        f"string {fun!r}; options are keywords, e.g. jaxmono.jit(fun, mode='auto')")
    if not callable(fun):
        raise TypeError(f"jaxmono.jit: the first argument must be callable, not {fun!r} of type "
                        f"{type(fun).__name__}")
    kind = next((k for k in (inspect.isgeneratorfunction, inspect.iscoroutinefunction,
                             inspect.isasyncgenfunction) if k(fun)), None)
    if kind is not None:
        raise TypeError(f"jaxmono.jit: {name_of(fun)} is a generator or coroutine function; JAX "
                        f"traces a function by calling it once, so it has to return its results")
    later = Later()
    # Kernels that are made later are each function's own, which no table may keep.
    fun, wrapper = _shared_wrapper(fun, options) if wait else \
        (fun, _wrapper(lambda: fun, fun, dataclasses.replace(options, later=later)))
    jitted: Any = jax.jit(wrapper, **jax_kw)

    def fresh() -> Any:
        """A new jax.jit function: JAX caches lowerings, and stages must see theirs happen."""
        return jax.jit(_wrapper(lambda: fun, fun, options), **jax_kw)

    def by_xla() -> Any:
        return jax.jit(_renamed(lambda *args, **kwargs: fun(*args, **kwargs), fun), **jax_kw)

    def held(method: Callable[..., Any]) -> Callable[..., Any]:
        """``method``, keeping ``fun`` alive: the wrapper only knows it weakly."""

        @functools.wraps(method)
        def call(*args: Any, **kwargs: Any) -> Any:
            return method(*args, **kwargs) if fun is not None else None

        return call

    jitted.__wrapped__ = fun
    jitted.trace = held(jitted.trace) if wait else \
        functools.wraps(jitted.trace)(lambda *a, **k: fresh().trace(*a, **k))
    jitted.eval_shape = held(jitted.eval_shape)
    jitted.lower = functools.wraps(jitted.lower)(functools.partial(_stages.lower, fresh, options))
    jitted.explain = functools.partial(_stages.explain, fresh, options)
    jitted._jaxmono_explain = jitted.explain
    jitted._jaxmono_tune = functools.partial(_stages.tune, fresh, by_xla)
    jitted.wait = later.wait
    later.renew = _renews(weakref.ref(jitted))
    return jitted


def _renews(ref: weakref.ref[Any]) -> Callable[[], None]:
    def renew() -> None:
        if (jitted := ref()) is not None:
            jitted.clear_cache()

    return renew


_Wrapper = Callable[..., Any]
_wrappers: weakref.WeakKeyDictionary[Any, tuple[weakref.ref[Any], dict[Options, _Wrapper]]]
_wrappers = weakref.WeakKeyDictionary()


def _shared_wrapper(fun: Any, options: Options) -> tuple[Any, _Wrapper]:
    """One wrapper per function and options, so that ``jit(f)`` twice compiles once, as in JAX.

    The table knows functions weakly, and so do its wrappers, or no function would ever die.
    Returns the function that the wrapper calls (equal to ``fun``), which the caller keeps alive.
    """
    try:
        ref, wrappers = _wrappers.setdefault(fun, (weakref.ref(fun), {}))
    except TypeError:  # not hashable or not weakly referenceable: nothing to share
        return fun, _wrapper(lambda: fun, fun, options)
    known = ref()
    if known is None:  # it died between the two lines above
        return fun, _wrapper(lambda: fun, fun, options)
    if options not in wrappers:
        wrappers[options] = _wrapper(ref, known, options)
    return known, wrappers[options]


def _wrapper(get: Callable[[], Any], fun: Any, options: Options) -> _Wrapper:
    """What jax.jit traces in place of ``fun`` (which it reads through ``get``)."""

    def wrapper(*args: Any, **kwargs: Any) -> Any:
        if _trace.jit_disabled():
            return get()(*args, **kwargs)
        return _trace.bind(get(), args, kwargs, options)

    return _renamed(wrapper, fun)


def _renamed(wrapper: _Wrapper, fun: Any) -> _Wrapper:
    """``wrapper`` with the names and the signature of ``fun``, by which jax.jit knows arguments."""
    # Not `functools.wraps`: its ``__wrapped__`` would be a strong reference to ``fun``.
    for name in functools.WRAPPER_ASSIGNMENTS:
        if hasattr(fun, name):
            setattr(wrapper, name, getattr(fun, name))
    wrapper.__name__ = name_of(fun)
    with contextlib.suppress(ValueError, TypeError):  # builtins have none; jax.jit copes
        wrapper.__signature__ = inspect.signature(fun)  # type: ignore[attr-defined]
    return wrapper
