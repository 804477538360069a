"""Kernels without loads, products or epilogues: what runs still computes the rest."""

from __future__ import annotations

import functools
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from absl import flags
from absl.testing import flagsaver
from contraction_harness import build, dot_sigs, plan_of, small_integers
from harness import run_program

from benchmarks import ablate, ahead, beside, select
from jaxmono.codegen.dot_schedule import DotSchedule
from jaxmono.codegen.host_compiler import compile_host
from jaxmono.codegen.program import Program
from jaxmono.custom_call import cache
from jaxmono.hlo.interp import evaluate

Spec = jax.ShapeDtypeStruct
BF16, F32 = jnp.bfloat16, jnp.float32
FAMILIES = {
    "streamed": (BF16, DotSchedule("wgmma", 64, 48, 64, 3, (1, 1, 2))),
    "split": (BF16, DotSchedule("wgmma", 64, 48, 64, 3, (1, 1, 2), 2)),
    "fragments": (BF16, DotSchedule("wgmma", 128, 64, 64, 2, (2, 1, 1), 2)),
    "swapped": (BF16, DotSchedule("swapped", 16, 64, 64, 3, (1, 1, 2))),
    "tf32": (F32, DotSchedule("wgmma", 64, 48, 32, 4, (1, 1, 2))),
}


@functools.cache
def emulated(family: str) -> tuple[Program, list[Any], Any]:
    """A kernel of the emulator with one product, its inputs and its right output."""
    dtype, schedule = FAMILIES[family]
    m = 16 if family == "swapped" else 70
    plan = plan_of(lambda x, w: x @ w, Spec((m, 256), dtype), Spec((256, 64), dtype))
    program = build(plan, {s.key: schedule for s in dot_sigs(plan)}, threads=256)
    inputs = small_integers(plan.graph)
    return program, inputs, evaluate(plan.graph, inputs)[0]


def run(family: str, *parts: str) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    """(output, right output) as f32; without parts."""
    program, inputs, wanted = emulated(family)
    assert ablate.has_product(program.source)
    source = ablate.without(program.source, parts) if parts else program.source
    binary, _ = compile_host(source)
    (out,) = run_program(replace(program, source=source, binary=binary), inputs)
    return np.asarray(out, np.float32), np.asarray(wanted, np.float32)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("family", [
    f if f in ("streamed", "fragments") else pytest.param(f, marks=pytest.mark.slow)
    for f in FAMILIES])
def test_what_is_left_runs(family: str) -> None:
    """In the emulator, whose outputs are NaN before and whose shared memory is whatever it is."""
    out, wanted = run(family)
    np.testing.assert_array_equal(out, wanted)
    assert not run(family, "noproducts")[0].any()
    assert np.isnan(run(family, "noepilogue")[0]).all()
    assert not np.array_equal(run(family, "noload")[0], wanted)
    assert np.isnan(run(family, "noload", "noproducts", "noepilogue")[0]).all()


def test_a_source_operand_goes_with_the_epilogue() -> None:
    """Nobody would take what the producers bring; the block has several tasks."""
    plan = plan_of(lambda x, w, r: x @ w + r, *(Spec(s, BF16) for s in (
        (600, 136), (136, 128), (600, 128))))
    schedule = DotSchedule("wgmma", 128, 128, 64, 2, (2, 1, 1))
    program = build(plan, {s.key: schedule for s in dot_sigs(plan)}, threads=256)
    assert "G::Source<bf16>::produce(" in program.source
    source = ablate.without(program.source, ["noepilogue"])
    binary, _ = compile_host(source)
    (out,) = run_program(replace(program, source=source, binary=binary),
                         small_integers(plan.graph), blocks=2)
    assert np.isnan(np.asarray(out, np.float32)).all()


@pytest.fixture(scope="module")
def kept(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A case with a product on warpgroups, one without, and one with a kernel of each."""
    folder = tmp_path_factory.mktemp("ablate") / "kept"
    files = {}
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("JAXMONO_CACHE_DIR", str(folder / "jaxmono"))
        for case in select.cases(["dot_512_768_768", "dot_1_768_768"], ["1"], ["bf16"]):
            (built,) = ahead.prepare(case, "monolithic", ahead.gpu_facts("NVIDIA H200"))
            there = cache.current()
            assert there is not None
            files[f"{case.name} monolithic"] = [str(there.path(built.key).relative_to(folder))]
    a, b = files.values()
    ahead.write(folder, {**files, "both": [*b, *a]})
    (folder / ahead.MADE).write_text(json.dumps({"commit": "abc", "without": ["padding"]}))
    return folder


def test_folders_that_beside_takes(kept: Path, capsys: pytest.CaptureFixture[str]) -> None:
    variants = ["noload", "noproducts_noepilogue"]
    folders = ablate.ablate(kept, variants)
    assert [f.name for f in folders] == ["kept-noload", "kept-noproducts_noepilogue"]
    told = capsys.readouterr().out
    assert "dot_1_768_768 b1 bf16 monolithic: has no product on warpgroups; skipped\n" in told
    assert "both kernel 1: has no product on warpgroups; kept as it is\n" in told
    assert "dot_512_768_768 b1 bf16 monolithic noload: " in told
    found = dict(beside.pairs([kept, *folders]))
    assert list(found) == ["dot_512_768_768 b1 bf16 monolithic", "both kernel 1", "both kernel 2"]
    assert all(list(programs) == ["kept", *(f.name for f in folders)]
               for programs in found.values())
    whole, *less = found["both kernel 2"].values()
    assert len({whole.binary, *(p.binary for p in less)}) == 3
    assert len(less[0].binary) < len(whole.binary)
    assert [(p.name, p.threads, p.shared_bytes) for p in less] == \
        [(whole.name, whole.threads, whole.shared_bytes)] * 2
    same = found["both kernel 1"]
    assert len({p.binary for p in same.values()}) == 1
    assert ahead.made_of(folders[1]) == "commit abc, without padding and products and epilogue"
    ablate.ablate(kept, variants[:1])
    assert ": there\n" in capsys.readouterr().out, "compiled once"


@pytest.mark.parametrize(("part", "text"), [
    ("noload", "b.fill(to, t);"),
    ("noproducts", "wgmma_tf32_registers(acc.x, a[s],"), ("noepilogue", "G::finish")])
def test_a_text_that_is_not_there_is_an_error(part: str, text: str) -> None:
    source = emulated("streamed")[0].source
    with pytest.raises(ablate.MissingText) as error:
        ablate.without(source.replace(text, "something()"), ["noload", part])
    assert part in str(error.value) and text in str(error.value)
    with pytest.raises(ablate.MissingText, match="noload: the kernel has no jaxmono/gemm_wgmma"):
        ablate.without("int main() {}", ["noload"])


@pytest.mark.parametrize(("folder", "parts", "told"), [
    ("{kept}", ["noload", "nolaod"], "--parts=nolaod: a kernel can be made with noload, "),
    ("{kept}", [], "a kernel can be made with noload, noproducts, noepilogue, or"),
    ("/nowhere", None, "give one folder that benchmarks.prepare has made, with kernels.json"),
    ("", None, "give one folder")])
def test_what_makes_no_sense_is_refused(
        folder: str, parts: list[str] | None, told: str, tmp_path: Path,
        capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / ahead.INDEX).write_text(json.dumps({}))
    flags.FLAGS.mark_as_parsed()
    with flagsaver.flagsaver(**({} if parts is None else {"parts": parts})):
        status = ablate.main(["ablate", *filter(None, [folder.format(kept=tmp_path)])])
    assert status == 2 and told in capsys.readouterr().err
