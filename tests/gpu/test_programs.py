"""Random programs on a GPU against XLA and the NumPy reference; ``--programs`` says how many."""

from __future__ import annotations

import batches
import jax
import pytest


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "number" in metafunc.fixturenames:
        count = int(metafunc.config.getoption("--programs", default=2000))
        metafunc.parametrize("number", batches.numbers(count))


def test_batch(number: int) -> None:
    problems = batches.check(batches.batch(number))
    jax.clear_caches()  # hundreds of loaded modules would stay on the GPU
    assert not problems, "\n\n".join(problems[:3])
