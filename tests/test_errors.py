"""Every misuse has a message that names the argument, the value and the next step; every failure
behind the API is one warning line and XLA's result."""

from __future__ import annotations

import dataclasses
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from threading import Barrier
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxmono

pytestmark = pytest.mark.usefixtures("sorts_left_to_xla")


def f(x: Any) -> Any:
    return x + 1


@pytest.mark.parametrize(("kw", "error", "says"), [
    ({"mode": "auot"}, ValueError, ["mode='auot'", "'monolithic'", "Did you mean 'auto'?"]),
    ({"mode": 3}, TypeError, ["mode must be a string", "3"]),
    ({"mode": "layer"}, NotImplementedError, ["mode='layer'", "'auto', 'monolithic' or 'stitch'"]),
    ({"mode": "elementwise"}, NotImplementedError, ["'auto', 'monolithic' or 'stitch'"]),
    ({"on_unsupported": "raise"}, ValueError, ["on_unsupported='raise'", "'xla' or 'error'"]),
    ({"on_unsupported": None}, TypeError, ["on_unsupported must be a string", "None"]),
    ({"interpret": "yes"}, TypeError, ["interpret must be True or False", "'yes'"]),
    ({"interpret": 1}, TypeError, ["interpret must be True or False", "1"]),
    ({"static_argnum": 0}, TypeError, ["'static_argnum'", "Did you mean 'static_argnums'"]),
    ({"interpet": True}, TypeError, ["'interpet'", "'interpret'"]),
    ({"wibble": 0}, TypeError, ["'wibble'", "mode, on_unsupported, interpret", "donate_argnums"]),
])
def test_keywords(kw: dict[str, Any], error: type[Exception], says: list[str]) -> None:
    for call in (lambda: jaxmono.jit(f, **kw), lambda: jaxmono.jit(**kw),
                 lambda: jaxmono.explain(f, **kw)):
        with pytest.raises(error) as info:
            call()
        assert str(info.value).startswith("jaxmono.jit: ")
        for part in says:
            assert part in str(info.value)


def test_not_callable() -> None:
    with pytest.raises(TypeError, match=r"must be callable, not 3 of type int"):
        jaxmono.jit(3)  # pyright: ignore[reportCallIssue, reportArgumentType]
    with pytest.raises(TypeError, match=r"not the string 'auto'; options are keywords"):
        jaxmono.jit("auto")  # pyright: ignore[reportCallIssue, reportArgumentType]
    with pytest.raises(TypeError, match="must be callable"):
        jaxmono.explain([f])  # pyright: ignore[reportArgumentType]


def test_generators_and_coroutines() -> None:
    def generator(x: Any) -> Any:
        yield x

    async def coroutine(x: Any) -> Any:
        return x

    for fun in (generator, coroutine):
        with pytest.raises(TypeError, match=f"{fun.__name__} is a generator or coroutine"):
            jaxmono.jit(fun)


def test_an_output_that_is_no_array_names_its_place() -> None:
    with pytest.raises(TypeError) as info:
        jaxmono.jit(lambda x: {"a": x, "b": [x, "text"]})(1.0)
    message = str(info.value)
    assert "str ('text') at ['b'][1]" in message and "outputs must be arrays" in message


def test_arguments_fail_as_under_jax_jit() -> None:
    cases: list[tuple[Any, tuple[Any, ...], dict[str, Any]]] = [
        (lambda x, s: x, (1.0, "text"), {}),
        (lambda x, s: x, (1.0, [1]), {"static_argnums": 1}),
        (lambda x: x, (1.0,), {"donate_argnums": 5}),
        (lambda x: bool(x > 0) and x, (1.0,), {}),
    ]
    for fun, args, kw in cases:
        with pytest.raises(Exception) as theirs:
            jax.jit(fun, **kw)(*args)
        with pytest.raises(type(theirs.value)):
            jaxmono.jit(fun, **kw)(*args)


def test_explain_of_a_jitted_function_refuses_new_keywords() -> None:
    g = jaxmono.jit(f)
    assert jaxmono.explain(g)(jnp.ones(3)).total.ops > 0
    with pytest.raises(TypeError, match=r"\['mode'\] have no effect"):
        jaxmono.explain(g, mode="auto")


def test_unknown_dialects_of_both_stages() -> None:
    lowered = jaxmono.jit(f).lower(1.0)
    for stage in (lowered, lowered.compile()):
        with pytest.raises(ValueError, match=r"dialect='cudaa' .*Did you mean 'cuda'\?"):
            stage.as_text("cudaa")
        with pytest.raises(ValueError, match="dialect=3"):
            stage.as_text(3)  # pyright: ignore[reportArgumentType]


# ---- failures behind the API: one warning line, XLA's result ----------------------------------


def soft(x: Any) -> Any:
    e = jnp.exp(x - x.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


X = np.linspace(-3.0, 3.0, 24, dtype=np.float32).reshape(4, 6)


def falls_back(fun: Any, *says: str) -> None:
    """``fun`` in the interpreter: exactly one warning line that says all of it; XLA's result."""
    with pytest.warns(jaxmono.JaxmonoWarning) as seen:
        got = jaxmono.jit(fun, interpret=True)(X)
    np.testing.assert_array_equal(got, jax.jit(fun)(X))
    (warning,) = [str(w.message) for w in seen if w.category is jaxmono.JaxmonoWarning]
    assert "\n" not in warning
    for part in (*says, "XLA runs it"):
        assert part in warning


def fresh(scale: float) -> Any:
    """A program that no other test has put into the cache."""
    return lambda x: soft(x * scale)


@contextmanager
def two_at_once(*_: Any) -> Any:
    """In place of `_build.compilers`, which takes no interpreter's kernels."""
    from jaxmono._build import Compilers

    with ThreadPoolExecutor(2) as pool:
        yield Compilers(pool)


def test_kernels_are_compiled_side_by_side(monkeypatch: pytest.MonkeyPatch,
                                           empty_cache: Path) -> None:
    from jaxmono import _build

    real, both = _build.generate, Barrier(2, timeout=60)

    def meeting(*args: Any, **kw: Any) -> Any:
        both.wait()
        return real(*args, **kw)

    monkeypatch.setattr("jaxmono._build.generate", meeting)
    monkeypatch.setattr("jaxmono._driver.compilers", two_at_once)

    def split(x: Any) -> Any:
        return soft(jnp.sort(3 * soft(x)))

    lowered = jaxmono.jit(split, interpret=True).lower(X)
    assert lowered.explain().kernels == 2
    np.testing.assert_allclose(lowered.compile()(X), jax.jit(split)(X), rtol=1e-5)


def test_who_compiles(monkeypatch: pytest.MonkeyPatch) -> None:
    """With few cores, one kernel or a tuner beside it nobody but the caller."""
    from jaxmono import _build, _config, _tune
    from jaxmono._device import facts_for

    facts, config = facts_for("cuda", interpret=False), _config.read()

    def pool(kernels: int, cores: int) -> bool:
        monkeypatch.setattr(_build, "cores", lambda: cores)
        with _build.compilers(facts, config, kernels) as found:
            return found is not None

    assert pool(2, 16) and pool(6, 4) and not pool(1, 16) and not pool(2, 2)
    with _tune.tuning(None):
        assert not pool(2, 16)


@pytest.fixture
def empty_cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    monkeypatch.setenv("JAXMONO_CACHE_DIR", str(tmp_path))
    return tmp_path


def test_no_compiler(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("CXX", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    falls_back(fresh(1.1), "mono_lambda", "g++", "install")
    with pytest.raises(jaxmono.CompileError, match=r"g\+\+"):
        jaxmono.jit(fresh(1.2), interpret=True, on_unsupported="error")(X)
    assert jaxmono.explain(fresh(1.3), interpret=True)(X).kernels == 1, "planning needs none"


def test_a_compiler_that_refuses_the_kernel(monkeypatch: pytest.MonkeyPatch,
                                            empty_cache: Path) -> None:
    def bad(*_: Any, **__: Any) -> Any:
        raise jaxmono.CompileError("the compiler said\nno")

    monkeypatch.setattr("jaxmono._build.generate", bad)
    falls_back(fresh(2.0), "CompileError: the compiler said no", "on_unsupported='error'")
    with pytest.warns(jaxmono.JaxmonoWarning):
        report = jaxmono.jit(fresh(2.1), interpret=True).lower(X).explain()
    assert report.kernels == 0
    assert {r.reason for r in report.refused} == {
        "building its kernel failed: the compiler said\nno"}
    with pytest.raises(jaxmono.CompileError, match="the compiler said"):
        jaxmono.jit(fresh(2.2), interpret=True, on_unsupported="error")(X)


def test_a_planner_that_fails(monkeypatch: pytest.MonkeyPatch, empty_cache: Path) -> None:
    def bad(*_: Any, **__: Any) -> Any:
        raise RuntimeError("no plan")

    monkeypatch.setattr("jaxmono._build.make_plan", bad)
    falls_back(fresh(3.0), "RuntimeError: no plan")


@pytest.mark.sampled(2)
@pytest.mark.parametrize("at_once", [False, True])
def test_one_failing_kernel_leaves_the_others(at_once: bool, monkeypatch: pytest.MonkeyPatch,
                                              empty_cache: Path) -> None:
    from jaxmono import _build

    real = _build.generate
    if at_once:
        monkeypatch.setattr("jaxmono._driver.compilers", two_at_once)

    def first_only(plan: Any, target: Any, device: Any, name: str, *rest: Any, **kw: Any) -> Any:
        if name.endswith("_1"):
            raise jaxmono.CompileError("not this one")
        return real(plan, target, device, name, *rest, **kw)

    monkeypatch.setattr("jaxmono._build.generate", first_only)

    def split(x: Any) -> Any:
        return soft(jnp.sort(2 * soft(x)))

    with pytest.warns(jaxmono.JaxmonoWarning, match="mono_split_1"):
        lowered = jaxmono.jit(split, interpret=True).lower(X)
    assert lowered.explain().kernels == 1
    np.testing.assert_allclose(lowered.compile()(X), jax.jit(split)(X), rtol=1e-5)


def test_a_binary_that_cannot_be_loaded(monkeypatch: pytest.MonkeyPatch,
                                        empty_cache: Path) -> None:
    from jaxmono import _build

    real = _build.generate
    monkeypatch.setattr("jaxmono._build.generate", lambda *args, **kw: dataclasses.replace(
        real(*args, **kw), binary=b"no shared object"))
    falls_back(fresh(4.0), "lambda")
    with pytest.warns(jaxmono.JaxmonoWarning):
        report = jaxmono.jit(fresh(4.1), interpret=True).lower(X).explain()
    assert report.kernels == 0 and "could not be used" in report.note


def test_a_damaged_cache_entry_is_one_warning_and_a_miss(empty_cache: Path) -> None:
    f = fresh(5.0)
    want = jaxmono.jit(f, interpret=True)(X)
    (entry,) = empty_cache.rglob("*.program")
    good = entry.read_bytes()
    for damage in (good[:-100], b"", good[:200] + b"x" + good[201:], b"garbage" * 100):
        entry.write_bytes(damage)
        with pytest.warns(jaxmono.JaxmonoWarning, match="unusable") as seen:
            lowered = jaxmono.jit(f, interpret=True).lower(X)
        assert len(seen) == 1
        assert lowered.explain().kernels == 1 and lowered.explain().cached is False
        np.testing.assert_array_equal(lowered.compile()(X), want)
        assert jaxmono.jit(f, interpret=True).lower(X).explain().cached is True


def test_a_malformed_setting_raises_and_does_not_fall_back(
        monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JAXMONO_CACHE", "perhaps")
    with pytest.raises(jaxmono.ConfigError, match="JAXMONO_CACHE='perhaps'"):
        jaxmono.jit(fresh(6.0), interpret=True)(X)


def test_lowering_for_a_gpu_that_is_not_here() -> None:
    def lowered(f: Any) -> str:
        return jaxmono.jit(f).trace(X).lower(lowering_platforms=("cuda",)).as_text()

    with pytest.warns(jaxmono.JaxmonoWarning, match="no GPU to compile cuda kernels for"):
        text = lowered(fresh(7.0))
    assert "custom_call" not in text and "stablehlo.exponential" in text


def test_interpret_and_a_gpu_do_not_go_together() -> None:
    f = jaxmono.jit(fresh(7.1), interpret=True)
    text = f.trace(X).lower(lowering_platforms=("cuda",)).as_text()
    assert "custom_call" not in text
