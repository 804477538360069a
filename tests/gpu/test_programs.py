"""Random programs on a GPU against XLA and the NumPy reference."""

from __future__ import annotations

import jax
import pytest
from programs import Mismatch, random_program

import jaxmono

CHUNK = 25


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "seeds" in metafunc.fixturenames:
        count = int(metafunc.config.getoption("--programs", default=2000))
        starts = range(0, count, CHUNK)
        metafunc.parametrize("seeds", [range(s, min(s + CHUNK, count)) for s in starts],
                             ids=[f"from-{s}" for s in starts])


def test_random_programs(seeds: range) -> None:
    wrong: list[str] = []
    for seed in seeds:
        program = random_program(seed)
        try:
            program.check(jax.device_get(jaxmono.jit(program.fun)(*program.args)))
        except Mismatch as mismatch:
            wrong.append(f"seed {seed}: {mismatch}")
        except Exception as error:
            # The other seeds of the chunk are still worth knowing.
            wrong.append(f"seed {seed}: {type(error).__name__}: {error}\n{program}")
    jax.clear_caches()
    assert not wrong, f"{len(wrong)} of {len(seeds)}\n" + "\n\n".join(wrong[:3])
