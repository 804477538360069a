"""Logging: one logger per topic under ``jaxmono``, switched on by ``JAXMONO_LOGS``.

    JAXMONO_LOGS=info              every topic at INFO and above, on standard error
    JAXMONO_LOGS=debug,driver      the topic ``driver`` at DEBUG
    JAXMONO_LOGS=debug,driver,cache

A program that configures Python's ``logging`` itself sees the same records under
``jaxmono.<topic>`` and needs no variable.
"""

from __future__ import annotations

import logging
import sys
import time
from collections.abc import Generator
from contextlib import contextmanager

from jaxmono import _config

_FORMAT = "%(asctime)s %(name)s %(levelname).1s %(message)s"
_handlers: list[tuple[logging.Logger, logging.Handler]] = []


def get(topic: str) -> logging.Logger:
    """The logger of a topic, e.g. ``get("driver")``."""
    return logging.getLogger(f"jaxmono.{topic}")


def configure() -> None:
    """Applies ``JAXMONO_LOGS``; called at import, and again after the variable has changed.

    Raises:
      ConfigError: the variable names an unknown level or topic.
    """
    while _handlers:
        logger, handler = _handlers.pop()
        logger.removeHandler(handler)
        logger.setLevel(logging.NOTSET)
        logger.propagate = True
    spec = _config.read().logs
    if spec is None:
        return
    names = [f"jaxmono.{topic}" for topic in spec.topics] or ["jaxmono"]
    for name in names:
        logger = logging.getLogger(name)
        handler = logging.StreamHandler(sys.stderr)
        handler.setFormatter(logging.Formatter(_FORMAT))
        handler.setLevel(spec.level)
        logger.addHandler(handler)
        logger.setLevel(spec.level)
        logger.propagate = False  # a program with a handler of its own would show it twice
        _handlers.append((logger, handler))


@contextmanager
def timed(logger: logging.Logger, what: str,
          into: dict[str, float] | None = None) -> Generator[None]:
    """Logs the seconds that a phase took at DEBUG and adds them to ``into[what]``."""
    start = time.perf_counter()
    try:
        yield
    finally:
        seconds = time.perf_counter() - start
        if into is not None:
            into[what] = into.get(what, 0.0) + seconds
        logger.debug("%s: %.4f s", what, seconds)
