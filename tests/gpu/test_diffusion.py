"""A level of Stable Diffusion's UNet on a GPU, as two kernels at most and as several."""

from __future__ import annotations

import numpy as np
import pytest
from small_models import jitted, relative_errors, unet_data

from benchmarks.data import Data
from examples.models import unet
from jaxmono.fusion import region_size

LEVEL = unet.UNetConfig((320,), blocks=1)
"""With 64 x 64 places: large products that are gated, sums of groups in two steps."""


def check(case: Data, kernels: range) -> None:
    step = jitted(case)
    told = step.lower(*case.arguments()).compile().explain()
    assert told.kernels in kernels and not told.refused, str(told)
    ours, xla = relative_errors(case, step, jitted(case, "xla"))
    assert ours <= 1.2 * xla, (ours, xla)
    outs = [np.asarray(step(*case.arguments())[0]) for _ in range(20)]
    assert len({x.tobytes() for x in outs}) == 1


@pytest.mark.parametrize("dtype", ["bf16", "f16"])
def test_a_level_is_right(dtype: str) -> None:
    check(unet_data(2, LEVEL, dtype=dtype), range(1, 3))


def test_a_tiny_one_of_f32_is_right() -> None:
    check(unet_data(3, unet.tiny(), dtype="f32"), range(1, 3))


def test_several_kernels_are_as_right(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(region_size, "MOST_LINES", 1600)
    monkeypatch.setattr(region_size, "LEAST_US", 0.0)
    check(unet_data(2, LEVEL), range(3, 9))
