"""The kernel cache on disk, and the serialised form of a Program."""

from __future__ import annotations

import dataclasses
import json
import os
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

from jaxmono._errors import JaxmonoWarning
from jaxmono.codegen.program import Program, ProgramFormatError
from jaxmono.custom_call import cache
from jaxmono.custom_call.cache import KernelCache
from jaxmono.hlo.types import DType, SymDim, TensorType

ROOT = Path(__file__).parents[2]


def make(name: str = "k", binary: bytes = bytes(range(256)), **changes: Any) -> Program:
    base = Program(
        name=name, target="cuda", arch="sm_90a", source="// µ\n__global__ void k() {}\n",
        binary=binary, threads=256, blocks_per_sm=1, max_blocks=132, shared_bytes=1024,
        scratch_bytes=64, cooperative=True,
        inputs=(TensorType((2, 3), DType.BF16), TensorType((), DType.PRED)),
        outputs=(TensorType((0, 4), DType.F32), TensorType((SymDim("b"),), DType.S32)),
        aliases=((0, 1),), stages=3, barriers=2, resources={"registers": 168},
        plan_text="stage 0\n", compile_seconds=0.5)
    return dataclasses.replace(base, **changes)


@pytest.fixture
def store(tmp_path: Path) -> KernelCache:
    return KernelCache(tmp_path / "kernels", 1 << 20)


def test_program_round_trip() -> None:
    program = make()
    assert Program.from_bytes(program.to_bytes()) == program
    assert program.to_bytes() == program.to_bytes()
    assert program.buffers == 5 and make(scratch_bytes=0).buffers == 4


def test_program_header_is_json() -> None:
    data = make().to_bytes()
    length = int.from_bytes(data[40:48], "little")
    header = json.loads(data[48:48 + length])
    assert header["inputs"] == ["bf16[2,3]", "pred[]"]
    assert "binary" not in header


@pytest.mark.parametrize("position", [0, 20, 60, 300, -1])
def test_any_changed_byte_is_noticed(position: int) -> None:
    data = bytearray(make().to_bytes())
    data[position] ^= 1
    with pytest.raises(ProgramFormatError):
        Program.from_bytes(bytes(data))


@pytest.mark.parametrize("length", [0, 7, 39, 45, 200, -1])
def test_cut_bytes_are_noticed(length: int) -> None:
    with pytest.raises(ProgramFormatError):
        Program.from_bytes(make().to_bytes()[:length])


def test_get_and_put(store: KernelCache) -> None:
    assert store.get("a") is None
    store.put("a", make("a"))
    store.put("b", make("b"))
    assert store.get("a") == make("a") and store.get("b") == make("b")
    store.put("a", make("new"))
    assert store.get("a") == make("new")
    store.clear()
    assert store.get("a") is None and store.entries() == []


def test_damaged_entry_is_a_miss_with_one_warning(store: KernelCache) -> None:
    store.put("a", make())
    path = store.path("a")
    path.write_bytes(path.read_bytes()[:100])
    with pytest.warns(JaxmonoWarning, match="checksum") as caught:
        assert store.get("a") is None
    assert len(caught) == 1 and str(path) in str(caught[0].message)
    assert not path.exists()
    assert store.get("a") is None  # quiet now


def test_least_recently_used_goes_first(tmp_path: Path) -> None:
    size = len(make().to_bytes())
    store = KernelCache(tmp_path, 3 * size + size // 2)
    for age, key in enumerate("abc"):
        store.put(key, make())
        os.utime(store.path(key), (1000 + age, 1000 + age))
    assert store.get("a") is not None  # used now
    store.put("d", make())
    assert [store.get(k) is not None for k in "abcd"] == [True, False, True, True]


def test_too_large_for_the_cap_is_not_kept(tmp_path: Path) -> None:
    store = KernelCache(tmp_path, 100)
    store.put("a", make())
    assert list(tmp_path.iterdir()) == []


def test_files_of_dead_processes_are_removed(store: KernelCache) -> None:
    store.put("a", make())
    old, young = store.directory / "x.tmp", store.directory / "y.tmp"
    for path in (old, young):
        path.write_bytes(b"half")
    os.utime(old, (1000, 1000))
    store.put("b", make())
    assert not old.exists() and young.exists()


def test_unwritable_directory_is_one_warning(tmp_path: Path) -> None:
    blocked = tmp_path / "file"
    blocked.write_text("")
    store = KernelCache(blocked / "kernels", 1 << 20)
    with pytest.warns(JaxmonoWarning, match="JAXMONO_CACHE_DIR") as caught:
        store.put("a", make())
        store.put("b", make())
    assert len(caught) == 1


def test_switches(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("JAXMONO_CACHE_DIR", str(tmp_path))
    cache.put("a", make())
    assert cache.get("a") == make()
    assert [p.parent.name for p in tmp_path.glob("*/*")] == ["kernels"]
    monkeypatch.setenv("JAXMONO_CACHE", "off")
    assert cache.get("a") is None and cache.current() is None
    monkeypatch.delenv("JAXMONO_CACHE")
    monkeypatch.setenv("JAXMONO_CACHE_MAX_BYTES", "0")
    assert cache.current() is None


def test_default_directory_follows_xdg(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("JAXMONO_CACHE_DIR")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    found = cache.current()
    assert found is not None and found.directory == tmp_path / "jaxmono" / "kernels"


def test_concurrent_threads(tmp_path: Path) -> None:
    """Writers, readers and eviction at once: every answer is whole or a miss."""
    size = len(make().to_bytes())
    store = KernelCache(tmp_path, 4 * size)
    failures: list[BaseException] = []

    def work(seed: int) -> None:
        try:
            for n in range(60):
                key = str((seed + n) % 7)
                store.put(key, make(key))
                found = store.get(str((seed + 3 * n) % 7))
                assert found is None or found == make(found.name)
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=work, args=(s,)) for s in range(6)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert not failures
    assert sum(e.bytes for e in store.entries()) <= 4 * size


def test_another_process_reads_it(tmp_path: Path) -> None:
    store = KernelCache(tmp_path, 1 << 20)
    store.put("key", make("from here"))
    code = ("import sys; from pathlib import Path\n"
            "from jaxmono.custom_call.cache import KernelCache\n"
            "print(KernelCache(Path(sys.argv[1]), 1 << 20).get('key').name)")
    out = subprocess.run([sys.executable, "-c", code, str(tmp_path)], check=True, text=True,
                         capture_output=True, env={**os.environ, "PYTHONPATH": str(ROOT)})
    assert out.stdout.strip() == "from here"
