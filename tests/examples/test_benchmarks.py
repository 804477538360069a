"""The yardstick without a GPU: what it counts and compares is what it says, no row is missing."""

from __future__ import annotations

import dataclasses
import json
import math
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from small_models import chained

import benchmarks.workloads as zoo
from benchmarks import data, jaxmono_best, load, select, trace, turns, xla_best
from benchmarks.data import L2_BYTES, Case, Data
from benchmarks.errors import ArrayError, Check, Errors, errors, verdict
from benchmarks.floor import floor_of
from benchmarks.machine import Speed
from benchmarks.measure import Settings, measure
from benchmarks.peers import NoPeer
from benchmarks.phases import Phases
from benchmarks.results import Folder, default_folder
from benchmarks.row import Row
from benchmarks.running import Facts
from benchmarks.select import BadFlag
from benchmarks.systems_jax import JaxRunning
from benchmarks.turns import Turns
from benchmarks.workloads.workload import Program, Request, Workload


def counting(request: Request) -> Program:
    """``out = ids * w + carry``; the carry counts the calls."""
    dtype = request.jax_dtype

    def step(state: Any, carry: Any, ids: jax.Array) -> Any:
        return ids.astype(dtype) * state + carry, carry + 1

    return Program(step, "4", state=lambda: jnp.asarray(0.5, dtype),
                   inputs=lambda key: (jax.random.randint(key, (request.batch, 4), 1, 99),),
                   carry=lambda key: jnp.asarray(0, dtype))


COUNTING = Workload("counting", "counting", "transformer", counting)


def made(dtype: str = "f32") -> Data:
    return data.make(Case(COUNTING, 1, dtype), sets=3)


# The row and its folder


def test_a_row_on_disk_is_the_row() -> None:
    row = Row("m", 1, "s8", "bf16", "jaxmono", "stitch", device_us=1.5, kernels=2, ok=True,
              status="fallback", reason="sort", profile={"k": 1.0}, error=math.inf)
    line = row.to_json()
    assert list(json.loads(line))[:23] == [
        "model", "batch", "shape", "dtype", "system", "mode", "device_us", "pipelined_us",
        "latency_us_p50", "latency_us_p95", "latency_us_p99", "floor_us", "roofline", "kernels",
        "barriers", "scratch_bytes", "compile_s", "error", "reference_error", "ok", "status",
        "reason", "commit"]
    assert json.loads(line)["error"] is None and json.loads(line)["pipelined_us"] is None
    assert Row.from_json(line) == dataclasses.replace(row, error=None)
    assert row.name == "jaxmono stitch"
    for wrong in ({"system": "tvm"}, {"status": "failed", "reason": ""}, {"status": "good"}):
        with pytest.raises(ValueError, match=r"system|status"):
            dataclasses.replace(row, **wrong)
    with pytest.raises(ValueError, match="not a row"):
        Row.from_json('{"model": "m"}')


def test_a_folder_starts_anew_or_goes_on(tmp_path: Path) -> None:
    row = Row("m", 1, "s8", "bf16", "xla", ratio_to_xla=1.0, device_us=1.0, device_ratio_to_xla=1.0)
    folder = Folder(tmp_path / "run")
    folder.header({"commit": "abc"})
    folder.add(row)
    folder.add_other({"part": "depth"})
    folder.header({"more": 1})
    again = Folder(folder.path, resume=True)
    assert again.done() == {("m", 1, "bf16", "xla")}
    assert json.loads((folder.path / "header.json").read_text()) == {"commit": "abc", "more": 1}
    again.report()
    assert "abc" in (folder.path / "results.md").read_text()
    assert Folder(folder.path).done() == set()
    where = default_folder({"gpu": "NVIDIA H200", "platform": "gpu", "date": "2001-02-03 04:05"})
    assert where.name == "2001-02-03-nvidia-h200"


# What is measured: rotation, carries, floors


def test_inputs_rotate_and_the_carry_is_handed_on() -> None:
    case = made()
    running = JaxRunning("x", jax.jit(case.program.step, donate_argnums=1), case, Facts())
    first = [np.asarray(i[0], np.float32) * 0.5 for i in case.inputs]
    outs = [np.asarray(running.start()) for _ in range(4)]
    for turn, out in enumerate(outs):
        np.testing.assert_array_equal(out, first[turn % 3] + turn)
    assert not case.carry[0].is_deleted() and not np.array_equal(first[0], first[1])
    running.close()
    with pytest.raises(ValueError, match="closed"):
        running.start()


def test_micro_graphs_rotate_through_more_than_the_l2() -> None:
    assert data.sets_for(False, 10) == data.SETS
    size = 7_000_000
    assert data.sets_for(True, size) * size >= 2 * L2_BYTES
    assert data.sets_for(True, 1) == 256 and data.sets_for(True, 10**9) == data.SETS
    micro = dataclasses.replace(COUNTING, family="micro")
    rotated = data.make(Case(micro, 1, "f32"), sets=5)
    assert len(rotated.states) == 5 == len(rotated.inputs)
    assert len({s.unsafe_buffer_pointer() for s, in rotated.states}) == 5


def test_the_floor_counts_what_is_taken_of_a_table_and_written_of_a_cache() -> None:
    f32 = 4
    table = jax.ShapeDtypeStruct((1000, 8), jnp.float32)
    cache = jax.ShapeDtypeStruct((1, 64, 8), jnp.float32)
    ids = jax.ShapeDtypeStruct((3,), jnp.int32)
    weight = jax.ShapeDtypeStruct((8, 5), jnp.float32)

    def step(state: Any, carry: jax.Array, ids: jax.Array) -> Any:
        table, weight, _ = state
        x = jnp.take(table, ids, axis=0, mode="clip")
        carry = jax.lax.dynamic_update_slice(carry, x[None, :1], (0, 7, 0))
        return x @ weight + carry.sum(), carry

    floor = floor_of(step, (table, weight, table), cache, ids)
    assert floor.flops == 2 * 3 * 8 * 5
    # Rows of the table, weight, ids, all of the cache; the result and one row of the cache.
    assert floor.read_bytes == f32 * (3 * 8 + 8 * 5 + 3 + 64 * 8)
    assert floor.written_bytes == f32 * (3 * 5 + 8)
    assert floor.us(1e6, 1e12) == pytest.approx(floor.read_bytes + floor.written_bytes)
    assert floor.us(1e12, 1e6) == pytest.approx(240)


def test_the_floor_of_loops_and_convolutions() -> None:
    x, w = (jax.ShapeDtypeStruct(s, jnp.float32) for s in ((4, 4), (4, 4)))

    def scanned(x: jax.Array, w: jax.Array) -> jax.Array:
        return jax.lax.scan(lambda c, _: (jax.jit(jnp.matmul)(c, w), None), x, length=6)[0]

    assert floor_of(scanned, x, w).flops == 6 * 2 * 4**3
    assert floor_of(scanned, x, w).open_loops == 0
    looped = floor_of(lambda x, w: jax.lax.while_loop(lambda c: c.sum() < 9, lambda c: c @ w, x),
                      x, w)
    assert (looped.flops, looped.open_loops) == (2 * 4**3, 1)
    image, kernel = (jax.ShapeDtypeStruct(s, jnp.float32) for s in ((2, 8, 8, 3), (3, 3, 3, 16)))

    def conv(x: jax.Array, k: jax.Array) -> jax.Array:
        return jax.lax.conv_general_dilated(x, k, (1, 1), "SAME",
                                            dimension_numbers=("NHWC", "HWIO", "NHWC"))

    # In each direction 8 outputs see 3 elements each, but for the two that reach over the edge.
    assert floor_of(conv, image, kernel).flops == 2 * 2 * 16 * 3 * (8 * 3 - 2) ** 2


def test_a_models_weights_are_made_once_for_all_batches() -> None:
    made: list[int] = []

    def noted(request: Request) -> Program:
        def state() -> Any:
            made.append(request.batch)
            return jnp.asarray(0.5, request.jax_dtype)

        return dataclasses.replace(counting(request), state=state)

    model = Workload("noted", "noted", "transformer", noted)
    micro = dataclasses.replace(model, family="micro")
    states = [data.make(Case(model, batch, "f32"), sets=2).states[0] for batch in (1, 2)]
    assert made == [1] and states[0][0] is states[1][0]
    data.make(Case(model, 1, "bf16"), sets=2)
    data.make(Case(model, 1, "f32"), sets=2)  # no more than the last ones are kept
    assert made == [1, 1, 1]
    for batch in (1, 2):
        data.make(Case(micro, batch, "f32"), sets=2)
    assert made[3:] == [1, 2]


# Errors


def test_errors_see_nan_wrong_carries_and_stale_results() -> None:
    case = made()
    wanted = data.reference(case, sets=3)
    right = errors(case.program.step, case, wanted)
    assert right.worst() == 0 and verdict(right, right, "f32")
    stale = case.program.step(*case.arguments())
    for wrong in (lambda s, c, x: (x * s[0] * 1.5 + c[0], (c[0] + 1,)),
                  lambda s, c, x: (x * s[0] + c[0], (c[0] + 2,)),
                  lambda s, c, x: (x * s[0] + c[0] + jnp.nan, (c[0] + 1,)),
                  lambda s, c, x: stale):
        found = errors(wrong, case, wanted)
        assert found.worst() > 0.1 and not verdict(found, right, "f32")
    wide = errors(lambda s, c, x: (x * s[0] * 1.5 + c[0], (c[0] + 1,)), case, wanted)
    assert wide.worst() == pytest.approx(0.5)
    with pytest.raises(ValueError, match="arrays of results"):
        errors(lambda s, c, x: ((x, x), c), case, wanted)


@pytest.mark.parametrize(("mine", "xla", "right"), [
    ([0.012], [0.01], True), ([0.02], [0.01], False), ([0.001], [0.0], True),
    ([0.01, 0.9], [0.01, 0.7], True),        # XLA has most of the second wrong: measures nothing
    ([0.01, math.inf], [0.01, 0.7], False),  # but it has to be finite
])
def test_the_bar_is_xlas_own_error(mine: list[float], xla: list[float], right: bool) -> None:
    ours, theirs = (Errors(tuple(ArrayError(e, 10**6) for e in side)) for side in (mine, xla))
    assert verdict(ours, theirs, "bf16") is right
    # A bar of the outputs that is high does not excuse a bad cache.
    high = (ArrayError(0.3, 10**6),)
    assert verdict(Errors(high, ours.outputs), Errors(high, theirs.outputs), "bf16") is right


def test_ids_count_by_the_share_that_differs() -> None:
    case = made()
    first, second = (case.inputs[k][0] for k in (0, 1))
    found = errors(lambda s, c, x: ((x, 1.0 * x), ()), case,
                   [((first, 1.0 * first), ()), ((second + 1, 1.0 * second), ())])
    assert found.outputs[0] == ArrayError(0.5, 8, True)
    assert found.outputs[1] == ArrayError(0.0, 8, False)
    none, few, many = (Errors((ArrayError(e, 100, True),)) for e in (0.0, 0.2, 0.4))
    assert verdict(few, none, "bf16") and not verdict(many, none, "bf16")


SEARCH = dataclasses.replace(COUNTING, name="searching", search=True)


def test_a_searchs_scores_count_where_its_ids_agree() -> None:
    case = data.make(Case(SEARCH, 1, "f32"))
    assert len(case.inputs) == data.SEARCH_SETS
    assert len(data.make(Case(SEARCH, 1, "f32", tiny=True)).inputs) == data.SETS
    calls = [jnp.asarray(x[0]) for x in case.inputs]
    wanted = [((x, 1.0 * x), ()) for x in calls]
    flipped = [((x, 1.0 * x), ()) if k else ((x + 1, 2.0 * x), ()) for k, x in enumerate(calls)]
    found = errors(lambda s, c, x: ((x, 1.0 * x), ()), case, flipped)
    ids, score = found.outputs
    assert (ids.calls, ids.other) == (16, 1) and ids.error == pytest.approx(1 / 16)
    assert score.error == 0 and score.size == 15 * 4
    right = errors(lambda s, c, x: ((x, 1.0 * x), ()), case, wanted)
    assert verdict(found, right, "bf16") and verdict(right, found, "bf16")
    off = errors(lambda s, c, x: ((x, 1.1 * x), ()), case, flipped)  # another score of these ids
    assert not verdict(off, right, "bf16")
    broken = errors(lambda s, c, x: ((x + 1, jnp.nan * x), ()), case, wanted)
    assert not verdict(broken, right, "bf16")


@pytest.mark.parametrize(("mine", "xla", "calls", "right"), [
    (2, 1, 4, True), (4, 1, 4, True), (4, 0, 4, False), (5, 0, 16, True), (6, 0, 16, False),
    (10, 4, 16, True), (11, 4, 16, False), (0, 4, 16, True), (16, 4, 16, False),
])
def test_a_search_is_judged_by_its_calls(mine: int, xla: int, calls: int, right: bool) -> None:
    """One early flip is most of a call's ids: shares of 0.4 against 0.05 may be chance."""
    ours, theirs = (Errors((ArrayError(share, 192, True, calls, other),))
                    for share, other in ((0.4, mine), (0.05, xla)))
    assert verdict(ours, theirs, "bf16") is right


def test_a_single_number_may_be_off_by_more_than_a_thousand_may() -> None:
    none = Errors((ArrayError(0.0, 1),))
    for size, right in ((1, True), (1000, False)):
        assert verdict(Errors((ArrayError(0.01, size),)), none, "bf16") is right


# Whole cases


@pytest.fixture
def few(monkeypatch: pytest.MonkeyPatch) -> None:
    """A zoo of two."""
    broken = dataclasses.replace(COUNTING, name="broken", build=_broken)
    table = {w.name: w for w in (COUNTING, broken)}
    monkeypatch.setattr(zoo, "all_workloads", lambda: table)
    monkeypatch.setattr(select, "all_workloads", lambda: table)


def _broken(request: Request) -> Program:
    def weights() -> Any:
        raise MemoryError(f"batch {request.batch} does not fit")

    return dataclasses.replace(counting(request), state=weights)


SYSTEMS = (("xla", None), ("torch_compile", None), ("jaxmono", "layer"),
           ("jaxmono", "monolithic"))


def rows(name: str, *, phases: Phases | None = None, **settings: Any) -> list[Row]:
    workload = {"counting": COUNTING,
                "broken": dataclasses.replace(COUNTING, build=_broken)}[name]
    return list(measure(Case(workload, 2, "f32"), Settings(SYSTEMS, commit="abc", **settings),
                        phases))


def test_every_system_has_a_row_whatever_happens(monkeypatch: pytest.MonkeyPatch) -> None:
    def none(name: str) -> Any:
        raise NoPeer("torch is not installed")

    monkeypatch.setattr("benchmarks.torch_side.torch_peer", none)
    xla, torch, layer, mono = rows("counting")
    assert (xla.status, xla.ok, xla.error, xla.reference_error) == ("ok", True, 0, 0)
    assert (torch.status, torch.reason) == ("failed", "torch is not installed")
    assert layer.status == "failed" and "not built yet" in layer.reason and layer.mode == "layer"
    assert mono.status == "fallback" and mono.reason and mono.ok  # no GPU: XLA runs it
    for row in (xla, torch, layer, mono):
        assert row.shape == "4" and row.commit == "abc"
        assert row.pipelined_us is row.device_us is row.floor_us is row.compile_s is None
    for row in rows("broken"):
        assert row.status == "failed" and row.reason == "MemoryError: batch 2 does not fit"


@pytest.mark.parametrize("case", ["faster", "slower", "wrong", "fails", "default", "no remainder"])
def test_what_jaxmono_leaves_to_xla_gets_xlas_flags(monkeypatch: pytest.MonkeyPatch,
                                                    tmp_path: Path, case: str) -> None:
    """Where they make it faster and keep it right."""
    of = made()
    flags = xla_best.DEFAULT if case == "default" else "no triton gemm"
    of.kept[xla_best.XLA_FLAGS] = flags
    times = {xla_best.DEFAULT: 10.0, "no triton gemm": 20.0 if case == "slower" else 5.0}
    tried: list[str] = []

    def running(of: Data, mode: str, name: str, *, interpret: bool) -> JaxRunning:
        tried.append(name)
        if case == "fails" and name == flags:
            raise ValueError("no such flag")
        status = "ok" if case == "no remainder" else "fallback"
        return JaxRunning(name, of.program.step, of, Facts(variant=name, status=status))

    monkeypatch.setattr(jaxmono_best, "_running", running)
    monkeypatch.setattr(jaxmono_best, "scores", lambda all: [
        (times[r.label], 0.0) for r in all])
    check = Check(of, data.reference(of, sets=3))
    monkeypatch.setattr(check, "right", lambda function: case != "wrong")
    choices = xla_best.Choices(tmp_path / "choices.json")
    given: dict[str, Any] = {"interpret": True, "phases": Phases(), "check": check}
    found = jaxmono_best.prepare(of, "auto", choices, **given)
    best = flags if case == "faster" else xla_best.DEFAULT
    assert found.label == best
    assert len(tried) == (1 if case in ("default", "no remainder") else 2)
    assert bool(found.facts.notes) == (case in ("slower", "wrong", "fails"))
    if len(tried) == 2 and case != "fails":  # another run does not choose anew, whatever the times
        times.update({xla_best.DEFAULT: 5.0, "no triton gemm": 10.0})
        later = xla_best.Choices(tmp_path / "choices.json")
        assert jaxmono_best.prepare(of, "auto", later, **given).label == best
        assert tried[2:] == [best] and later.get(of) is None  # nothing of XLA's
        of.kept[xla_best.XLA_FLAGS] = xla_best.DEFAULT  # nor is it asked where XLA keeps to these
        assert jaxmono_best.prepare(of, "auto", later, **given).label == xla_best.DEFAULT


def test_a_variant_that_is_wrong_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    """XLA's fastest flags once were those that ended a loop too early."""
    of = made()
    check = Check(of, data.reference(of, sets=3))
    assert check.right(lambda *_: None)  # nothing is known of the default yet
    check.set_bar(of.program.step)
    variant: Any = xla_best._Xla  # pyright: ignore[reportPrivateUsage]
    early = variant("early", lambda s, c, x: (0 * x * s[0], c), of, Facts())
    best, slow = (variant(n, of.program.step, of, Facts()) for n in ("best", "slow"))
    for r in (early, best, slow):
        r.chosen = xla_best.Variant(r.label)
    made_of = {"early": early, "slow": slow}
    monkeypatch.setattr(xla_best, "_running", lambda of, variant: made_of[variant.flags])
    monkeypatch.setattr(xla_best, "scores", lambda all: [
        ({"early": 1.0, "best": 10.0, "slow": 20.0}[r.label], 0.0) for r in all])
    failed: list[str] = []
    fastest: Any = xla_best._fastest  # pyright: ignore[reportPrivateUsage]
    found = fastest(best, [xla_best.Variant(n) for n in made_of], of, failed, Phases(), check)
    assert found is best and failed == ["early: its results are wrong"]


def test_times_end_up_in_their_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    def device_times(asked: Any, failures: Any) -> Any:
        return {key: trace.DeviceTimes(us, 40.0, 7, 1, {"k": 40.0})
                for key, us in zip(asked, (100.0, 50.0), strict=True)}

    monkeypatch.setattr(trace, "device_times", device_times)
    monkeypatch.setattr(load, "cores", lambda: 2)
    speed = Speed(1e12, {"f32": 1e12})
    phases = Phases()
    found = rows("counting", phases=phases, speed=speed, rounds=3, seconds=0.02, profile=True,
                 cpu_loads=(0.5,))
    assert list(phases.seconds) == ["data", "reference", "xla", "torch_compile", "jaxmono",
                                    "pipelined", "latency", "queued", "trace", "load", "errors",
                                    "close"]
    xla, mono = found[0], found[3]
    assert xla.ratio_to_xla == 1 and xla.device_ratio_to_xla == 1 and xla.device_us == 100
    assert mono.device_ratio_to_xla == 0.5 and mono.kernels == 7 and mono.copies == 1
    assert mono.floor_us and mono.roofline == mono.floor_us / 50 and mono.profile == {"k": 40.0}
    assert mono.pipelined_us_low <= mono.pipelined_us <= mono.pipelined_us_high
    assert mono.latency_us_p50 <= mono.latency_us_p95 <= mono.latency_us_p99
    under = found[4:]
    assert [r.cpu_load for r in under] == [0.5] * 4 and under[0].latency_us_p50
    assert under[0].pipelined_us is None and under[2].status == "failed"


# What is asked for


def test_flags_that_make_no_sense(few: None) -> None:
    assert select.systems(("xla", "xla"), ("stitch",)) == (("xla", None), ("jaxmono", "stitch"))
    assert [c.batch for c in select.cases(["all"], ["2", "3"], [])] == [2, 3, 2, 3]
    assert [c.workload.name for c in select.cases(["transformer"], [], [])] == [
        "counting", "broken"]
    for wrong, told in ((lambda: select.systems(("tvm",), ()), "xla, torch_compile"),
                        (lambda: select.systems((), ("mono",)), "monolithic"),
                        (lambda: select.systems((), ()), "nothing to measure"),
                        (lambda: select.cases(["countin"], [], []), "did you mean counting"),
                        (lambda: select.cases(["all"], ["0"], []), "--batch"),
                        (lambda: select.cases(["all"], ["x"], []), "--batch"),
                        (lambda: select.cases(["all"], [], ["fp8"]), "bf16, f16, f32"),
                        (lambda: select.shares(["1.5"]), "--cpu_load")):
        with pytest.raises(BadFlag, match=told):
            wrong()


def test_the_longest_come_first_but_a_model_is_stayed_with(tmp_path: Path) -> None:
    model = dataclasses.replace(COUNTING, name="model")
    cases = [Case(w, batch, "f32") for w in (COUNTING, model) for batch in (1, 2, 3)]
    assert [c.name for c in Turns(cases)] == [c.name for c in cases]  # alone: the table's order
    seconds = {c.name: float(s) for c, s in zip(cases, (1, 2, 3, 4, 9, 5), strict=True)}
    first = Turns(cases, tmp_path / "turns", seconds)
    taken = [next(iter(first)).name]
    taken += [c.name for c in Turns(cases, tmp_path / "turns", seconds)]
    assert taken == ["model b2 f32", "model b3 f32", "model b1 f32", "counting b3 f32",
                     "counting b2 f32", "counting b1 f32"]
    assert not list(first)  # none is taken twice
    assert turns.expected_s(Case(COUNTING, 8, "f32"), {}) > turns.expected_s(cases[0], {})
    (tmp_path / "old").mkdir()
    folder = Folder(tmp_path / "old")
    folder.add_phases("counting b1 f32", {"xla": 1.0, "total": 2.5}, worker=1)
    folder.add_phases("counting b1 f32", {"torch_compile": 1.0, "total": 1.5}, turns="torch")
    folder.add_phases("counting b2 f32", {"xla": 1.0, "total": 3.5}, turns="own")
    told = turns.seconds_of(tmp_path, "own", besides=tmp_path / "new")
    assert told == {"counting b1 f32": 2.5, "counting b2 f32": 3.5}
    assert turns.seconds_of(tmp_path, "own", besides=tmp_path / "old") == {}


def test_chained_calls_depend_on_each_other_and_none_is_left_out() -> None:
    """A helper of the GPU tests: nothing may be computed once for all calls, or not at all."""
    def step(state: Any, carry: Any, ids: jax.Array) -> Any:
        return jnp.tanh(jnp.sin(ids * state) @ state), carry

    ids = jnp.ones((4, 8, 8), jnp.int32)
    text = chained(step, 4).lower(jnp.ones((8, 8)), (), ids).compile().as_text() or ""
    single = jax.jit(step).lower(jnp.ones((8, 8)), (), ids[0]).compile().as_text() or ""
    assert text.count(" dot(") + text.count("__ynn") >= 4 * max(
        1, single.count(" dot(") + single.count("__ynn"))
