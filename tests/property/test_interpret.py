"""Random programs as generated kernels in the SIMT interpreter, against XLA and NumPy.

Every batch is one kernel. The grid and the order in which the interpreter runs threads change
from batch to batch, so a missing barrier has a chance to show.
"""

from __future__ import annotations

import batches
import jax
import pytest

PROGRAMS = 320
FLAGGED = (154, 185, 229)
"""Behind those, with values that have flags, as 61 of the GPU's 306 batches. The first one waited
for what a pad puts in place of rows."""

FEW = (0, 2, 4, 5, 6, 7, 9, 12, *FLAGGED)
"""Every kind of batch, that of any program three times. CI runs the first and one with flags,
`make test-all` these and the rest."""


@pytest.mark.sampled(10)
@pytest.mark.parametrize("number", [
    n if n in FEW else pytest.param(n, marks=pytest.mark.slow)
    for n in (*batches.numbers(PROGRAMS), *FLAGGED)])
def test_batch(number: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JAXMONO_INTERPRET_BLOCKS", str(1 + number % 5))
    monkeypatch.setenv("JAXMONO_INTERPRET_SEED", str(number))
    problems = batches.check(batches.batch(number), interpret=True)
    jax.clear_caches()
    assert not problems, "\n\n".join(problems[:3])


def test_there_are_at_least_300_programs_of_every_kind() -> None:
    all_ = [batches.batch(n) for n in batches.numbers(PROGRAMS)]
    programs = [p for b in all_ for p in b.programs]
    assert len(programs) >= 300
    assert {b.kind.name for b in all_} == {k.name for k in batches.KINDS}
    dtypes = {a.dtype.name for p in programs for a in p.args}
    assert {"bfloat16", "float16", "float32", "float64", "int8", "uint8", "int16", "uint16",
            "int32", "uint32", "int64", "uint64", "bool"} <= dtypes
    assert {op for p in programs for op in p.ops} == set(batches.ALL_OPS)


def test_a_few_batches_have_every_kind_and_op() -> None:
    all_ = [batches.batch(n) for n in FEW]
    assert {b.kind.name for b in all_} == {k.name for k in batches.KINDS}
    assert {op for b in all_ for p in b.programs for op in p.ops} == set(batches.ALL_OPS)
