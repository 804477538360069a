"""Kernels that are made while XLA runs the function: ``jit(fun, wait=False)``.

    call 1      lowering: of the kernels some are missing → `Later.make`     XLA runs the function
    ...         a thread generates and compiles them                         XLA runs it
    call n      JAX's caches of the function are clear, it is lowered again:
                all kernels are there (`Later.found`)                        the kernels run

A call is as fast as one of jax.jit: nothing is asked in front of it. What is lowered as a part of
another function's module (jit in jit, scan) waits as usual, for that module stays as it is.
"""

from __future__ import annotations

import functools
import threading
import time
from collections.abc import Callable, Hashable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

from jaxmono import _config, _logging
from jaxmono._build import Built, Compilers, Job, begin
from jaxmono._errors import CompileError
from jaxmono.codegen.cores import SHARE, cores

_log = _logging.get("driver")


class Later:
    """The kernels of one jaxmono.jit function; safe to use from several threads.

    Args:
      renew: makes JAX lower the function again when it is called; from any thread.
    """

    def __init__(self, renew: Callable[[], None] | None = None) -> None:
        self.renew = renew
        self._changed = threading.Condition()
        self._made: dict[Hashable, Future[Built]] = {}
        self._pending = 0  # threads

    def found(self, key: Hashable) -> Callable[[], Built] | None:
        """What gives a kernel that has been made, or raises why it could not be; else None."""
        with self._changed:
            made = self._made.get(key)
        return made.result if made is not None and made.done() else None

    def make(self, jobs: Mapping[Any, Job], name: str) -> None:
        """Begins with those that nobody has begun with, beside whoever calls this."""
        with self._changed:
            new = {key: job for key, job in jobs.items() if key not in self._made}
            self._made.update((key, Future()) for key in new)
            self._pending += bool(new)
        if new:
            _log.info("XLA runs %s until its kernels are made (%d)", name, len(new))
            threading.Thread(target=self._make, args=(new, name, _config.read()), daemon=True,
                             name=f"jaxmono-{name}").start()

    def wait(self, timeout: float | None = None) -> bool:
        """Whether all that was begun is made, within so many seconds."""
        with self._changed:
            return self._changed.wait_for(lambda: not self._pending, timeout)

    def _make(self, jobs: Mapping[Hashable, Job], name: str, config: _config.Config) -> None:
        start = time.perf_counter()
        at_once = max(1, min(len(jobs), cores() // SHARE))
        pool = Compilers(ThreadPoolExecutor(at_once, "jaxmono-compile"), _at_the_end())
        begun = {key: _begun(job, config, pool) for key, job in jobs.items()}
        outcomes = {key: _outcome(finish) for key, finish in begun.items()}
        pool.threads.shutdown(wait=False)
        if _at_the_end().is_set():
            return
        with self._changed:
            for key, outcome in outcomes.items():
                if isinstance(outcome, Built):
                    self._made[key].set_result(outcome)
                else:
                    self._made[key].set_exception(outcome)
        _log.info("%s: kernels made in %.1f s; the next call has them", name,
                  time.perf_counter() - start)
        try:
            # In front of who waits, so that what is called then has the kernels; and without the
            # lock, which a lowering may ask for.
            if self.renew is not None:
                self.renew()
        finally:
            with self._changed:
                self._pending -= 1
                self._changed.notify_all()


@dataclass(frozen=True)
class Never:
    """Has nothing to wait for (``wait=True``)."""

    def wait(self, timeout: float | None = None) -> bool:
        """True."""
        return True


def _begun(job: Job, config: _config.Config, pool: Compilers) -> Callable[[], Built]:
    try:
        return begin(job, config, plan_only=False, pool=pool)
    except Exception as error:
        return functools.partial(_raise, error)


def _raise(error: Exception) -> Built:
    raise error


def _outcome(finish: Callable[[], Built]) -> Built | Exception:
    try:
        return finish()
    except Exception as error:
        return error if isinstance(error, CompileError) else CompileError(
            f"{type(error).__name__}: {error}")


@functools.lru_cache(maxsize=1)
def _at_the_end() -> threading.Event:
    """Set when the main thread ends. Python then waits for threads of pools, and these for
    compilers that nobody needs any more."""
    ended = threading.Event()

    def watch() -> None:
        threading.main_thread().join()
        ended.set()

    threading.Thread(target=watch, daemon=True, name="jaxmono-end").start()
    return ended
