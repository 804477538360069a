"""How far results are from an f32 reference."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import jax
import numpy as np

from benchmarks.cases import Case
from benchmarks.sides import fresh


@dataclass(frozen=True)
class Error:
    """Over all input sets: ``relative`` is the worst |x - ref| / |ref| (2-norms) of any result
    or updated cache; ``largest`` the largest absolute difference of the results;
    ``lowest_cosine`` of any row, for normalised results."""

    relative: float
    largest: float
    lowest_cosine: float | None


def references(case: Case) -> list[tuple[Any, Any]]:
    """``(out, carry)`` of the f32 model at the highest dot precision, for each input set."""
    with jax.default_matmul_precision("highest"):
        function = jax.jit(case.reference)
        return [jax.device_get(function(case.reference_state, case.carry, *inputs))
                for inputs in case.inputs]


def error(case: Case, function: Any, wanted: list[tuple[Any, Any]]) -> Error:
    """The error of a compiled step."""
    relative, largest, cosine = 0.0, 0.0, 1.0
    for inputs, reference in zip(case.inputs, wanted, strict=True):
        got = jax.device_get(function(case.state, fresh(case.carry), *inputs))
        for ours, ref in zip(jax.tree.leaves(got), jax.tree.leaves(reference), strict=True):
            relative = max(relative, distance(ours, ref))
        out, ref = np.asarray(got[0], np.float64), np.asarray(reference[0], np.float64)
        largest = max(largest, _worst(np.abs(out - ref)))
        if case.normalised:
            norms = np.linalg.norm(out, axis=-1) * np.linalg.norm(ref, axis=-1)
            cosine = min(cosine, -_worst(-np.sum(out * ref, axis=-1) / norms))
    return Error(relative, largest, cosine if case.normalised else None)


def distance(ours: Any, reference: Any) -> float:
    """|ours - reference| / |reference|; infinite if anything is not finite."""
    x, y = np.asarray(ours, np.float64), np.asarray(reference, np.float64)
    if not np.isfinite(x).all():
        return float("inf")
    return float(np.linalg.norm(x - y) / max(float(np.linalg.norm(y)), 1e-300))


def _worst(values: Any) -> float:
    """The largest value; infinite if one is NaN, which `max` would lose."""
    return float("inf") if np.isnan(values).any() else float(np.max(values))
