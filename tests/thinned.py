"""Long lists of parameters, of which CI runs a part."""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from typing import Any

import pytest


def thinned(values: Iterable[Any], keep: int = 3) -> list[Any]:
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


def thinned_rows(values: Iterable[tuple[Any, ...]], keep: int = 3) -> list[Any]:
    """`thinned`, where a value is one of each of several parameters."""
    return thinned((pytest.param(*v) for v in values), keep)


def crossed(*axes: tuple[str | tuple[str, ...], Iterable[Any]]) -> pytest.MarkDecorator:
    """All combinations of the values of some parameters, each named (or several at once: its values
    are tuples then). CI runs as many as the longest axis has values, and every value of each."""
    names = [n for name, _ in axes for n in ([name] if isinstance(name, str) else name)]
    values = [list(v) for _, v in axes]
    kept = {tuple(i % len(v) for v in values) for i in range(max(map(len, values)))}
    out: list[Any] = []
    for places in itertools.product(*(range(len(v)) for v in values)):
        row: list[Any] = []
        for (name, _), v, i in zip(axes, values, places, strict=True):
            row += [v[i]] if isinstance(name, str) else v[i]
        out.append(pytest.param(*row, marks=() if places in kept else pytest.mark.slow))
    return pytest.mark.parametrize(names, out)
