"""What a build asks of the tuner: which cache, whether to measure, for whom to report."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Generator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import asdict, dataclass, field
from functools import lru_cache
from pathlib import Path

from jaxmono import _compat, _config, _logging
from jaxmono._config import Config
from jaxmono._device import Facts, gpu_ordinal
from jaxmono._errors import warn
from jaxmono._key import compiler_version, generator_version
from jaxmono.fusion.plan import Plan
from jaxmono.hlo.fingerprint import fingerprint
from jaxmono.hlo.ir import Graph
from jaxmono.tuning import Beside, Conditions, ProblemReport, Tuner, TuningCache
from jaxmono.tuning.cache import NAME
from jaxmono.tuning.driver_version import driver_version
from jaxmono.tuning.profiler import GpuProfiler
from jaxmono.tuning.tuner import Choices

_log = _logging.get("tuning")


@dataclass
class Request:
    """A `jaxmono.tune` in progress: the builds inside it measure, and report here.

    Attributes:
      seconds: for each kernel; None: ``JAXMONO_TUNE_SECONDS``.
    """

    seconds: float | None = None
    reports: list[ProblemReport] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


_active: ContextVar[Request | None] = ContextVar("jaxmono_tune", default=None)


@contextmanager
def tuning(seconds: float | None) -> Generator[Request]:
    """Builds in the body measure what the cache lacks, whatever ``JAXMONO_TUNE`` says."""
    request = Request(seconds)
    token = _active.set(request)
    try:
        yield request
    finally:
        _active.reset(token)


def is_on(config: Config) -> bool:
    """Whether builds measure what the cache lacks."""
    return _active.get() is not None or config.tune == "on"


def choices(key: str, facts: Facts, config: Config, plan: Callable[[], Plan]) -> Choices:
    """The measured schedules for the kernel of a key; none where tuning has no part in it.

    Whatever goes wrong here costs a warning line and the kernel gets the analytic schedules.
    """
    request = _active.get()
    mode = "on" if is_on(config) else config.tune
    if mode == "off" or facts.target.kind != "cuda" or not facts.here:
        return Choices()
    seconds = request.seconds if request is not None else None
    tuner = Tuner(
        _kept(config), _profiler if mode == "on" else None,
        seconds=config.tune_seconds if seconds is None else seconds,
        reporting=request is not None)
    try:
        return tuner.choices(key, conditions(facts), plan)
    except Exception as error:
        _log.debug("tuning failed", exc_info=error)
        warn(f"jaxmono: choosing measured schedules failed ({type(error).__name__}: {error}); the "
             f"kernel uses the ones that need no measurement. JAXMONO_TUNE=off does not try",
             stacklevel=4)
        return Choices()
    finally:
        if request is not None:
            request.reports += tuner.reports
            request.notes += tuner.notes


def function_key(graph: Graph, facts: Facts, mode: str) -> str:
    """What the time of a function by its kernels, and by XLA's program, is kept under."""
    fields = {"graph": fingerprint(graph), "mode": mode, "jaxlib": _compat.JAXLIB,
              "flags": _config.xla_flags(), "conditions": asdict(conditions(facts))}
    return hashlib.sha256(json.dumps(fields, sort_keys=True).encode()).hexdigest()


def timed_before(key: str, config: Config) -> Beside | None:
    """What `function_key` stands for took; None if nobody knows."""
    return _kept(config).function(key)


def keep(key: str, found: Beside, config: Config) -> None:
    """For `timed_before` and `left_to_xla`, in this process and others."""
    _kept(config).put_function(key, found)


def left_to_xla(graph: Graph, facts: Facts, mode: str, config: Config) -> str:
    """Why XLA runs a function: it was timed, and XLA's program of it is faster. "" elsewhere, and
    while it is tuned."""
    if config.tune == "off" or _active.get() is not None or not facts.here \
            or not _kept(config).has_functions:
        return ""
    found = timed_before(function_key(graph, facts, mode), config)
    if found is None or not found.xla_wins:
        return ""
    return (f"jaxmono.tune timed it on {facts.device.name}: {found.kernels_us:.2f} us by its "
            f"kernels, {found.xla_us:.2f} us by XLA's program; JAXMONO_TUNE=off or "
            f"on_unsupported='error' runs the kernels")


def conditions(facts: Facts) -> Conditions:
    """What measurements on this device, with this jaxmono and this compiler, hold for."""
    return Conditions(facts.device, facts.target, driver_version(), generator_version(),
                      compiler_version(facts.target))


def _profiler() -> GpuProfiler:
    return GpuProfiler(device=gpu_ordinal())


def _kept(config: Config) -> TuningCache:
    kept = config.cache and config.cache_max_bytes > 0
    return _cache(config.cache_dir / NAME if kept else None)


@lru_cache(maxsize=4)
def _cache(path: Path | None) -> TuningCache:
    return TuningCache(path)
