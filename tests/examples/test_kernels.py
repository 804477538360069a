"""The further tables: what they hold, and that their programs are their formulas."""

from __future__ import annotations

import math
from typing import Any

import jax
import numpy as np
import pytest

from benchmarks import select
from benchmarks.data import Case
from benchmarks.workloads import find, further_tables, kernels

TABLES = further_tables()


def _sigmoid(y: Any) -> Any:
    return 1 / (1 + np.exp(-y))


FORMULAS: dict[str, Any] = {
    "bare": lambda y: y,
    "bias": lambda y: y,
    "relu": lambda y: np.maximum(y, 0),
    "gelu": lambda y: y / 2 * (1 + np.vectorize(math.erf)(y / math.sqrt(2))),
    "hardswish": lambda y: y * np.clip(y + 3, 0, 6) / 6,
    "softplus": lambda y: np.log1p(np.exp(y)),
    "silu_mul": lambda y, other: y * _sigmoid(y) * other,
    "residual": lambda y, other: y + other,
}


def run(name: str) -> tuple[Any, list[Any], Any]:
    """(state, inputs, output) of the tiny program, in f64."""
    program = find(name).program(tiny=True, batch=2, dtype="f32")
    state, inputs = program.state(), program.inputs(jax.random.key(0))
    out, carry = jax.jit(program.step)(state, (), *inputs)
    assert carry == ()
    wide = [np.asarray(x, np.float64) for x in inputs]
    return {k: np.asarray(v, np.float64) for k, v in state.items()}, wide, np.asarray(out)


@pytest.mark.sampled(3)
@pytest.mark.parametrize("kind", list(kernels.EPILOGUES))
def test_epilogues_are_their_formulas(kind: str) -> None:
    state, (x, *other), out = run(f"{kind}_128_3072_768")
    want = FORMULAS[kind](x @ state["w"] + state.get("bias", 0), *other)
    assert np.linalg.norm(out - want) <= 1e-5 * np.linalg.norm(want)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("causal", [False, True])
def test_attention_is_its_formula(causal: bool) -> None:
    _, (q, k, v), out = run(f"attention_s128_12x64{'_causal' if causal else ''}")
    scores = np.einsum("bqhd,bkhd->bhqk", q, k) / math.sqrt(q.shape[-1])
    if causal:
        scores = np.where(np.tri(q.shape[1], dtype=bool), scores, -np.inf)
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    want = np.einsum("bhqk,bkhd->bqhd", weights / weights.sum(-1, keepdims=True), v)
    assert np.linalg.norm(out - want) <= 1e-5 * np.linalg.norm(want)


def test_tables_hold_what_is_to_be_measured() -> None:
    assert {name: len(table) for name, table in TABLES.items()} == {
        "gemm_table": 66, "unaligned_table": 24, "few_table": 70, "vocabulary_table": 9,
        "exact_table": 13, "epilogue_table": 40, "wide_epilogue_table": 16,
        "attention_table": 16, "exact_models": 6, "quantised_table": 165, "quantised_models": 6,
        "reduce_table": 25, "depthwise_table": 12, "loop_table": 26, "control_table": 4,
        "random_table": 16, "scatter_table": 14, "gate_table": 8, "stream_table": 14,
        "training_table": 6, "mixed_table": 33, "stock_table": 22, "science_table": 6,
        "solver_table": 14, "graph_table": 6, "everyday_table": 35, "function_table": 39,
        "row_table": 20, "complex_table": 12, "transforms_table": 10,
        "recent_table": 24}
    products = find("dot_4096_1024_4096").program()
    assert [a.shape for a in products.abstract()[2:]] == [(4096, 4096)]
    assert products.abstract()[0]["w"].shape == (4096, 1024)
    long = find("attention_s8192_32x128_causal").program(batch=16)
    assert [a.shape for a in long.abstract()[2:]] == [(16, 8192, 32, 128)] * 3
    cases = select.cases(["attention_table", "gemm_table"], [], ["bf16", "f16"])
    assert len(cases) == 2 * (16 * 2 + 66)
    assert not {w.name for table in TABLES.values() for w in table} & {
        c.workload.name for c in select.cases(["all"], [], [])}


def test_scores_that_do_not_fit_are_cudnns_for_xla_alone() -> None:
    """jaxmono has the einsums, the f32 reference one example at a time."""
    case = Case(find("attention_s8192_12x64"), 16, "bf16")
    shapes = case.jaxmono_program().abstract()
    text = str(jax.make_jaxpr(case.jaxmono_program().step)(*shapes))
    assert "dot_general" in text and "cudnn" not in text
    wide = case.program(dtype="f32")
    made = jax.make_jaxpr(wide.step)(*wide.abstract())
    assert made.out_avals[0].shape == (16, 8192, 12, 64)
    assert any(e.primitive.name == "scan" and e.params["length"] == 16 for e in made.eqns)
