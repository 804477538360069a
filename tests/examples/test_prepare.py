"""Kernels compiled ahead are those that a machine with the GPU asks its cache for."""

from __future__ import annotations

import json
import math
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

import jaxmono
from benchmarks import ahead, beside, data, select
from jaxmono import _config, _device
from jaxmono._build import OPTIONAL, build
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
    assert ahead.gpu_facts("NVIDIA H200") == facts_for("cuda", interpret=False)
    assert facts_for("cuda", interpret=False).target == cuda_target("sm_90a")


def test_a_kernel_compiled_ahead_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JAXMONO_CACHE_DIR", str(tmp_path))
    (case,) = select.cases(["mlp"], ["1"], ["bf16"], tiny=True)
    facts = ahead.gpu_facts("NVIDIA H200")
    (built,) = ahead.prepare(case, "monolithic", facts)
    assert not built.cached
    found = cache.current()
    assert found is not None and len(found.entries()) == 1
    # What the driver there does: a lowering of the same call, with a GPU.
    monkeypatch.setattr(_device, "_local_gpu", Gpu)
    program, arguments = data.abstract(case)
    jaxmono.jit(program.step, donate_argnums=1, mode="monolithic").trace(*arguments).lower(
        lowering_platforms=("cuda",))
    assert len(found.entries()) == 1, "another key"


@pytest.mark.slow
def test_kernels_are_compared_by_case(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JAXMONO_CACHE_DIR", "")  # prepare_all sets it: put back afterwards
    job = ("mlp", 1, "bf16", True, "monolithic", "NVIDIA H200")
    assert ahead.prepare_all([job], tmp_path / "before") == 0
    assert ahead.made_of(tmp_path / "before").startswith("commit ")
    shutil.copytree(tmp_path / "before", tmp_path / "after")
    found = list(beside.pairs([tmp_path / "before", tmp_path / "after"]))
    ((name, programs),) = found
    assert name == "mlp b1 bf16 monolithic" and list(programs) == ["before", "after"]
    assert beside.told({"before": (2.0, 0.0), "after": (1.0, 0.5)}) == \
        "before 2.00 us  after 1.00 us (0.500, outputs off by 5.0e-01)"
    (tmp_path / "after" / ahead.INDEX).write_text(json.dumps(
        {name: ahead.read(tmp_path / "after")[name] * 2}))
    assert not list(beside.pairs([tmp_path / "before", tmp_path / "after"]))
    ((name, kernels),) = beside.uneven([tmp_path / "before", tmp_path / "after"])
    assert name == "mlp b1 bf16 monolithic, 1 and 2 kernels"
    assert {label: len(x) for label, x in kernels.items()} == {"before": 1, "after": 2}
    assert beside.told({"before": (2.0, math.nan), "after": (1.0, math.nan)}) == \
        "before 2.00 us  after 1.00 us (0.500)"


def test_a_table_to_keep_says_what_was_measured(tmp_path: Path,
                                                monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(beside, "_TURNS", SimpleNamespace(value=9))
    for name, made in (("without", {"commit": "abc", "without": ["padding"]}), ("with", None)):
        (tmp_path / name).mkdir()
        if made:
            (tmp_path / name / ahead.MADE).write_text(json.dumps(made))
    stamp = {"date": "2026-11-22", "gpu": "H200", "driver": "580", "python": "3.12",
             "versions": {"jax": "0.11"}}
    found = {"padding_1": {"without": (3.0, 0.0), "with": (1.5, 2e-5)},
             "mlp": {"without": (2.0, 0.0)}}
    lines = beside.table([tmp_path / "without", tmp_path / "with"], found, stamp).splitlines()
    assert "gpu H200; driver 580" in lines[2] and "jax 0.11" in lines[2]
    assert lines[4:6] == ["- without: commit abc, without padding", "- with: commit unknown"]
    assert lines[7] == "| kernel | without us | with us | with / without | difference |"
    assert lines[9:] == ["| padding_1 | 3.00 | 1.50 | 0.500 | 2.0e-05 |", "| mlp | 2.00 |  | |  |"]


def _stages(name: str, **without: frozenset[str]) -> list[list[str]]:
    """Kinds of the groups of a full case's kernel, by stage."""
    (case,) = select.cases([name], [], [], tiny=False)
    (kernel,) = ahead.planned(case, "monolithic")
    job = replace(kernel.job, facts=ahead.gpu_facts("NVIDIA H200"), **without)
    return [[g.sig.kind for g in s.groups]
            for s in build(job, _config.read(), plan_only=True).plan.stages]


@pytest.mark.parametrize(("name", "fused", "apart"), [
    ("b2b_gemm_1", [["row"]], [["row"], ["dot"]]),  # too small for a block's tiles: element-wise
    ("b2b_gemm_3", [["attention"]], [["dot"], ["dot"]]),
    ("b2b_conv_6", [["attention"]], [["dot"], ["dot"]])])
def test_pairs_come_apart(name: str, fused: list[list[str]], apart: list[list[str]]) -> None:
    assert _stages(name) == fused
    assert _stages(name, without=frozenset(["back_to_back"])) == apart


def test_channels_stay_as_they_are() -> None:
    assert _stages("padding_5") == [["loop", "loop"], ["dot"]]
    assert _stages("padding_5", without=frozenset(["padding"])) == [["dot"]]
    # Of 46 channels an image is copied into shared memory as it lies (fusion/padded_images.py).
    assert _stages("padding_1") == [["dot"]]


def test_an_ablation_has_keys_of_its_own() -> None:
    (case,) = select.cases(["mlp"], ["1"], ["bf16"], tiny=True)
    (kernel,) = ahead.planned(case, "monolithic")
    keys = {build(replace(kernel.job, without=frozenset(names)), _config.read(), plan_only=True).key
            for names in ([], *([name] for name in OPTIONAL), OPTIONAL)}
    assert set(OPTIONAL) == {"back_to_back", "cache_rows", "channels_last", "dequantise",
                             "epilogue_reduces", "gated", "padding", "recompute", "round_rows",
                             "share_k", "window_rows"}
    assert len(keys) == 13


@pytest.mark.slow
def test_an_unknown_ablation_is_refused() -> None:
    told = subprocess.run(
        [sys.executable, "-m", "benchmarks.prepare", "--cache_dir=unused", "--models=mlp",
         "--without=pading"], capture_output=True, text=True, check=False)
    assert told.returncode == 2
    assert ("--without=pading: a kernel can be made without back_to_back, cache_rows, "
            "channels_last, dequantise, epilogue_reduces, gated, padding" in told.stderr)
