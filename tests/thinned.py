"""Long lists of parameters, of which CI runs a part."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest


def thinned(values: Iterable[Any], keep: int = 2) -> list[Any]:
    """All values, one in ``keep`` for CI; the others are marked slow: `make test-all` runs them."""
    out: list[Any] = []
    for i, v in enumerate(values):
        if i % keep == 0:
            out.append(v)
        elif hasattr(v, "marks"):
            out.append(pytest.param(*v.values, id=v.id, marks=[*v.marks, pytest.mark.slow]))
        else:
            out.append(pytest.param(v, marks=pytest.mark.slow))
    return out
