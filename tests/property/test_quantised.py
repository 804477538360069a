"""Random programs that multiply by weights of 4 and 8 bits with scales of features and of groups,
against XLA and NumPy: as in test_interpret.py, but a kernel each."""

from __future__ import annotations

import jax
import pytest
from programs import random_program

import jaxmono

OPS = (*["quantised"] * 4, "unary", "binary", "transpose", "reshape", "reduce", "concatenate")


@pytest.mark.sampled(16)
@pytest.mark.filterwarnings("error::jaxmono.JaxmonoWarning")
@pytest.mark.parametrize("seed", range(96))
def test_program(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JAXMONO_INTERPRET_BLOCKS", str(1 + seed % 5))
    monkeypatch.setenv("JAXMONO_INTERPRET_SEED", str(seed))
    program = random_program(seed, ops=OPS, dtypes=("bf16", "f32") if seed % 2 else ("f16", "bf16"),
                             steps=5, large=seed % 4 == 3)
    program.check(jaxmono.jit(program.fun, interpret=True)(*program.args))
    jax.clear_caches()


def test_most_have_such_weights() -> None:
    programs = [random_program(seed, ops=OPS, steps=5) for seed in range(64)]
    assert sum("quantised" in p.ops for p in programs) >= 40
