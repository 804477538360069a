"""Back-to-back contractions and batched convolution networks on a GPU: as right as XLA."""

from __future__ import annotations

import pytest
from small_models import jitted, relative_errors

from benchmarks import data
from benchmarks.workloads import find

CASES = [*((f"b2b_gemm_{i}", 1) for i in range(1, 5)),
         *((f"b2b_conv_{i}", 32) for i in (1, 2, 3, 5)),
         ("resnet50", 4), ("resnet50", 32), ("repvggaug_a0", 32)]


@pytest.mark.parametrize(("name", "batch"), CASES)
def test_as_right_as_xla(name: str, batch: int) -> None:
    workload = find(name)
    case = data.make(data.Case(workload, batch, workload.dtype))
    told = jitted(case).lower(*case.arguments()).compile().explain()
    assert told.kernels == 1 and not told.refused, str(told)
    if name != "resnet50":  # of its 46 stages, some values live through all of them
        assert not sum(k.spill_bytes or 0 for k in told.planned), str(told)
    for turn in range(3):  # each time in other memory
        ours, xla = relative_errors(case, jitted(case), jitted(case, "xla"))
        assert ours <= 1.25 * xla + 1e-3, (turn, ours, xla)
