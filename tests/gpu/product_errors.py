"""Products on a real GPU beside XLA's and exact sums."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np

import jaxmono


def check(product: Any, spec: str, x: Any, args: tuple[Any, ...], wide: Any) -> None:
    """The same bits each time, and no further from exact sums than XLA's."""
    step = jaxmono.jit(product, on_unsupported="error")
    found = {np.asarray(step(x, *args)).tobytes() for _ in range(4)}
    assert len(found) == 1
    exact = np.einsum(spec, x.astype(np.float64), np.asarray(wide, np.float64))
    size = np.abs(exact).mean()
    ours = np.abs(np.asarray(step(x, *args)) - exact).max() / size
    theirs = np.abs(np.asarray(jax.jit(product)(x, *args)) - exact).max() / size
    assert ours <= max(1.5 * theirs, 1e-4), (ours, theirs)
