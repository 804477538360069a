"""The exceptions and the warning category of the public face.

Every message names what was wrong (argument, variable, op), the value found, and the next step.
"""

from __future__ import annotations

import difflib
import warnings
from collections.abc import Iterable


class JaxmonoError(Exception):
    """Base of all errors that jaxmono raises by design."""


class ConfigError(JaxmonoError, ValueError):
    """An environment variable of jaxmono has a value that it cannot have."""


class UnsupportedError(JaxmonoError):
    """``on_unsupported="error"`` and a part of the program would have gone to XLA."""


class CompileError(JaxmonoError):
    """A kernel could not be planned, generated, compiled or loaded."""


class JaxmonoWarning(UserWarning):
    """One line: jaxmono could not do its part, and XLA runs the program instead."""


def warn(message: str, *, stacklevel: int = 2) -> None:
    """Issues ``message`` as one line under `JaxmonoWarning`."""
    line = " ".join(message.split())
    warnings.warn(line, JaxmonoWarning, stacklevel=stacklevel + 1)


def close_matches(name: str, known: Iterable[str]) -> str:
    """`` Did you mean 'a' or 'b'?`` for a misspelt name; empty when nothing is near."""
    near = difflib.get_close_matches(name, sorted(known), n=3, cutoff=0.6)
    return f" Did you mean {' or '.join(repr(n) for n in near)}?" if near else ""


def one_of(accepted: Iterable[object]) -> str:
    """``'a', 'b' or 'c'``: the accepted values of an argument, for a message."""
    shown = [repr(a) for a in accepted]
    return shown[0] if len(shown) == 1 else f"{', '.join(shown[:-1])} or {shown[-1]}"
