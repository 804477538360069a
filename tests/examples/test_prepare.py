"""Kernels compiled ahead are those that a machine with the GPU asks its cache for."""

from __future__ import annotations

from pathlib import Path

import pytest

import jaxmono
from benchmarks import data, prepare, select
from jaxmono import _device
from jaxmono._device import facts_for
from jaxmono.codegen.target import cuda_target
from jaxmono.custom_call import cache


class Gpu:
    """As JAX tells of an H200."""

    device_kind = "NVIDIA H200"
    compute_capability = "9.0"
    core_count = 132


def test_facts_are_those_of_the_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_device, "_local_gpu", Gpu)
    assert prepare.gpu_facts("NVIDIA H200") == facts_for("cuda", interpret=False)
    assert facts_for("cuda", interpret=False).target == cuda_target("sm_90a")


def test_a_kernel_compiled_ahead_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JAXMONO_CACHE_DIR", str(tmp_path))
    (case,) = select.cases(["mlp"], ["1"], ["bf16"], tiny=True)
    facts = prepare.gpu_facts("NVIDIA H200")
    assert prepare.prepare(case, "monolithic", facts) == (1, 0)
    found = cache.current()
    assert found is not None and len(found.entries()) == 1
    # What the driver there does: a lowering of the same call, with a GPU.
    monkeypatch.setattr(_device, "_local_gpu", Gpu)
    program, arguments = data.abstract(case)
    jaxmono.jit(program.step, donate_argnums=1, mode="monolithic").trace(*arguments).lower(
        lowering_platforms=("cuda",))
    assert len(found.entries()) == 1, "another key"
