"""docs/coverage.md is current, and every transformer's forward step is one kernel."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path
from types import ModuleType

import jax
import jax.numpy as jnp
import pytest
from thinned import thinned

import jaxmono
from benchmarks.workloads import Workload, all_workloads
from jaxmono import _measure
from jaxmono._explain import Work
from jaxmono.hlo import ops
from jaxmono.hlo.importer import import_module
from jaxmono.hlo.passes.counted import trip_count

ROOT = Path(__file__).resolve().parents[2]
WORKLOADS = all_workloads()


@pytest.fixture(scope="module")
def script() -> ModuleType:
    spec = importlib.util.spec_from_file_location("update_coverage",
                                                  ROOT / "scripts" / "update_coverage.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


# Parts and larger forms of models that are planned anyway, or much like them and long (decoders
# beside GPT-2, networks of convolutions beside ResNet-50, MiniLM beside BERT, wav2vec2 beside the
# ASR encoder, a training step beside its model); micro-graphs of one table. ViT is left out below,
# beside BERT.
_ALIKE = re.compile(r"bert_large|clip|clip_.*|t5_base_encoder|t5_base_decode|repvgg_a0|resnet18|"
                    r"minilm|minilm_f32|gptj_decode|opt_.*|llama_.*|gpt2_beam|inception_v3|googlenet|"
                    r"vgg16|wav2vec2|wav2vec2_train|convnext_t|"
                    r"(b2b_gemm|b2b_conv|padding)_[2-9]|gemm_\d+_\d+_\d+")


@pytest.mark.sampled(7)
@pytest.mark.parametrize("workload", [
    *thinned((pytest.param(w, id=name, marks=[pytest.mark.slow] if name == "vit_b16" else [])
              for name, w in WORKLOADS.items() if not _ALIKE.fullmatch(name)), keep=2),
    *(pytest.param(w, id=name, marks=pytest.mark.slow) for name, w in WORKLOADS.items()
      if _ALIKE.fullmatch(name))])
def test_the_lines_of_a_model_are_current(workload: Workload, script: ModuleType) -> None:
    have = (ROOT / "docs" / "coverage.md").read_text(encoding="utf-8").splitlines()
    line, reasons = script.row(workload)
    # Which line of a library an op comes from depends on the library's version.
    known = [re.sub(r"[^|]*\|$", "", text) for text in have]
    assert line in have, "run python scripts/update_coverage.py"
    assert all(re.sub(r"[^|]*\|$", "", text) in known for text in reasons)
    if workload.one_kernel:
        _, told = script.report(workload)
        assert len(told.planned) == 1 and not told.refused, str(told)
        assert told.coverage == jaxmono._explain.Coverage(1, 1, 1)


def test_no_model_is_missing_or_left_over(script: ModuleType) -> None:
    text = (ROOT / "docs" / "coverage.md").read_text(encoding="utf-8")
    table = text.removeprefix(script.HEAD).split("\n\n")[0]
    assert re.findall(r"^\| (\w+) \|", table, re.MULTILINE) == list(WORKLOADS)


def test_work_inside_a_loop_counts_once_per_trip() -> None:
    def fn(x: jax.Array) -> jax.Array:
        return jax.lax.scan(lambda c, _: (c @ x, None), x, None, length=5)[0]

    graph = import_module(jax.jit(fn).lower(jnp.ones((4, 4))).compiler_ir("stablehlo")).graph
    loop, = (o for o in graph.ops if isinstance(o, ops.While))
    assert trip_count(loop) == 5
    assert _measure.work([loop]).flops >= 5 * 2 * 4**3
    assert _measure.work([]) == Work()
