"""The yardstick's processes: flags, whole runs without a GPU, workers that die or are ended."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from benchmarks import machine, supervise
from benchmarks.results import Folder
from benchmarks.row import Row

ROOT = Path(__file__).resolve().parents[2]


def run(*flags: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-m", "benchmarks.run", *flags], cwd=ROOT, check=False,
                          capture_output=True, text=True,
                          env={**os.environ, "JAX_PLATFORMS": "cpu", "PYTHONPATH": str(ROOT)})


@pytest.mark.parametrize(("flags", "told"), [
    (("--models=bert_bas",), "did you mean bert_base"),
    pytest.param(("--nonsense=1",), "'nonsense'", marks=pytest.mark.slow),
    pytest.param(("--models=bert_base",), "--tiny --interpret", marks=pytest.mark.slow),
])
def test_the_program_says_what_to_do(flags: tuple[str, ...], told: str) -> None:
    done = run(*flags)
    assert done.returncode == 2, done.stderr
    assert told in done.stderr and "Traceback" not in done.stderr


@pytest.mark.parametrize("workers", [1, pytest.param(2, marks=pytest.mark.slow)])
def test_a_tiny_run_without_a_gpu(tmp_path: Path, workers: int) -> None:
    done = run("--tiny", "--interpret", "--models=softmax,mlp", f"--out={tmp_path}",
               "--commit=abc", "--modes=monolithic,layer", f"--workers={workers}")
    assert done.returncode == 1, done.stderr  # mode='layer' is not built
    assert "nothing is timed" in done.stdout.replace("\n", " ")
    found = [Row.from_json(line) for line in (tmp_path / "rows.jsonl").read_text().splitlines()]
    # In the order of --models, whoever was the first.
    assert [r.name for r in found] == ["xla", "jaxmono monolithic", "jaxmono layer"] * 2
    assert [r.model for r in found] == ["softmax"] * 3 + ["mlp"] * 3
    spent = [json.loads(line) for line in (tmp_path / "phases.jsonl").read_text().splitlines()]
    assert {t["case"] for t in spent} == {"softmax b1 bf16", "mlp b1 bf16"}
    assert all(t["seconds"]["jaxmono"] for t in spent)
    assert workers == 1 or all(t["worker"] in (0, 1) for t in spent)
    found = found[3:]
    assert found[1].ok and found[1].status == "ok" and found[1].kernels == 1
    for row in found:
        assert all(v is None for k, v in vars(row).items() if k.endswith(("_us", "_s"))
                   or "_us_" in k)
    header = json.loads((tmp_path / "header.json").read_text())
    assert "note" in header and header["workers"] == workers
    assert ("worker_1" in header) == (workers == 2)
    assert (tmp_path / "results.md").exists()


@pytest.fixture
def dying(tmp_path: Path) -> Iterator[str]:
    """A measuring program that is killed in its first case, and ends well the second time."""
    (tmp_path / "dying_run.py").write_text(f"""
import os, signal, sys, time
from pathlib import Path
from benchmarks import supervise
from benchmarks.row import Row
if "--resume" not in sys.argv:
    supervise.working_on(Path({str(tmp_path)!r}), [Row("m", 1, "", "bf16", "xla")])
    if "hang" in sys.argv:
        time.sleep(60)
    os.kill(os.getpid(), signal.SIGSEGV)
""")
    before = os.environ.get("PYTHONPATH")
    os.environ["PYTHONPATH"] = os.pathsep.join([str(tmp_path), str(ROOT)])
    yield "dying_run"
    os.environ.pop("PYTHONPATH")
    if before is not None:
        os.environ["PYTHONPATH"] = before


@pytest.mark.sampled(2)
@pytest.mark.parametrize(("how", "told"), [("die", "SIGSEGV"), ("hang", "--case_limit_s")])
def test_a_case_that_kills_its_process_has_rows_too(dying: str, tmp_path: Path, how: str,
                                                   told: str) -> None:
    assert supervise.supervise(dying, [how], limit_s=1 if how == "hang" else 60) == 1
    row = Row.from_json((tmp_path / "rows.jsonl").read_text())
    assert row.status == "failed" and told in row.reason and row.model == "m"


WORKER = """
import os, signal, sys, time
from pathlib import Path
from benchmarks import supervise
from benchmarks.data import Case
from benchmarks.results import Folder
from benchmarks.row import Row
from benchmarks.turns import Turns
from benchmarks.workloads import find
how, out = sys.argv[1:3]
number = supervise.number()
if number:
    folder = Folder(supervise.folder_opened(), resume=True)
else:
    folder = Folder(Path(out), resume="--resume" in sys.argv)
    supervise.opened(folder.path)
cases = [Case(find("softmax"), batch, "bf16") for batch in range(1, 7)]
for case in Turns(cases, supervise.shared() / "turns"):
    row = Row("softmax", case.batch, "", "bf16", "xla", commit=os.environ["CUDA_VISIBLE_DEVICES"])
    supervise.working_on(folder.path, [row])
    known = ("softmax", case.batch, "bf16", "xla") in folder.done()
    if not known and (how == "die" and case.batch == 5 or how == "all die" and case.batch > 4):
        os.kill(os.getpid(), signal.SIGSEGV)
    time.sleep(60 if how == "stop" and case.batch < 5 else 0.1)
    folder.add(row)
    supervise.working_on(folder.path, ())
"""


@pytest.fixture
def worker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A measuring program for several processes; the six cases are gone through from the last."""
    (tmp_path / "fake_worker.py").write_text(WORKER)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(tmp_path), str(ROOT)]))
    monkeypatch.setenv("JAX_PLATFORMS", "cpu")
    return "fake_worker"


@pytest.mark.parametrize(("how", "lost"), [
    pytest.param("die", {5}, marks=pytest.mark.slow),
    pytest.param("all die", {5, 6}, marks=pytest.mark.slow)])
def test_workers_share_the_cases_and_a_dead_one_costs_its_own(
        worker: str, tmp_path: Path, how: str, lost: set[int]) -> None:
    out, finished = tmp_path / "out", []
    assert supervise.supervise(worker, [how, str(out)], limit_s=60, gpus=["3", "5"],
                               finish=finished.append) == 1
    assert finished == [out.resolve()]
    found = [Row.from_json(line) for line in (out / "rows.jsonl").read_text().splitlines()]
    assert sorted(r.batch for r in found) == [1, 2, 3, 4, 5, 6]
    assert {r.batch for r in found if r.status == "failed"} == lost
    assert all("SIGSEGV" in r.reason for r in found if r.status == "failed")
    assert {r.commit for r in found} <= {"3", "5"}  # each has its own GPU
    Folder(out, resume=True).sort([("softmax", batch, "bf16") for batch in range(1, 7)])
    lines = (out / "rows.jsonl").read_text().splitlines()
    assert [Row.from_json(line).batch for line in lines] == [1, 2, 3, 4, 5, 6]


EACH = """
import os, sys, time
from pathlib import Path
from benchmarks import supervise
time.sleep(float(sys.argv[2]))  # modules are loaded
supervise.await_turn()
out = Path(sys.argv[1])
out.mkdir(exist_ok=True)
supervise.opened(out)
with open(out / "log", "a") as log:
    log.write(f"{os.getpid()} {supervise.TURN in os.environ} {'--resume' in sys.argv}\\n")
done = len((out / "log").read_text().splitlines())
time.sleep(float(sys.argv[3]))
sys.exit([supervise.NEXT, supervise.NEXT_BAD, supervise.NEXT, 0][done - 1])
"""


@pytest.mark.slow
@pytest.mark.parametrize(("loads", "takes"), [("0", "1.5"), ("0.8", "0.1")])
def test_a_process_for_each_case_is_started_ahead_and_waits(
        tmp_path: Path, monkeypatch: pytest.MonkeyPatch, loads: str, takes: str) -> None:
    """Whether it is ready when its turn comes, or still loads."""
    (tmp_path / "fake_each.py").write_text(EACH)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(tmp_path), str(ROOT)]))
    out = tmp_path / "out"
    assert supervise.supervise("fake_each", [str(out), loads, takes], limit_s=60, fresh=True) == 1
    log = [line.split() for line in (out / "log").read_text().splitlines()]
    assert len(log) == len({pid for pid, *_ in log}) == 4
    assert [told for _, *told in log] == [["False", "False"], *[["True", "True"]] * 3]
    for pid, *_ in log:
        assert not Path(f"/proc/{pid}").exists()
    # The one that would have come next was ended with them.
    children = Path(f"/proc/{os.getpid()}/task/{os.getpid()}/children").read_text().split()
    assert not [c for c in children if "fake_each" in Path(f"/proc/{c}/cmdline").read_text()]


@pytest.mark.slow
def test_a_run_that_is_told_to_end_ends_its_workers_and_reports(worker: str,
                                                                tmp_path: Path) -> None:
    out, told = tmp_path / "out", tmp_path / "finished"
    program = (f"import sys\nfrom pathlib import Path\nfrom benchmarks import supervise\n"
               f"sys.exit(supervise.supervise({worker!r}, ['stop', {str(out)!r}], limit_s=60, "
               f"gpus=['0', '1'], finish=lambda folder: Path({str(told)!r}).touch()))")
    process = subprocess.Popen([sys.executable, "-c", program])
    try:
        until = time.time() + 30
        while not (out / "rows.jsonl").exists() and time.time() < until:
            time.sleep(0.05)
        children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
        assert len(children) == 2
        process.terminate()
        assert process.wait(timeout=20) == 128 + 15
    finally:
        process.kill()
    assert told.exists() and not any(Path(f"/proc/{child}").exists() for child in children)


@pytest.mark.slow
def test_workers_need_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "2, GPU-x")
    assert machine.gpus() == ["2", "GPU-x"]
    done = run("--models=softmax", "--workers=3")
    assert done.returncode == 2 and "--workers=3 needs as many GPUs, and here are 2" in done.stderr
