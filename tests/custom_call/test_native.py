"""The native library: it builds without warnings, declares CUDA right, says what is wrong."""

from __future__ import annotations

import ctypes
import dataclasses
import shutil
import subprocess
from pathlib import Path
from typing import Any

import jax.ffi
import pytest
from op_by_op import program

from jaxmono._errors import CompileError
from jaxmono.custom_call import build, registration
from jaxmono.hlo.types import DType, TensorType

NATIVE = Path(build.HERE) / "native"
CUDA_HEADERS = next((p for p in Path("/usr/local").glob("cuda*/include")
                     if (p / "cuda.h").exists()), None)
FLAGS = ["-std=c++17", "-Wall", "-Wextra", "-Werror"]


def test_sources_have_no_warnings() -> None:
    assert {p.name for p in NATIVE.glob("*.cc")} == set(build.SOURCES)
    subprocess.run(["g++", *FLAGS, "-fsyntax-only", "-isystem", jax.ffi.include_dir(),
                    *(str(NATIVE / s) for s in build.SOURCES)], check=True)


def test_cmake_lists_the_same_sources() -> None:
    text = (Path(build.HERE).parents[1] / "CMakeLists.txt").read_text()
    assert all(f"/{s}" in text for s in build.SOURCES)


@pytest.mark.skipif(CUDA_HEADERS is None, reason="no CUDA toolkit")
def test_declarations_agree_with_cuda_h() -> None:
    source = Path(__file__).with_name("check_cuda_abi.cc")
    subprocess.run(["g++", *FLAGS, "-fsyntax-only", "-isystem", str(CUDA_HEADERS), "-I",
                    str(NATIVE), str(source)], check=True)


def test_build_names_a_failing_compiler(monkeypatch: pytest.MonkeyPatch, tmp_path: Path,
                                        capsys: Any) -> None:
    monkeypatch.setenv("CXX", shutil.which("false") or "/bin/false")
    with pytest.raises(RuntimeError, match="could not build"):
        build.build(tmp_path)
    assert list(tmp_path.iterdir()) == []
    monkeypatch.delenv("CXX")
    monkeypatch.setenv("PATH", "/nowhere")
    with pytest.raises(RuntimeError, match="install g\\+\\+"):
        build.build(tmp_path)
    assert build.main([str(tmp_path)]) == 1
    assert "install g++" in capsys.readouterr().err


def test_missing_library_tells_how_to_build_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registration, "library_path", lambda: None)
    registration.library.cache_clear()
    try:
        with pytest.raises(CompileError, match=r"python -m jaxmono\.custom_call\.build"):
            registration.library()
    finally:
        registration.library.cache_clear()


def test_probe_of_a_kernel_that_cannot_be_loaded() -> None:
    one = [TensorType((1,), DType.F32)]
    with pytest.raises(CompileError, match=r"kernel mono_f.*could not be loaded"):
        registration.probe(program("", one, one, name="mono_f", binary=b"\x7fELF"))


@pytest.mark.skipif(Path("/dev/nvidiactl").exists(), reason="there is a GPU")
def test_cuda_probe_without_a_driver_says_so() -> None:
    error = ctypes.create_string_buffer(512)
    failed = registration.library().jaxmono_cuda_probe(
        b"\0", ctypes.c_int64(1), b"mono_f", b"sm_90a", 32, 1, 1, 0, 1, 0, (ctypes.c_int * 3)(),
        error, 512)
    assert failed == 1
    text = error.value.decode()
    assert "mono_f" in text and ("libcuda.so.1" in text or "cuInit" in text)


def test_a_grid_smaller_than_blocks_that_wait_for_each_other_is_refused(
        monkeypatch: pytest.MonkeyPatch) -> None:
    """On a part of a GPU with 16 multiprocessors a split over 32 blocks would never end."""
    class Library:
        def jaxmono_cuda_probe(self, *given: Any) -> int:
            given[-3][:] = [16, 1, 16]
            return 0

    monkeypatch.setattr(registration, "library", Library)
    monkeypatch.setattr(registration._compat, "local_gpu_ordinal",  # pyright: ignore[reportPrivateUsage]
                        lambda: 0)
    one = [TensorType((1,), DType.F32)]
    small = dataclasses.replace(program("", one, one, name="mono_f"), target="cuda", min_blocks=16)
    residency = registration.probe(small)
    assert residency is not None and residency.grid == 16
    with pytest.raises(CompileError, match="32 of its blocks wait for each other"):
        registration.probe(dataclasses.replace(small, min_blocks=32))
