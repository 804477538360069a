"""Clocks at the barriers of a kernel: the source still compiles, and every stage has its name."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from benchmarks import ahead, select, stages
from jaxmono.codegen.nvrtc import compile_cuda


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
    sites = len(re.findall(r"grid_(?:barrier|wait)\(&barrier_state", program.source))
    assert source.count("jm_mark(1, jm_stage++);") == sites + 1
    assert source.count("jm_mark(0, jm_stage);") == sites + 1
    assert compile_cuda(source, "sm_90a").cubin
    names = re.findall(r"^ *// (stage [^:\n]*: .*)$", source, flags=re.M)
    told = stages.labels(names, program.stages)
    assert [int(t.split(":")[0]) for t in told] == list(range(program.stages))


def test_a_loop_names_the_stages_of_all_its_trips() -> None:
    told = stages.labels(["stage 0: a", "stage 1 + 2 * trip: b", "stage 2 + 2 * trip: c",
                          "stage 5: d"], 6)
    assert told == ["0: a", "1: b", "2: c", "3: b", "4: c", "5: d"]
