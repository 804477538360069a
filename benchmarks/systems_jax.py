"""The two JAX sides of a comparison, compiled and running: plain `jax.jit`, and `jaxmono.jit`."""

from __future__ import annotations

import functools
import math
import time
from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp

import jaxmono
from benchmarks.data import Data, copied
from benchmarks.running import Facts
from examples.xla_kernels import count_kernels

Options = Mapping[str, bool | int | str]
"""XLA's public DebugOptions, as `jax.stages.Lowered.compile` takes them."""

PROFILED: Options = {"xla_enable_command_buffers_during_profiling": True}
"""Without it XLA launches kernels one by one while a profiler runs, and nothing else is traced."""


class JaxRunning:
    """A compiled step behind the protocol `benchmarks.running.Running`."""

    def __init__(self, label: str, compiled: Callable[..., Any], data: Data, facts: Facts) -> None:
        self.label = label
        self.facts = facts
        self.function = compiled
        self._data: Data | None = data
        self._carry: Any = copied(data.carry)
        self._turn = 0

    def start(self) -> Any:
        """Starts one call; the carry is donated and handed on, as a decoding loop does."""
        if self._data is None:
            raise ValueError(f"{self.label} is closed")
        states, inputs = self._data.states, self._data.inputs
        out, self._carry = self.function(states[self._turn % len(states)], self._carry,
                                         *inputs[self._turn % len(inputs)])
        self._turn += 1
        # A step may return nothing but what it hands on.
        return out if jax.tree.leaves(out) else jax.tree.leaves(self._carry)[:1]

    def wait(self, token: Any) -> None:
        """Returns when the call of that token is done."""
        jax.block_until_ready(token)

    def delay(self, milliseconds: float) -> Any:
        """Products of f32 matrices at full precision, one kernel each; nothing on a CPU."""
        if jax.default_backend() == "cpu":
            return ()
        product, matrix, unit = _product()
        return [product(matrix) for _ in range(max(1, math.ceil(milliseconds / unit)))]

    def close(self) -> None:
        """Lets go of the carry, the executable and the data."""
        self._data = self._carry = None
        self.function = _closed


def _closed(*_: Any) -> Any:
    raise ValueError("this program was closed")


@functools.cache
def _product() -> tuple[Callable[..., jax.Array], jax.Array, float]:
    """A product of matrices, its operand, and the milliseconds that it takes."""
    matrix = jax.random.normal(jax.random.key(0), (8192, 8192), jnp.float32)
    product = jax.jit(lambda a: jnp.matmul(a, a, precision="highest"))
    jax.block_until_ready(product(matrix))
    start = time.perf_counter()
    jax.block_until_ready([product(matrix) for _ in range(3)])
    return product, matrix, (time.perf_counter() - start) / 3 * 1e3


class CacheHits:
    """Counts executables that came from JAX's cache on disk.

    JAX has no way to take one listener away again, so there is one for the process.
    """

    _count = 0
    _listens = False

    def __init__(self) -> None:
        if not CacheHits._listens:
            CacheHits._listens = True
            jax.monitoring.register_event_listener(CacheHits._heard)
        self._before = CacheHits._count

    @staticmethod
    def _heard(event: str, **_: Any) -> None:
        CacheHits._count += event == "/jax/compilation_cache/cache_hits"

    def any(self) -> bool:
        """Whether there were some since this object was made."""
        return CacheHits._count > self._before


def compile_xla(step: Callable[..., Any], data: Data, options: Options | None = None,
                ) -> tuple[Any, Facts]:
    """``jax.jit(step)`` compiled for a case's arguments, the carry donated.

    Raises:
      Exception: whatever JAX raises, for an option that it does not know too.
    """
    hits = CacheHits()
    start = time.perf_counter()
    lowered = jax.jit(_fresh(step), donate_argnums=1).lower(*data.arguments())
    middle = time.perf_counter()
    compiled = lowered.compile(compiler_options=_options(options))
    seconds = None if hits.any() else time.perf_counter() - middle
    scratch, peak = _memory(compiled)
    return compiled, Facts(trace_s=middle - start, compile_s=seconds, scratch_bytes=scratch,
                           peak_bytes=peak, kernels=count_kernels(compiled.as_text() or "").total())


def compile_jaxmono(step: Callable[..., Any], data: Data, mode: str, *, interpret: bool = False,
                    options: Options | None = None) -> tuple[Any, Facts]:
    """``jaxmono.jit(step, mode=mode)`` compiled for a case's arguments, the carry donated.

    Raises:
      Exception: whatever jaxmono or JAX raises, `NotImplementedError` for a mode not built too.
    """
    hits = CacheHits()
    start = time.perf_counter()
    lowered = jaxmono.jit(_fresh(step), donate_argnums=1, mode=mode, interpret=interpret).lower(
        *data.arguments())
    middle = time.perf_counter()
    compiled = lowered.compile(compiler_options=_options(options))
    end = time.perf_counter()
    told = compiled.explain()
    kernels_s = told.compile_seconds or 0.0
    spills = [k.spill_bytes for k in told.planned]
    status, reason = refusals(told)
    facts = Facts(
        trace_s=max(middle - start - kernels_s, 0.0),
        compile_s=None if told.cached or hits.any() else kernels_s + end - middle,
        kernels=count_kernels(compiled.as_text() or "").total(),
        stages=told.stages, barriers=told.barriers, scratch_bytes=told.scratch_bytes,
        peak_bytes=_memory(compiled)[1],
        registers=max((k.registers for k in told.planned if k.registers is not None),
                      default=None),
        spill_bytes=None if None in spills else sum(s or 0 for s in spills),
        status=status, reason=reason)
    return compiled, facts


def _fresh(step: Callable[..., Any]) -> Callable[..., Any]:
    """The same function anew: of one that it has seen, JAX keeps the trace, which then takes no
    time (the floor is read from a trace of the step before anything is compiled)."""

    @functools.wraps(step)
    def fresh(*arguments: Any) -> Any:
        return step(*arguments)

    return fresh


def refusals(told: jaxmono.Report) -> tuple[str, str]:
    """(status, reason) of a jaxmono row: what XLA runs of it although the mode would take it."""
    counts: Counter[str] = Counter()
    for refused in told.refused:
        by_design = told.mode == "stitch" and refused.reason.startswith(("mode=", "only moves"))
        if not by_design:
            counts[f"{refused.op}: {refused.reason}"] += 1
    reasons = [told.note] if told.note else []
    reasons += [f"{text} x {n}" if n > 1 else text for text, n in counts.most_common()]
    if not reasons and not told.kernels:
        reasons = ["no kernel was planned"]
    return ("fallback", "; ".join(reasons)) if reasons else ("ok", "")


def _options(options: Options | None) -> dict[str, Any] | None:
    """With `PROFILED` on a GPU; a CPU compiles as it does for anyone."""
    if jax.default_backend() == "cpu":
        return None
    return {**PROFILED, **(options or {})}


def _memory(compiled: Any) -> tuple[int | None, int | None]:
    """(bytes of intermediate values, of everything), where XLA tells."""
    told = compiled.memory_analysis()
    if told is None:
        return None, None
    scratch = int(told.temp_size_in_bytes)
    return scratch, scratch + int(told.argument_size_in_bytes + told.output_size_in_bytes
                                  - told.alias_size_in_bytes)
