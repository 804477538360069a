"""``wait=False``: XLA runs the function until its kernels are made (in the interpreter)."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
import threading
import warnings
import weakref
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxmono
from jaxmono import _build
from jaxmono._errors import CompileError, JaxmonoWarning
from jaxmono.custom_call import stitch

X = Any
ROOT = Path(__file__).parents[2]


@pytest.fixture
def stitched(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Functions whose bodies became kernels, in order."""
    found: list[str] = []
    own = stitch.rewrite

    def rewrite(function: X, imported: X, result: X) -> None:
        found.append(imported.graph.name)
        own(function, imported, result)

    monkeypatch.setattr(stitch, "rewrite", rewrite)
    monkeypatch.setenv("JAXMONO_CACHE", "off")
    return found


@pytest.fixture
def held(monkeypatch: pytest.MonkeyPatch) -> Iterator[threading.Event]:
    """Nothing is compiled before this is set."""
    go, own = threading.Event(), _build.generate

    def generate(*args: X, **kw: X) -> X:
        assert go.wait(60)
        return own(*args, **kw)

    monkeypatch.setattr(_build, "generate", generate)
    yield go
    go.set()


def layer(x: X, w: X) -> X:
    return jax.nn.gelu(x @ w).sum(-1)


ARGS = np.linspace(-1, 1, 24, dtype=np.float32).reshape(4, 6), np.full((6, 5), 0.1, np.float32)


def test_xla_runs_it_until_kernels_are_made(stitched: list[str], held: threading.Event) -> None:
    fast = jaxmono.jit(layer, interpret=True, wait=False)
    wanted = layer(*ARGS)
    for _ in range(3):
        np.testing.assert_allclose(fast(*ARGS), wanted, rtol=1e-5)
    assert not stitched and not fast.wait(0.05)
    held.set()
    assert fast.wait(60) and not stitched
    for _ in range(3):
        np.testing.assert_allclose(fast(*ARGS), wanted, rtol=1e-5)
    assert len(stitched) == 1


def test_each_type_has_kernels_of_its_own(stitched: list[str]) -> None:
    fast = jaxmono.jit(layer, interpret=True, wait=False)
    for n in (1, 2, 3):
        fast(ARGS[0][:n], ARGS[1])
    assert not stitched and fast.wait(60)
    for n in (1, 2, 3):
        x = ARGS[0][:n]
        np.testing.assert_allclose(fast(x, ARGS[1]), layer(x, ARGS[1]), rtol=1e-5)
    assert len(stitched) == 3


def called(fast: X) -> X:
    def layer(x: X, w: X) -> X:  # of the same name
        return fast(x, w) * 2

    return layer


@pytest.mark.parametrize("around", [
    called, lambda f: f, lambda f: lambda x, w: f(x, w), jax.checkpoint,
    lambda f: jax.vmap(f, (0, None)), lambda f: jax.value_and_grad(lambda x, w: f(x, w).sum()),
    lambda f: jax.grad(lambda x, w: f(x, w).sum())])
def test_what_another_function_calls_is_waited_for(around: X, stitched: list[str]) -> None:
    """Its module stays as it is, whatever its name."""
    fast = jaxmono.jit(layer, interpret=True, wait=False)
    for a, b in zip(jax.tree.leaves(jax.jit(around(fast))(*ARGS)),
                    jax.tree.leaves(around(layer)(*ARGS)), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-6)
    assert stitched


@pytest.mark.parametrize("around", [
    lambda f: lambda x: jax.grad(lambda x: f(x, ARGS[1]).sum())(x),
    lambda f: lambda x: jax.vmap(f, (0, None))(x[None], ARGS[1])])
def test_transformations_that_are_not_compiled_have_kernels_later(
        around: X, stitched: list[str]) -> None:
    fast = around(g := jaxmono.jit(layer, interpret=True, wait=False))
    wanted = around(layer)(ARGS[0])
    np.testing.assert_allclose(fast(ARGS[0]), wanted, rtol=1e-4, atol=1e-6)
    assert not stitched and g.wait(60)
    np.testing.assert_allclose(fast(ARGS[0]), wanted, rtol=1e-4, atol=1e-6)
    assert stitched


@pytest.mark.parametrize("where", ["several processes", "tuning"])
def test_where_kernels_are_waited_for_all_the_same(
        where: str, stitched: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    if where == "tuning":
        monkeypatch.setenv("JAXMONO_TUNE", "on")
    else:
        monkeypatch.setattr(jax, "process_count", lambda: 2)
    fast = jaxmono.jit(layer, interpret=True, wait=False)
    np.testing.assert_allclose(fast(*ARGS), layer(*ARGS), rtol=1e-5)
    assert len(stitched) == 1


def test_nothing_keeps_a_function_alive() -> None:
    def fun(x: X) -> X:
        return jnp.sin(x) + 1

    fast = jaxmono.jit(fun, interpret=True, wait=False)
    for _ in range(2):
        fast(ARGS[0])
        assert fast.wait(60)
    dead = weakref.ref(fun), weakref.ref(fast)
    del fun, fast
    jax.clear_caches()
    gc.collect()
    assert [ref() for ref in dead] == [None, None]


def test_stages_wait(stitched: list[str]) -> None:
    fast = jaxmono.jit(layer, interpret=True, wait=False)
    assert fast.explain(*ARGS).kernels == 1 and not stitched
    assert fast.lower(*ARGS).compile().explain().kernels == 1 and len(stitched) == 1
    fast.trace(*ARGS).lower()
    assert len(stitched) == 2


def test_kernels_that_fail_stay_with_xla(stitched: list[str],
                                         monkeypatch: pytest.MonkeyPatch) -> None:
    """With the one line that there is where they are waited for."""
    def generate(*args: X, **kw: X) -> X:
        raise CompileError("no registers")

    monkeypatch.setattr(_build, "generate", generate)
    fast = jaxmono.jit(layer, interpret=True, wait=False)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        fast(*ARGS)
    assert fast.wait(60)
    with pytest.warns(JaxmonoWarning, match="no registers") as told:
        np.testing.assert_allclose(fast(*ARGS), layer(*ARGS), rtol=1e-5)
        fast(ARGS[0][:2], ARGS[1])
        assert fast.wait(60)
        fast(*ARGS)
        fast(ARGS[0][:2], ARGS[1])
    assert len(told) == 1 and not stitched
    strict = jaxmono.jit(layer, interpret=True, wait=False, on_unsupported="error")
    strict(*ARGS)
    assert strict.wait(60)
    with pytest.raises(CompileError, match="no registers"):
        strict(*ARGS)


def test_what_the_cache_has_is_not_made_again(
        stitched: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JAXMONO_CACHE", "on")
    monkeypatch.setenv("JAXMONO_CACHE_DIR", str(tmp_path))
    jaxmono.jit(layer, interpret=True)(*ARGS)
    fast = jaxmono.jit(layer, interpret=True, wait=False)
    fast(*ARGS)
    assert len(stitched) == 2


def test_donation_and_static_arguments(stitched: list[str]) -> None:
    def step(x: X, n: int) -> X:
        return x * n + 1

    fast = jaxmono.jit(step, interpret=True, wait=False, static_argnums=1, donate_argnums=0)
    for _ in range(2):
        for n in (2, 3):
            np.testing.assert_array_equal(fast(jnp.ones((8,)), n), np.full(8, n + 1.0))
        assert fast.wait(60)
    assert len(stitched) == 2


def test_many_functions_of_one_decorator() -> None:
    made = [jaxmono.jit(interpret=True, wait=False)(lambda x, i=i: x + i) for i in range(3)]
    for _ in range(2):
        assert [float(f(1.0)) for f in made] == [1.0, 2.0, 3.0]
        assert all(f.wait(60) for f in made)


def test_there_is_nothing_to_wait_for_by_default(stitched: list[str]) -> None:
    fast = jaxmono.jit(lambda x, w: layer(x, w), interpret=True)
    assert fast.wait() and fast.wait(timeout=0.0)
    fast(*ARGS)
    assert len(stitched) == 1


def run(text: str) -> list[str]:
    """What a process prints that ends well, in words."""
    done = subprocess.run([sys.executable, "-c", text], capture_output=True, text=True, timeout=100,
                          cwd=ROOT, env={**os.environ, "JAXMONO_CACHE": "off"}, check=False)
    assert done.returncode == 0 and "Traceback" not in done.stderr, done.stderr[-2000:]
    return done.stdout.split()


def test_a_process_may_end_meanwhile() -> None:
    """Compilers are told that nobody needs them (this one would go on for good)."""
    assert run("""
import time, jax.numpy as jnp, jaxmono
from jaxmono import CompileError, _build
def generate(*args, cancelled, **kw):
    while not any(event.is_set() for event in cancelled):
        time.sleep(0.01)
    raise CompileError("not needed any more")
_build.generate = generate
fast = jaxmono.jit(lambda x: jnp.sin(x) + 1, interpret=True, wait=False)
print(fast(jnp.ones(3)).size, fast.wait(0.1))
""") == ["3", "False"]


def test_a_thread_may_go_on_behind_the_main_one() -> None:
    """Python starts no threads then: kernels are waited for, or were made."""
    assert run("""
import threading, jax.numpy as jnp, jaxmono
fast = jaxmono.jit(lambda x: jnp.sin(x) + 1, interpret=True, wait=False)
def work():
    threading.main_thread().join()
    for n in (2, 3):
        assert fast(jnp.ones(n)).shape == (n,)
        print(fast.wait(30), flush=True)
threading.Thread(target=work).start()
fast(jnp.ones(2))
""") == ["True", "True"]


def test_it_is_a_switch() -> None:
    with pytest.raises(TypeError, match="wait must be True or False, not 'no'"):
        jaxmono.jit(layer, wait="no")  # type: ignore[call-overload]
