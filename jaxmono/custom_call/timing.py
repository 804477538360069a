"""What calls take on the GPU, as users make them: queued in XLA's stream, the host ahead.

    stopwatch ── call ── call ── ... ── call ── stopwatch        one stream
      waits until the host has queued all

A kernel's own time is not that: XLA runs some programs as many kernels with gaps between them, and
what starts a call takes time on the GPU, too.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxmono.codegen.program import Program
from jaxmono.custom_call import registration
from jaxmono.custom_call.stitch import TARGETS, configuration

_MOST_CALLS, _FEWEST_CALLS = 24, 3
"""Queued at a time: JAX waits with the 33rd computation until one is done. A stream takes about a
thousand launches, and XLA may make dozens of a call."""
_LONG_US = 4e3
"""That calls queued at a time take together, about."""
_MARGIN, _LEAST_WAIT_US, _LONGEST_WAIT_US = 1.5, 500.0, 1e6
"""How much longer the stopwatch waits than the host took to queue as many calls before."""


class Stopwatch:
    """Times calls on the device that ``program`` (`codegen.stopwatch`) was made for."""

    def __init__(self, program: Program, platform: str, device: Any) -> None:
        """``platform``: of `registration.register`. ``device``: of JAX, on which
        calls run."""
        registration.register(platform)
        self._device = device
        attributes = configuration(program)

        def told(wait: jax.Array) -> jax.Array:
            call = jax.ffi.ffi_call(TARGETS[program.target],
                                    jax.ShapeDtypeStruct((2,), jnp.uint32), has_side_effect=True)
            out: Any = call(wait, **attributes)
            return out

        self._told = jax.jit(told)

    def us(self, start: Callable[[], Any], *, rounds: int = 3) -> list[float]:
        """Microseconds of a call, once for each round.

        Args:
          start: makes a call and returns what can be waited for. It has been called before.
        """
        out: list[float] = []
        enabled = gc.isenabled()
        gc.disable()  # a collection takes longer than a wait
        try:
            jax.block_until_ready(start())
            begin = time.perf_counter()
            pending = [start() for _ in range(_FEWEST_CALLS)]
            host_us = (time.perf_counter() - begin) * 1e6 / _FEWEST_CALLS
            jax.block_until_ready(pending)
            whole_us = (time.perf_counter() - begin) * 1e6 / _FEWEST_CALLS
            calls = int(min(max(_LONG_US / max(whole_us, 1.0), _FEWEST_CALLS), _MOST_CALLS))
            for tries_left in range(3 * rounds, 0, -1):
                wait = min(max(_MARGIN * calls * host_us, _LEAST_WAIT_US), _LONGEST_WAIT_US)
                us, host_us = self._round(start, calls, wait)
                if calls * host_us < wait or tries_left <= rounds:  # the host was ahead
                    out.append(us)
                if len(out) == rounds:
                    break
        finally:
            if enabled:
                gc.enable()
        return out

    def _round(self, start: Callable[[], Any], calls: int, wait: float) -> tuple[float, float]:
        """What one of ``calls`` took on the device, and the host to queue it."""
        none, some = (jax.device_put(np.uint32(us * 1e3), self._device) for us in (0.0, wait))
        jax.block_until_ready((self._told(none), some))
        begin = time.perf_counter()
        first = self._told(some)
        last: Any = None
        for _ in range(calls):
            last = start()
        second = self._told(none)
        host_us = (time.perf_counter() - begin) * 1e6 / calls
        jax.block_until_ready(last)
        early, late = (int(low) + (int(high) << 32) for low, high in map(np.asarray,
                                                                         (first, second)))
        return (late - early) / calls / 1e3, host_us
