"""What goes wrong on a real GPU: one warning line, XLA runs the program, the result is right."""

from __future__ import annotations

import dataclasses
import importlib
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxmono
from jaxmono.codegen.nvrtc import NvrtcError

compile_module = importlib.import_module("jaxmono.codegen.compile")
generate_module = importlib.import_module("jaxmono.codegen.generate")


def program(x: jax.Array, w: jax.Array) -> jax.Array:
    return jax.nn.softmax(jnp.tanh(x @ w), -1)


X = jax.random.normal(jax.random.key(0), (64, 64), jnp.bfloat16)


def check(y: jax.Array) -> None:
    expected = np.asarray(jax.jit(program)(X, X.T), np.float32)
    np.testing.assert_allclose(np.asarray(y, np.float32), expected, rtol=2e-2, atol=1e-3)


def fresh() -> Any:
    """A function that no cache of JAX knows."""
    return jaxmono.jit(lambda x, w: program(x, w))


@pytest.fixture(autouse=True)
def no_cache(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JAXMONO_CACHE", "off")


def test_a_binary_that_does_not_load(monkeypatch: pytest.MonkeyPatch) -> None:
    real = compile_module.compile_cuda
    monkeypatch.setattr(compile_module, "compile_cuda", lambda *a, **k: dataclasses.replace(
        real(*a, **k), cubin=b"\x7fELF not a kernel" * 50))
    with pytest.warns(jaxmono.JaxmonoWarning, match="cuModuleLoadData failed") as told:
        check(fresh()(X, X.T))
    assert len(told) == 1


def test_a_source_that_does_not_compile(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*args: Any, **options: Any) -> Any:
        del args, options
        raise NvrtcError("NVRTC could not compile the kernel", "")

    monkeypatch.setattr(compile_module, "compile_cuda", fail)
    with pytest.warns(jaxmono.JaxmonoWarning, match="NVRTC could not compile") as told:
        check(fresh()(X, X.T))
    assert len(told) == 1
    with pytest.raises(NvrtcError):
        jaxmono.jit(lambda x: jnp.sin(x) * 3, on_unsupported="error")(X)


def test_a_kernel_that_no_sm_can_hold(monkeypatch: pytest.MonkeyPatch) -> None:
    real = generate_module.emit_kernel
    monkeypatch.setattr(generate_module, "emit_kernel", lambda *a, **k: dataclasses.replace(
        real(*a, **k), shared_bytes=900 * 1024))
    with pytest.warns(jaxmono.JaxmonoWarning) as told:
        check(fresh()(X, X.T))
    assert len(told) == 1


def test_a_damaged_cache_entry(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("JAXMONO_CACHE")
    monkeypatch.setenv("JAXMONO_CACHE_DIR", str(tmp_path))
    check(fresh()(X, X.T))
    entries = [p for p in tmp_path.rglob("*") if p.is_file() and p.stat().st_size > 1000]
    assert entries
    for p in entries:
        data = bytearray(p.read_bytes())
        data[len(data) // 2] ^= 0xFF
        p.write_bytes(data)
    jax.clear_caches()
    with pytest.warns(jaxmono.JaxmonoWarning) as told:
        check(fresh()(X, X.T))
    assert len(told) == 1
    jax.clear_caches()
    check(fresh()(X, X.T))  # the entry was replaced: no warning, which would fail the test
