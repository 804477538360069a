"""Tests on a real GPU. They are collected only when asked for, with ``pytest -m gpu``."""

from __future__ import annotations

import os
from pathlib import Path

# Before JAX starts a GPU backend: several processes share the GPU. Where there are several GPUs,
# the workers of pytest-xdist (gw0, gw1, ...) take one each, in turn.
os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")
if "PYTEST_XDIST_WORKER" in os.environ:
    os.environ.setdefault("CUDA_VISIBLE_DEVICES", str(
        int(os.environ["PYTEST_XDIST_WORKER"].removeprefix("gw"))
        % max(len(list(Path("/dev").glob("nvidia[0-9]*"))), 1)))

import jax
import pytest

HERE = Path(__file__).parent


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--programs", type=int, default=2000,
                     help="how many random programs tests/gpu runs")


def asked_for(config: pytest.Config) -> bool:
    wanted = str(config.getoption("-m"))
    return "gpu" in wanted and "not gpu" not in wanted


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    return None if asked_for(config) else True


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    mine = [item for item in items if HERE in item.path.parents]
    for item in mine:
        item.add_marker("gpu")
    if mine and jax.default_backend() == "cpu":  # else XLA's results are compared with themselves
        raise pytest.UsageError("tests/gpu was asked for, but JAX sees no GPU here; install "
                                "jax[cuda13], or leave -m gpu and files of tests/gpu out")
