"""Fixtures for all tests."""

from __future__ import annotations

import difflib
import os
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

# Before JAX is imported anywhere: two CPU devices, for shard_map. With the CPU only, as in CI, XLA
# compiles for longer than what it compiles runs: half as long without LLVM's optimisations.
os.environ["XLA_FLAGS"] = " ".join(
    [os.environ.get("XLA_FLAGS", ""), "--xla_force_host_platform_device_count=2",
     *["--xla_backend_optimization_level=0"] * (os.environ.get("JAX_PLATFORMS") == "cpu")]).strip()
# Before NumPy is: its threads look for work for a while behind each product, on CPUs that the other
# workers of the tests need (a tenth of the time of test_epilogue_reduces.py and test_dot_wgmma.py).
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import pytest
from aligned import trap_misaligned

GOLDEN = Path(__file__).parent / "golden"


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--update-goldens", action="store_true",
                     help="write the expected texts in tests/golden instead of comparing")


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """``@pytest.mark.sampled(n)``: of a function's parameters that are not slow all but each n-th
    are marked so. Of several lists every value is still met where n and their lengths have no
    factor in common, and there are enough."""
    seen: Counter[str] = Counter()
    for item in items:
        mark = item.get_closest_marker("sampled")
        if mark is None or item.get_closest_marker("slow"):
            continue
        function = item.nodeid.partition("[")[0]
        if seen[function] % mark.args[0]:
            item.add_marker(pytest.mark.slow)
        seen[function] += 1


@pytest.fixture(scope="session", autouse=True)
def misaligned_accesses_trap() -> None:
    """In all kernels that tests compile for the emulator."""
    trap_misaligned()


@pytest.fixture
def golden(request: pytest.FixtureRequest) -> Callable[[str, str], None]:
    """``golden(name, text)``: ``text`` must equal tests/golden/<name>.txt."""
    update = bool(request.config.getoption("--update-goldens"))

    def check(name: str, text: str) -> None:
        path = GOLDEN / f"{name}.txt"
        text = text.rstrip("\n") + "\n"
        if update:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")
            return
        if not path.exists():
            pytest.fail(f"{path} does not exist; pytest --update-goldens writes it")
        want = path.read_text(encoding="utf-8")
        if text != want:
            diff = "\n".join(difflib.unified_diff(
                want.splitlines(), text.splitlines(), f"tests/golden/{name}.txt", "now",
                lineterm=""))
            pytest.fail(f"the text differs from the golden one; pytest --update-goldens accepts "
                        f"it:\n{diff}", pytrace=False)

    return check


@pytest.fixture(autouse=True)
def own_cache(tmp_path_factory: pytest.TempPathFactory,
              monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A kernel cache for the test session, never the user's own."""
    directory = _session_cache(tmp_path_factory)
    monkeypatch.setenv("JAXMONO_CACHE_DIR", str(directory))
    yield directory


def _session_cache(factory: pytest.TempPathFactory) -> Path:
    # Shared by the tests of a session, so that equal kernels are compiled once; workers of
    # pytest-xdist share it too, as processes of a user would.
    root = factory.getbasetemp()
    if os.environ.get("PYTEST_XDIST_WORKER"):
        root = root.parent
    directory = root / "jaxmono-cache"
    directory.mkdir(exist_ok=True)
    return directory


@pytest.fixture
def sorts_left_to_xla(monkeypatch: pytest.MonkeyPatch) -> None:
    """Sorts are what tests have for an op that no kernel takes."""
    from jaxmono.hlo.passes.rules import sort

    monkeypatch.setattr(sort, "refusal", lambda op: "sorting is not generated yet")
