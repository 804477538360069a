"""Clocks at the borders of stages: the source still compiles, and every stage has its name."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest

from benchmarks import ahead, chain, clocks, moments, select, stages
from benchmarks.ablate import MissingText
from jaxmono.codegen.nvrtc import compile_cuda


@pytest.mark.slow
@pytest.mark.parametrize("model", ["bert_base", "opt_decode"])
def test_every_barrier_has_clocks_and_every_stage_a_name(
        model: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With producer warps and loops, and without."""
    monkeypatch.setenv("JAXMONO_CACHE_DIR", str(tmp_path))
    (case,) = select.cases([model], ["1"], ["bf16"], tiny=True)
    (built,) = ahead.prepare(case, "monolithic", ahead.gpu_facts("NVIDIA H200"))
    program = built.program
    assert program is not None and program.barriers
    source = stages.marked(program.source)
    sites = len(re.findall(r"grid_(?:barrier|wait)(?:<[\w, ]+>)?\(&barrier_state|// open border$",
                           program.source, re.M))
    assert source.count("jm_mark(1, jm_stage++);") == sites + 1
    assert source.count("jm_mark(0, jm_stage);") == sites + 1
    assert compile_cuda(source, "sm_90a").cubin
    told = clocks.names(program)
    assert [int(t.split(":")[0]) for t in told] == list(range(program.stages))


def test_products_have_clocks_at_all_moments(tmp_path: Path,
                                             monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JAXMONO_CACHE_DIR", str(tmp_path))
    (case,) = select.cases(["dot_512_768_768"], ["1"], ["bf16"], tiny=False)
    (built,) = ahead.prepare(case, "monolithic", ahead.gpu_facts("NVIDIA H200"))
    program = built.program
    assert program is not None
    source = moments.clocked(program.source, 3)
    for number, name in enumerate(moments.MOMENTS):
        assert f"jm_at({number}, " in source, name
    made = compile_cuda(source, "sm_90a")
    assert made.cubin and made.static_shared >= 7 * 3 * 4 and not made.spill_stores
    with pytest.raises(MissingText, match="not once: int before = -1;"):
        moments.clocked(program.source.replace("int before = -1;", "int before = -2;"), 3)
    with pytest.raises(MissingText, match="no jaxmono/gemm_wgmma"):
        moments.clocked("int main() {}", 3)


def test_moments_of_two_blocks() -> None:
    """1 cycle a nanosecond; the second block has no task in the last stage; clocks wrap."""
    size = len(moments.MOMENTS)
    kept = np.zeros((size, 2, 2), np.int64)
    kept[-1] = [[-500 & 0xffffffff, -400 & 0xffffffff], [3500, 3600]]
    arrived = moments.MOMENTS.index("arrived")
    kept[0, 0] = [-300 & 0xffffffff, 100]
    kept[arrived] = [[2500, 2600], [4500, 3700]]
    kept[0, 1] = [3600, 0]
    first, last = moments.lines([kept], [5.0])
    assert first.split() == ["4.00", "us", "ready", "0.35", "0.50", "arrived", "3.00", "3.00",
                             "wait", "1.00"]
    assert last.split() == ["1.00", "us", "ready", "0.10", "0.10", "arrived", "0.55", "1.00",
                            "wait", "0.00"]


def test_a_loop_names_the_stages_of_all_its_trips() -> None:
    told = clocks.labels(["stage 0: a", "stage 1 + 2 * trip: b", "stage 2 + 2 * trip: c",
                          "stage 5: d"], 6)
    assert told == ["0: a", "1: b", "2: c", "3: b", "4: c", "5: d"]


@pytest.mark.slow
def test_a_decode_step_has_clocks_from_values_to_values(
        tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """x as it is, and normalised by one or two reduces; a stage's begin and end."""
    monkeypatch.setenv("JAXMONO_CACHE_DIR", str(tmp_path))
    (case,) = select.cases(["gpt2_decode"], ["1"], ["bf16"], tiny=True)
    (built,) = ahead.prepare(case, "monolithic", ahead.gpu_facts("NVIDIA H200"))
    program = built.program
    assert program is not None
    source = chain.marked(program.source)
    assert source is not None
    bodies = re.findall(r"^JM_\w+ void f\d+_(?!\w*_prefetch)\w*\([^;]*?\{\n(?:.|\n)*?^\}", source,
                        re.M)
    products = [x for x in bodies if "using G = Gemv<" in x and "Flagged<bf16> p0" in x]
    assert products
    for body in products:
        clocks_of = [body.count(f"jm_moment({k});") for k in range(4)]
        assert clocks_of[0] == clocks_of[2] == clocks_of[3] == 1, body
        assert clocks_of[1] == ("combine_block<" in body), body
    assert compile_cuda(source, "sm_90a").cubin
    assert chain.marked("int main() {}") is None
