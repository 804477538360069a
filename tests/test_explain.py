"""Reports: what they count, what they say of XLA's part, and that stages carry them."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxmono
import jaxmono._trips
from jaxmono import _driver, _explain, _measure
from jaxmono.hlo import ops
from jaxmono.hlo.ir import Graph, Value
from jaxmono.hlo.types import DType, TensorType

pytestmark = pytest.mark.usefixtures("sorts_left_to_xla")

X = np.linspace(-2.0, 2.0, 32, dtype=np.float32).reshape(4, 8)


def block(x: Any, w: Any) -> Any:
    h = jnp.tanh(x @ w)
    return h / (1.0 + jnp.abs(h).sum(-1, keepdims=True))


def mixed(x: Any) -> Any:
    return jnp.sort(jnp.tanh(x)) + 1.0  # sort is left to XLA


def test_explain_plans_without_compiling_and_without_arrays(
        monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("jaxmono._build.generate", lambda *_, **__: pytest.fail("explain compiled"))
    spec = jax.ShapeDtypeStruct((4, 8), jnp.float32), jax.ShapeDtypeStruct((8, 8), jnp.float32)
    report = jaxmono.explain(block, interpret=True)(*spec)
    assert report.kernels == 1 and not report.refused and not report.note
    assert report.coverage == jaxmono.Coverage(1.0, 1.0, 1.0)
    (kernel,) = report.planned
    assert kernel.name == "mono_block"
    assert kernel.stages == kernel.barriers + 1 == report.stages
    assert kernel.barriers_before_merging >= kernel.barriers
    assert report.predicted_us >= report.floor_us > 0
    assert report.compile_seconds is None and report.cached is None
    assert report.total.flops >= 2 * 4 * 8 * 8


def test_the_cpu_without_the_interpreter_says_that_xla_runs_it() -> None:
    report = jaxmono.explain(block)(X, X.T @ X)
    assert report.platform == "cpu" and report.kernels == 0
    assert "interpret=True" in report.note
    assert len(report.planned) == 1, "the plan that a GPU would run is shown all the same"
    text = str(report)
    assert text.startswith("jaxmono: 0 kernels on platform cpu")
    assert report.note in text and "mono_block" in text


def test_refused_ops_have_source_line_and_reason() -> None:
    report = jaxmono.explain(mixed, interpret=True)(X)
    (refusal,) = report.refused
    line = mixed.__code__.co_firstlineno + 1
    assert refusal.op == "sort"
    assert f"{Path(__file__).name}:{line}" in refusal.source
    assert refusal.reason == "sorting is not generated yet"
    assert 0 < report.coverage.ops < 1
    assert f"sort at {refusal.source}: sorting is not generated yet" in str(report)


def test_dead_ops_and_constants_do_not_count() -> None:
    x = Value(TensorType((4,), DType.F32))

    def op(kind: str, *args: Value) -> ops.Elementwise:
        return ops.Elementwise(results=(Value(x.type),), args=args, kind=kind)

    one = ops.Constant(results=(Value(x.type),), value=np.ones(4, np.float32))
    dead, alive = op("tanh", x), op("add", x, one.result)
    effect = ops.CustomCall(results=(), args=(x,), target="t", has_side_effect=True)
    graph = Graph((x,), (one, dead, alive, effect), (alive.result,))
    live = _measure.live_ops(graph)
    assert list(live) == [one, alive, effect]
    assert _measure.work(live) == _explain.Work(2, 4 * 16, 4)


def test_error_instead_of_xla() -> None:
    with pytest.raises(jaxmono.UnsupportedError) as info:
        jaxmono.jit(mixed, on_unsupported="error", interpret=True)(X)
    message = str(info.value)
    assert "sort at" in message and "sorting is not generated yet" in message
    assert "on_unsupported='xla'" in message
    report = jaxmono.jit(mixed, on_unsupported="error", interpret=True).explain(X)
    assert [r.op for r in report.refused] == ["sort"], "explain looks, it does not raise"


def test_several_call_sites_of_one_program() -> None:
    inner = jaxmono.jit(block, interpret=True)

    @jaxmono.jit(interpret=True)
    def outer(x: Any, w: Any) -> Any:
        return inner(inner(x, w), w)

    report = outer.explain(X, X.T @ X)
    assert report.kernels == 1, "a jaxmono function in another is part of its kernel"

    reports = [jaxmono.explain(f, interpret=True)(X) for f in (mixed, jnp.tanh)]
    both = _explain.merged(reports, platform="cpu", interpret=True, mode="auto")
    assert both.total == reports[0].total + reports[1].total
    assert both.planned == reports[0].planned + reports[1].planned
    assert both.refused == reports[0].refused


def test_reports_are_frozen_and_empty_programs_are_covered() -> None:
    report = jaxmono.explain(lambda x: x)(X)
    assert report.coverage == jaxmono.Coverage(1.0, 1.0, 1.0)
    assert report.shared_bytes is None and "coverage: 100% of 0 ops" in str(report)
    with pytest.raises(dataclasses.FrozenInstanceError):
        report.note = "no"  # pyright: ignore[reportAttributeAccessIssue]


def test_table_columns_align() -> None:
    kernel = _explain.KernelReport("k", 3, 2, 5, 2048, 1_500_000, 12.3, 4.5,
                                   _explain.Work(7, 10, 20), 0.5, False, 64, 0, ("a note",))
    report = jaxmono.Report("cuda", False, "auto", 2, (kernel, dataclasses.replace(
        kernel, name="a_longer_name", cached=True)), (), _explain.Work(14, 20, 40))
    lines = str(report).splitlines()
    head, first, second = lines[3:6]
    assert head.split() == ["kernel", "ops", "stages", "barriers", "(unmerged)", "shared",
                            "scratch", "predicted", "floor", "registers", "spills",
                            "schedules", "compiled"]
    assert "1.5 MB" in first and first.endswith("0.50 s") and second.endswith("cached")
    assert first.index("2.05 kB") == second.index("2.05 kB")
    assert "  k: a note" in lines
    assert report.kernels == 2 and report.compile_seconds == 1.0 and report.cached is False


@pytest.mark.parametrize(("symbol", "index", "count", "name"), [
    ("f", 0, 1, "mono_f"), ("f", 1, 2, "mono_f_1"), ("<lambda>", 0, 1, "mono_lambda"),
    ("\u00e9", 0, 1, "mono_kernel"),
])
def test_kernel_names_are_c_identifiers(symbol: str, index: int, count: int, name: str) -> None:
    assert _measure.kernel_name(symbol, index, count) == name


def test_function_names_lose_what_the_lowering_added() -> None:
    options = _driver.Options()
    assert _measure.function_name(f"f{options.tag}", options) == "f"
    assert _measure.function_name("f_xla_0", options) == "f"
    assert _measure.function_name("my_xla_thing", options) == "my_xla_thing"


def test_compiled_reports_texts_and_the_cache(monkeypatch: pytest.MonkeyPatch,
                                              tmp_path: Path) -> None:
    monkeypatch.setenv("JAXMONO_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setenv("JAXMONO_DUMP_TO", str(tmp_path / "dump"))
    f = jaxmono.jit(block, interpret=True)
    w = (X.T @ X) / 8
    lowered = f.lower(X, w)
    first = lowered.explain()
    assert first.kernels == 1 and first.cached is False
    assert first.compile_seconds is not None and first.compile_seconds > 0
    (kernel,) = first.planned
    assert kernel.shared_bytes is not None

    banner = "// ==== mono_block ("
    plan, source, ptxas = (lowered.as_text(d) for d in ("plan", "cuda", "ptxas"))
    for text in (plan, source, ptxas):
        assert text.startswith(banner)
    assert f"{kernel.stages} stages" in plan
    assert "__global__" in source and "mono_block(" in source
    assert "dynamic shared memory: " in ptxas and "target: interpret" in ptxas
    assert lowered.as_text().count("stablehlo.custom_call") == 1

    compiled = lowered.compile()
    np.testing.assert_allclose(compiled(X, w), jax.jit(block)(X, w), rtol=5e-3, atol=5e-3)
    assert compiled.as_text("cuda") == source
    assert str(compiled.explain()) == str(first)

    second = f.lower(X, w).explain()
    assert second.cached is True and "cached" in str(second)
    assert second.planned[0].stages == kernel.stages
    monkeypatch.setenv("JAXMONO_CACHE", "off")
    assert f.lower(X, w).explain().cached is False

    dumped = sorted(p.name.split(".", 1)[1] for p in (tmp_path / "dump").iterdir())
    assert dumped == ["cu", "hlo.txt", "json", "plan.txt", "ptxas.txt"]
    (dumped_source,) = (tmp_path / "dump").glob("mono_block-*.cu")
    assert dumped_source.read_text() in source


def test_several_kernels_are_concatenated_under_banners() -> None:
    def split(x: Any) -> Any:
        return jnp.exp(jnp.sort(jnp.tanh(x)))

    lowered = jaxmono.jit(split, interpret=True).lower(X)
    report = lowered.explain()
    assert [k.name for k in report.planned] == ["mono_split_0", "mono_split_1"]
    assert report.stages == 2 and report.barriers == 0
    source = lowered.as_text("cuda")
    assert source.count("// ==== mono_split_") == 2
    np.testing.assert_allclose(lowered.compile()(X), split(X), rtol=1e-5)


def test_no_kernel_texts_say_why() -> None:
    text = jaxmono.jit(jnp.sort, interpret=True).lower(X).as_text("cuda")
    assert text == "// no jaxmono kernel: nothing could be taken\n"
    text = jaxmono.jit(block).lower(X, X.T @ X).as_text("cuda")
    assert text.endswith("(only planned)\n")


def test_ops_that_stay_for_one_reason_are_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jaxmono._trips, "MOST_US", -1.0)  # as if trips were long

    def fun(x: jax.Array) -> jax.Array:
        step = lambda x: jnp.tanh(jnp.sin(x) * 2 - 1) / jnp.exp(x)  # noqa: E731
        return jax.lax.while_loop(lambda x: x[0] < 1, step, jnp.sort(x))

    report = jaxmono.explain(fun, interpret=True)(jax.ShapeDtypeStruct((8,), jnp.float32))
    _, told = str(report).split("left to XLA")
    small = [line for line in told.splitlines() if "too little" in line]
    assert len(small) == 1 and "other kinds at" in small[0] and " more: " in small[0]
    assert len(report.refused) > 6 and "sort at " in told and "while at " in told
