"""Every environment variable of jaxmono, validated in one place.

`SETTINGS` is the table (README.md shows it; scripts/update_readme.py writes it there);
`read()` gives the values as a frozen `Config`. Variables are read when they are needed, not at
import, so a test or a notebook may change them between two compilations.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from jaxmono._errors import ConfigError, close_matches, one_of, warn

TOPICS = ("api", "driver", "hlo", "fusion", "codegen", "custom_call", "cache", "tuning")
"""Topics that ``JAXMONO_LOGS`` can choose."""

_ON = ("1", "on", "true", "yes")
_OFF = ("0", "off", "false", "no")
TUNE_MODES = ("cached", "on", "off")
_LEVELS = {"debug": 10, "info": 20, "warning": 30, "error": 40}
_UNITS = {"": 1, "k": 10**3, "m": 10**6, "g": 10**9, "kb": 10**3, "mb": 10**6, "gb": 10**9,
          "kib": 2**10, "mib": 2**20, "gib": 2**30}


@dataclass(frozen=True)
class LogSpec:
    """``level``: a level of Python's logging; ``topics``: empty means all."""

    level: int
    topics: tuple[str, ...]


@dataclass(frozen=True)
class Config:
    """The settings of this process at one moment (see `SETTINGS` for their meaning)."""

    logs: LogSpec | None
    dump_to: Path | None
    cache: bool
    cache_dir: Path
    cache_max_bytes: int
    compile_seconds: int
    interpret_blocks: int
    interpret_seed: int
    tune: str
    tune_seconds: int


@dataclass(frozen=True)
class Setting:
    """One environment variable.

    Attributes:
      name: the variable.
      field: the field of `Config` that it sets.
      parse: text to value; raises ValueError whose message says what is accepted.
      default: the value when the variable is unset or empty, for the documentation.
      fallback: computes that value.
      doc: one line for the documentation.
    """

    name: str
    field: str
    parse: Callable[[str], Any]
    default: str
    fallback: Callable[[], Any]
    doc: str


def _parse_switch(text: str) -> bool:
    low = text.strip().lower()
    if low in _ON or low in _OFF:
        return low in _ON
    raise ValueError(f"write {one_of(_ON)} to switch it on, {one_of(_OFF)} to switch it off")


def _parse_tune(text: str) -> str:
    low = text.strip().lower()
    if low not in TUNE_MODES:
        raise ValueError(f"write {one_of(TUNE_MODES)}.{close_matches(low, TUNE_MODES)}")
    return low


def _parse_logs(text: str) -> LogSpec | None:
    level, *topics = (part.strip().lower() for part in text.split(","))
    if level in _OFF:
        return None
    if level not in _LEVELS:
        raise ValueError(f"{level!r} is no level; write 'LEVEL' or 'LEVEL,TOPIC,...' with LEVEL "
                         f"{one_of(_LEVELS)}.{close_matches(level, _LEVELS)}")
    for topic in topics:
        if topic not in TOPICS:
            raise ValueError(f"{topic!r} is no topic; the topics are {one_of(TOPICS)}."
                             f"{close_matches(topic, TOPICS)}")
    return LogSpec(_LEVELS[level], tuple(topics))


def _parse_dir(text: str) -> Path:
    path = Path(text).expanduser()
    if path.exists() and not path.is_dir():
        raise ValueError("it is a file; name a directory (it is made when missing)")
    return path


def _parse_bytes(text: str) -> int:
    low = text.strip().lower().replace("_", "")
    digits = low.rstrip("bgikm ")
    unit = low[len(digits):].strip()
    if not digits.isdigit() or unit not in _UNITS:
        raise ValueError("write a number of bytes, e.g. '1073741824', '500MB' or '2GiB'")
    return int(digits) * _UNITS[unit]


def _parse_int(low: int, high: int) -> Callable[[str], int]:
    def parse(text: str) -> int:
        try:
            number = int(text.strip(), 0)
        except ValueError:
            raise ValueError(f"write an integer from {low} to {high}") from None
        if not low <= number <= high:
            raise ValueError(f"it must be from {low} to {high}")
        return number

    return parse


def _default_cache_dir() -> Path:
    base = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    return Path(base).expanduser() / "jaxmono"


SETTINGS: tuple[Setting, ...] = (
    Setting("JAXMONO_LOGS", "logs", _parse_logs, "off", lambda: None,
            "`LEVEL[,TOPIC...]`: log records on standard error; topics: " + ", ".join(TOPICS)),
    Setting("JAXMONO_DUMP_TO", "dump_to", _parse_dir, "off", lambda: None,
            "a directory that receives hlo, plan, source and resource report of every program"),
    Setting("JAXMONO_CACHE", "cache", _parse_switch, "on", lambda: True,
            "`off` compiles every kernel anew and leaves the disk alone"),
    Setting("JAXMONO_CACHE_DIR", "cache_dir", _parse_dir, "`$XDG_CACHE_HOME/jaxmono`",
            _default_cache_dir, "where compiled kernels and measured schedules are kept "
            "(`~/.cache/jaxmono` without XDG)"),
    Setting("JAXMONO_CACHE_MAX_BYTES", "cache_max_bytes", _parse_bytes, "1GiB", lambda: 2**30,
            "the least recently used kernels are removed above this size; `0` keeps none"),
    Setting("JAXMONO_COMPILE_SECONDS", "compile_seconds", _parse_int(1, 86400), "900", lambda: 900,
            "how long one run of NVRTC may take; XLA runs what takes longer. Not where a program "
            "embeds Python: there is none to start, and NVRTC runs inside"),
    Setting("JAXMONO_INTERPRET_BLOCKS", "interpret_blocks", _parse_int(1, 64), "4", lambda: 4,
            "thread blocks that the SIMT interpreter runs side by side"),
    Setting("JAXMONO_INTERPRET_SEED", "interpret_seed", _parse_int(0, 2**64 - 1), "0", lambda: 0,
            "seed of the order in which the interpreter runs threads; vary it to look for races"),
    Setting("JAXMONO_TUNE", "tune", _parse_tune, "cached", lambda: "cached",
            "`cached` uses the schedules that were measured before; `on` also measures what is "
            "missing when a kernel is built; `off` uses neither"),
    Setting("JAXMONO_TUNE_SECONDS", "tune_seconds", _parse_int(1, 86400), "120", lambda: 120,
            "how long measuring may take for one kernel; what is left is measured another time"),
)


def read(environ: Mapping[str, str] | None = None) -> Config:
    """The settings that ``environ`` (default: this process's environment) holds now.

    Raises:
      ConfigError: a variable has a value that it cannot have; names it, the value, what is
        accepted.
    """
    env = os.environ if environ is None else environ
    values: dict[str, Any] = {}
    for setting in SETTINGS:
        text = env.get(setting.name, "")
        if not text.strip():
            values[setting.field] = setting.fallback()
            continue
        try:
            values[setting.field] = setting.parse(text)
        except ValueError as error:
            raise ConfigError(f"environment variable {setting.name}={text!r}: {error}") from None
    known = {setting.name for setting in SETTINGS}
    for name in env:
        if name.startswith("JAXMONO_") and name not in known:
            _warn_unknown(name)
    return Config(**values)


_SAME_BITS = ("xla_gpu_deterministic_ops", "xla_gpu_exclude_nondeterministic_ops")


def xla_flags(environ: Mapping[str, str] | None = None) -> tuple[str, ...]:
    """Those of ``XLA_FLAGS``, in order: of equal ones the last counts."""
    return tuple((os.environ if environ is None else environ).get("XLA_FLAGS", "").split())


def same_bits_on_every_run(environ: Mapping[str, str] | None = None) -> bool:
    """Whether ``XLA_FLAGS`` asks XLA for deterministic kernels, and thus jaxmono."""
    asked: dict[str, bool] = {}
    for flag in xla_flags(environ):
        name, _, value = flag.lstrip("-").partition("=")
        asked[name] = value.lower() not in ("false", "0")
    return any(asked.get(name, False) for name in _SAME_BITS)


@cache
def _warn_unknown(name: str) -> None:
    known = [setting.name for setting in SETTINGS]
    warn(f"environment variable {name} is not one of jaxmono and does nothing."
         f"{close_matches(name, known)} The variables are {', '.join(known)}.", stacklevel=3)


def table() -> str:
    """The settings as a Markdown table, for README.md."""
    lines = ["| variable | default | meaning |", "|---|---|---|"]
    lines += [f"| `{s.name}` | {s.default} | {s.doc} |" for s in SETTINGS]
    return "\n".join(lines)
