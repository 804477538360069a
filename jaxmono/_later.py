"""Kernels that are made while XLA runs the function: ``jit(fun, wait=False)``.

    call 1      lowering: of the kernels some are missing → `Later.make`     XLA runs the function
    ...         a thread generates and compiles them                         XLA runs it
    call n      JAX's caches of the function are clear, it is lowered again:
                all kernels are there (`Later.found`)                        the kernels run

A call is as fast as one of jax.jit: nothing is asked in front of it. What is lowered as a part of
another function's module (jit in jit, scan) waits as usual, for that module stays as it is. So does
what several processes run together: they would not change at the same call.
"""

from __future__ import annotations

import functools
import threading
import time
from collections.abc import Callable, Hashable, Iterable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

from jaxmono import _config, _logging
from jaxmono._build import Built, Compilers, Job, begun
from jaxmono._errors import CompileError
from jaxmono.codegen.cores import SHARE, cores

_log = _logging.get("driver")

_LONG_S = 5.0
"""From which on kernels do not wait for others of their function that are being made."""
_TURN = threading.Lock()
"""One function's missing kernels at a time: they are compiled beside each other already."""


class Later:
    """The kernels of one jaxmono.jit function; safe to use from several threads.

    Args:
      renew: makes JAX lower the function again when it is called; from any thread. It must not keep
        the function alive: JAX's caches know a Later by the options of what they keep.
    """

    def __init__(self, renew: Callable[[], None] | None = None) -> None:
        self.renew = renew
        self._changed = threading.Condition()
        self._made: dict[Hashable, Future[Built]] = {}
        self._building = self._pending = 0  # threads, and those whose kernels are not in use
        self._told: set[str] = set()

    def found(self, key: Hashable) -> Callable[[], Built] | None:
        """What gives a kernel that has been made, or raises why it could not be; else None."""
        with self._changed:
            made = self._made.get(key)
        return made.result if made is not None and made.done() else None

    def make(self, jobs: Mapping[Any, Job], name: str) -> bool:
        """Begins with those that nobody has begun with, beside whoever calls this. Returns whether
        it could: a process that ends has no threads to give."""
        config = _config.read()
        with self._changed:
            new = {key: job for key, job in jobs.items() if key not in self._made}
            if not new:
                return True
            thread = threading.Thread(target=self._make, args=(new, name, config), daemon=True,
                                      name=f"jaxmono-{name}")
            self._made.update((key, Future()) for key in new)
            self._building += 1
            self._pending += 1
        try:
            _at_the_end()
            thread.start()
        except RuntimeError as error:
            _log.info("%s is waited for: %s", name, error)
            self._done(new, {}, 0.0)
            return False
        return True

    def wait(self, timeout: float | None = None) -> bool:
        """Whether all that was begun is made, within so many seconds."""
        with self._changed:
            return self._changed.wait_for(lambda: not self._pending, timeout)

    def is_new(self, message: str) -> bool:
        """Whether a warning has not been given yet: a function is lowered more than once."""
        with self._changed:
            new = message not in self._told
            self._told.add(message)
        return new

    def _make(self, jobs: Mapping[Hashable, Job], name: str, config: _config.Config) -> None:
        outcomes: dict[Hashable, Built | Exception] = {}
        start = time.perf_counter()
        try:
            with _TURN:
                at_once = max(1, min(len(jobs), cores() // SHARE))
                pool = Compilers(ThreadPoolExecutor(at_once, "jaxmono-compile"), _at_the_end())
                finishes = {key: begun(job, config, pool) for key, job in jobs.items()}
                outcomes = {key: _outcome(finish) for key, finish in finishes.items()}
                pool.threads.shutdown(wait=False)
            if _at_the_end().is_set():
                outcomes = {}  # cancelled
                return
            _log.info("%s: kernels made in %.1f s; the next call has them", name,
                      time.perf_counter() - start)
        finally:
            self._done(jobs, outcomes, time.perf_counter() - start)

    def _done(self, jobs: Iterable[Hashable], outcomes: Mapping[Hashable, Built | Exception],
              seconds: float) -> None:
        """Gives what was made, and has the function lowered again: of several threads by the last,
        or one that took long, since it is lowered again for all types of arguments.

        What has no outcome is as if nobody had begun with it.
        """
        with self._changed:
            for key in jobs:
                outcome = outcomes.get(key)
                if isinstance(outcome, Built):
                    self._made[key].set_result(outcome)
                elif outcome is not None:
                    self._made[key].set_exception(outcome)
                else:
                    del self._made[key]
            self._building -= 1
            due = bool(outcomes) and (not self._building or seconds > _LONG_S)
        try:
            # In front of who waits, so that what is called then has the kernels; and without the
            # lock, which a lowering may ask for.
            if due and self.renew is not None and not _at_the_end().is_set():
                self.renew()
        finally:
            with self._changed:
                self._pending -= 1
                self._changed.notify_all()


def _outcome(finish: Callable[[], Built]) -> Built | Exception:
    try:
        return finish()
    except Exception as error:
        return error if isinstance(error, CompileError) else CompileError(
            f"{type(error).__name__}: {error}")


@functools.lru_cache(maxsize=1)
def _at_the_end() -> threading.Event:
    """Set when the main thread is done. Python then waits for threads of pools, and these for
    compilers that nobody needs any more: ``atexit`` comes behind that, so this is registered where
    `concurrent.futures` registers its waiting, and what is registered last comes first.

    Raises:
      RuntimeError: it is too late for that.
    """
    ended = threading.Event()
    vars(threading)["_register_atexit"](ended.set)
    return ended
