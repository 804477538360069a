"""A tuned function beside XLA's program of it: timed here by the interpreter's clock, where XLA's
is always faster, or told what it took."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxmono
from jaxmono import _beside, _tune
from jaxmono.tuning import Beside

X = jax.ShapeDtypeStruct((4, 24), jnp.float32)


def layer(x: Any) -> Any:
    return jnp.tanh(x - x.mean(-1, keepdims=True)) * 2


@pytest.fixture(autouse=True)
def timed_in_the_interpreter(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JAXMONO_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr(_beside, "PLATFORMS", {"interpret": "cpu"})


def jitted(fn: Any = layer, **kw: Any) -> Any:
    return jaxmono.jit(fn, interpret=True, **kw)


def kernels(fn: Any, *args: Any) -> int:
    return fn.lower(*args).as_text().count("jaxmono_interpret")


def told(monkeypatch: pytest.MonkeyPatch, ours: float, theirs: float) -> None:
    """Microseconds that the stopwatch tells from now on, of kernels and of XLA's program."""
    class Told:
        def __init__(self, *_: Any) -> None:
            self.turn = 0

        def us(self, start: Any) -> list[float]:
            jax.block_until_ready(start())
            self.turn += 1
            return [ours if self.turn % 2 else theirs]

    monkeypatch.setattr(_beside, "Stopwatch", Told)


def test_xla_runs_what_it_runs_faster(monkeypatch: pytest.MonkeyPatch) -> None:
    told(monkeypatch, 5.0, 4.0)
    report = jaxmono.tune(jitted())(X)
    assert report.beside == Beside(5.0, 4.0) and report.beside.xla_wins
    assert "5.00 us by its kernels, 4.00 by XLA's program, which runs from now on" in str(report)
    assert kernels(jitted(), X) == 0
    x = np.random.default_rng(0).standard_normal(X.shape).astype(np.float32)
    np.testing.assert_array_equal(jitted()(x), jax.jit(layer)(x))
    for told_of in (jitted().explain(X), jitted().lower(X).explain()):
        assert told_of.kernels == 0 and len(told_of.planned) == 1
        assert "5.00 us by its kernels" in told_of.note and "JAXMONO_TUNE=off" in told_of.note


@pytest.mark.parametrize("theirs", [4.9, 5.0, 9.0])
def test_kernels_stay_where_they_are_as_fast(monkeypatch: pytest.MonkeyPatch,
                                             theirs: float) -> None:
    told(monkeypatch, 5.0, theirs)
    report = jaxmono.tune(jitted())(X)
    assert report.beside is not None and not report.beside.xla_wins
    assert kernels(jitted(), X) == 1
    assert jitted().explain(X).note == ""


def test_who_asks_for_kernels_gets_them(monkeypatch: pytest.MonkeyPatch) -> None:
    told(monkeypatch, 5.0, 4.0)
    jaxmono.tune(jitted())(X)
    assert kernels(jitted(on_unsupported="error"), X) == 1
    monkeypatch.setenv("JAXMONO_TUNE", "off")
    assert kernels(jitted(), X) == 1


def test_other_functions_and_shapes_are_not_meant(monkeypatch: pytest.MonkeyPatch) -> None:
    told(monkeypatch, 5.0, 4.0)
    jaxmono.tune(jitted())(X)
    assert kernels(jitted(lambda x: layer(x) + 1), X) == 1
    assert kernels(jitted(), jax.ShapeDtypeStruct((4, 25), jnp.float32)) == 1
    assert kernels(jitted(lambda y: layer(y)), X) == 0  # the same by another name


def test_what_is_known_is_not_timed_again(monkeypatch: pytest.MonkeyPatch) -> None:
    told(monkeypatch, 5.0, 4.0)
    jaxmono.tune(jitted())(X)
    monkeypatch.setattr(_beside, "Stopwatch", lambda *_: pytest.fail("timed a second time"))
    assert jaxmono.tune(jitted())(X).beside == Beside(5.0, 4.0)
    _tune._cache.cache_clear()  # another process
    assert kernels(jitted(), X) == 0


def test_without_a_cache_on_disk_this_process_knows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JAXMONO_CACHE", "off")
    _tune._cache.cache_clear()
    told(monkeypatch, 5.0, 4.0)
    jaxmono.tune(jitted())(X)
    assert kernels(jitted(), X) == 0
    _tune._cache.cache_clear()
    assert kernels(jitted(), X) == 1


def test_what_donates_is_not_run(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nor is what is known of the function when it does not."""
    told(monkeypatch, 5.0, 4.0)
    x = jnp.ones(X.shape)
    report = jaxmono.tune(jitted(donate_argnums=0))(x)
    assert report.beside is None and "it donates arguments" in report.note
    assert not x.is_deleted()
    jaxmono.tune(jitted())(X)
    assert kernels(jitted(), X) == 0
    assert kernels(jitted(donate_argnums=0), X) == 1


def test_what_has_side_effects_is_not_run(monkeypatch: pytest.MonkeyPatch) -> None:
    told(monkeypatch, 5.0, 4.0)
    seen: list[Any] = []

    def fn(x: Any) -> Any:
        jax.debug.callback(seen.append, x.sum())
        return layer(x)

    report = jaxmono.tune(jitted(fn))(jnp.ones(X.shape))
    assert report.beside is None and "side effects" in report.note and not seen


def test_loops_that_drawn_numbers_would_not_end_are_not_run() -> None:
    def fn(x: Any, n: Any) -> Any:
        return jax.lax.while_loop(lambda c: c[1] != n, lambda c: (c[0] * 2, c[1] + 2), (x, 0))[0]

    report = jaxmono.tune(jitted(fn))(X, jax.ShapeDtypeStruct((), jnp.int32))
    assert report.beside is None and "give arrays" in report.note
    assert jaxmono.tune(jitted(fn))(X, jnp.int32(4)).beside is None  # X is drawn


def test_jaxmono_functions_inside_are_not_xlas(monkeypatch: pytest.MonkeyPatch) -> None:
    told(monkeypatch, 5.0, 4.0)
    inner = jitted()
    report = jaxmono.tune(jitted(lambda x: inner(x) + jnp.cos(x)))(X)
    assert report.beside is None and "tune these" in report.note


def test_better_schedules_are_timed_again(monkeypatch: pytest.MonkeyPatch) -> None:
    told(monkeypatch, 5.0, 4.0)
    outcomes = jitted().lower(X)._collected.outcomes

    def found(again: bool) -> Beside | None:
        return _beside.beside_xla(lambda: jitted(), lambda: jax.jit(layer), (X,), {}, outcomes,
                                  None, again=again)[0]

    assert found(again=False) == Beside(5.0, 4.0)
    told(monkeypatch, 3.0, 4.0)
    assert found(again=False) == Beside(5.0, 4.0)
    assert found(again=True) == Beside(3.0, 4.0)
    assert kernels(jitted(), X) == 1


@pytest.mark.parametrize("kw", [{"static_argnames": "how"}, {"static_argnums": 1}])
def test_static_arguments_by_name_and_by_place(monkeypatch: pytest.MonkeyPatch, kw: Any) -> None:
    told(monkeypatch, 5.0, 4.0)

    def fn(x: Any, how: str) -> Any:
        assert how == "twice"
        return layer(x) * 2

    for give in (lambda f: f(X, "twice"), lambda f: f(X, how="twice")):
        report = give(jaxmono.tune(jitted(fn, **kw)))
        assert report.beside == Beside(5.0, 4.0), report


def test_numpy_arguments_are_moved_once(monkeypatch: pytest.MonkeyPatch) -> None:
    assert isinstance(_beside._on_device(np.ones(3, np.float32)), jax.Array)
    told(monkeypatch, 5.0, 4.0)
    assert jaxmono.tune(jitted())(np.ones(X.shape, np.float32)).beside is not None


def test_static_arguments_and_pytrees(monkeypatch: pytest.MonkeyPatch) -> None:
    told(monkeypatch, 5.0, 4.0)

    def fn(x: Any, how: str, *, key: Any) -> Any:
        assert how == "twice"
        return x["a"] * 2 + jax.random.uniform(key, X.shape)

    report = jaxmono.tune(jitted(fn, static_argnums=1))(
        {"a": X}, "twice", key=jax.ShapeDtypeStruct((), jax.random.key(0).dtype))
    assert report.beside == Beside(5.0, 4.0), report


def test_a_failure_is_told_and_nothing_else_happens(monkeypatch: pytest.MonkeyPatch) -> None:
    class Broken:
        def __init__(self, *_: Any) -> None:
            raise RuntimeError("no clock")

    monkeypatch.setattr(_beside, "Stopwatch", Broken)
    report = jaxmono.tune(jitted())(X)
    assert report.beside is None and "RuntimeError: no clock" in report.note
    assert kernels(jitted(), X) == 1


def test_several_call_sites_are_not_one_function() -> None:
    outcomes = [o for f in (layer, jnp.sin) for o in jitted(f).lower(X)._collected.outcomes]
    found, why = _beside.beside_xla(lambda: pytest.fail("timed"), lambda: jax.jit(layer), (X,), {},
                                    outcomes, None, again=False)
    assert found is None and "tune each" in why


def test_another_device_is_not_timed() -> None:
    """The clock would be that of the first."""
    report = jaxmono.tune(jitted())(jax.device_put(np.ones(X.shape, np.float32), jax.devices()[1]))
    assert report.beside is None and "another device" in report.note


def test_the_clock_runs() -> None:
    """By the real stopwatch: XLA's program is faster than the interpreter."""
    report = jaxmono.tune(jitted())(X)
    assert report.beside is not None, report
    assert report.beside.kernels_us > report.beside.xla_us > 0
