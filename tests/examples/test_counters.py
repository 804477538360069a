"""`benchmarks.counters`: its table on what ncu read on an H200, its programs on stubs."""

from __future__ import annotations

import csv
import io
import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from benchmarks import counters_child, counters_table, select
from benchmarks.data import Case

RAW = (Path(__file__).parent / "ncu_gemm.csv").read_text()
"""A cut of the raw page of 2048x3072x768 and 2048x768x3072, cuBLASLt's kernel and jaxmono's."""
CASES = {"dot_2048_3072_768 b1 bf16": 2 * 2048 * 3072 * 768,
         "dot_2048_768_3072 b1 bf16": 2 * 2048 * 768 * 3072}
RANGES = [{"range": k + 1, "case": case, "shape": "", "dtype": "bf16", "status": "ok", "reason": "",
           "system": ("xla", "jaxmono")[k % 2], "flops": CASES[case]}
          for k, case in enumerate(case for case in CASES for _ in range(2))]


def page(order: str = "m0m1m2m3") -> str:
    """The raw page with kernels in an order: m is the next mark."""
    head, units, *kernels = list(csv.reader(io.StringIO(RAW)))
    name, grid = head.index("Kernel Name"), head.index("Grid Size")
    rows, mark = [head, units], 0
    for x in order:
        mark += x == "m"
        row = list(kernels[0 if x == "m" else int(x)])
        if x == "m":
            row[name], row[grid] = counters_child.MARKER, f"({mark}, 1, 1)"
        rows.append(row)
    out = io.StringIO()
    csv.writer(out, quoting=csv.QUOTE_ALL).writerows(rows)
    return f"==PROF== Connected\n{out.getvalue()}"


def lines_of(told: list[dict[str, Any]]) -> str:
    return "\n".join(map(json.dumps, told))


def cells(table: str, label: str) -> list[str]:
    (line,) = [x for x in table.splitlines() if x.startswith(f"{label:21}")]
    return line[21:].split()


def test_a_column_for_each_kernel() -> None:
    table = counters_table.table(page(), lines_of(RANGES), 6)
    assert cells(table, "") == ["1X", "1J", "2X", "2J"]
    assert cells(table, "duration us") == ["16.03", "18.24", "15.81", "20.06"]
    assert cells(table, "TFLOP/s") == ["603", "530", "611", "482"]
    assert cells(table, "tensor floor cycles") == ["17873"] * 4
    assert cells(table, "floor / elapsed %") == ["64.6", "56.9", "65.8", "50.7"]
    assert cells(table, "tensor %") == ["66.7", "56.8", "66.8", "52.2"]
    assert cells(table, "dynamic smem KiB") == ["208.2", "197.5", "208.2", "221.5"]
    assert cells(table, "gmma inst") == ["147.5k", "98304", "294.9k", "98304"]
    assert cells(table, "dram read MB") == ["4.89", "1.14", "3.72", "6.04"]
    assert "1X    dot_2048_3072_768 b1 bf16  xla\n" in table
    assert "2J grid (128, 1, 1)    block (384, 1, 1)    mono_matmul\n" in table
    assert "\n2J       wait 1.54  long_scoreboard 1.35  selected 1.00  " in table
    assert all(len(line) <= 200 for line in table.splitlines())


def test_of_many_kernels_the_longest() -> None:
    """XLA may run several, and so may jaxmono; none has the rate of the whole."""
    table = counters_table.table(page("m021m31m3"), lines_of(RANGES[:3]), 2)
    assert cells(table, "") == ["1X.1", "1X.3", "1J.1", "1J.2", "2X"]
    assert cells(table, "duration us") == ["16.03", "18.24", "20.06", "18.24", "20.06"]
    assert cells(table, "TFLOP/s") == ["-", "-", "-", "-", "482"]
    assert "b1 bf16  xla  and 1 kernels more, 15.8 us\n" in table


def test_what_failed_and_what_has_no_mark_is_told() -> None:
    told = [RANGES[0], {**RANGES[1], "failed": "ValueError: no"}]
    table = counters_table.table(page("3m0"), lines_of(told), 6)
    assert cells(table, "") == ["0X", "1X"]
    assert "\n0X    ?\n" in table
    assert "\n1J    dot_2048_3072_768 b1 bf16  jaxmono  ValueError: no\n" in table
    with pytest.raises(ValueError, match="no column 'Kernel Name'"):
        counters_table.table("==ERROR== nothing\n", "", 6)


def test_metrics_that_this_ncu_has() -> None:
    known = ("Device NVIDIA H200 (GH100)\n----- ----\nMetric Name    Metric Type\n"
             "sm__cycles_active       Counter  cycle  # of cycles\n"
             "sm__cycles_active_more  Counter\n     of dram__bytes_write\n"
             "dram__bytes_read        Counter  byte   # of bytes\n")
    assert counters_table.wanted(known) == \
        "sm__cycles_active.avg,sm__cycles_active.max,dram__bytes_read.sum"
    assert counters_table.wanted("==ERROR== no GPU\n") == ""


class FakeMarks:
    def __init__(self) -> None:
        self.calls: list[int | str] = []

    def begin(self, number: int) -> None:
        self.calls.append(number)

    def end(self) -> None:
        self.calls.append("end")


def test_each_case_runs_through_both(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JAXMONO_CACHE_DIR", str(tmp_path))
    cases = select.cases(["mlp", "dot_2048_768_3072"], ["1"], ["bf16"], tiny=True)
    marks, file = FakeMarks(), tmp_path / "ranges.jsonl"
    assert counters_child.run(cases, marks, file, interpret=True) == 0  # type: ignore[arg-type]
    assert marks.calls == [1, "end", 2, "end", 3, "end", 4, "end"]
    told = [json.loads(line) for line in file.read_text().splitlines()]
    assert [(x["range"], x["case"], x["system"]) for x in told[2:]] == [
        (3, "dot_2048_768_3072 b1 bf16", "xla"), (4, "dot_2048_768_3072 b1 bf16", "jaxmono")]
    assert [x["flops"] for x in told[2:]] == [2 * 16 * 24 * 40] * 2
    assert {x["status"] for x in told} == {"ok"} and told[3]["shape"] == "16x24x40"


def test_a_case_that_fails_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def no(case: Case, system: str, *_: Any) -> dict[str, Any]:
        if system == "xla":
            raise ValueError("out of memory")
        return {"flops": 1}

    monkeypatch.setattr(counters_child, "_once", no)
    cases = select.cases(["mlp"], ["1"], ["bf16"], tiny=True)
    file = tmp_path / "ranges.jsonl"
    assert counters_child.run(cases, FakeMarks(), file) == 1  # type: ignore[arg-type]
    first, second = (json.loads(line) for line in file.read_text().splitlines())
    assert first["failed"] == "ValueError: out of memory" and second["flops"] == 1


DRIVER = r"""
#include <cstdio>
#include <cstring>
typedef void* P;
static int context, module, kernel;
#define CALL(...) do { printf(__VA_ARGS__); fflush(stdout); } while (0)
extern "C" {
int cuInit(unsigned f) { return f; }
int cuDeviceGet(int* d, int n) { *d = 7; return n; }
int cuDevicePrimaryCtxRetain(P* c, int d) { *c = &context; return d != 7; }
int cuCtxSetCurrent(P c) { return c != &context; }
int cuModuleLoadData(P* m, const char* text) { *m = &module; return !strstr(text, ".entry"); }
int cuModuleGetFunction(P* f, P m, const char* name) {
  *f = &kernel;
  return m != &module || strcmp(name, "jaxmono_range");
}
int cuCtxSynchronize() { CALL("wait "); return 0; }
int cuProfilerStart() { CALL("start "); return 0; }
int cuProfilerStop() { CALL("stop "); return 0; }
int cuLaunchKernel(P f, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by,
                   unsigned bz, unsigned shared, P stream, P* arguments, P* extra) {
  CALL("launch %d %u %u %u %u %u %u %u %d ", f == &kernel, gx, gy, gz, bx, by, bz, shared,
       stream || arguments || extra);
  return gx == 99 ? 719 : 0;
}
}
"""


@pytest.mark.slow
def test_marks_by_the_driver(tmp_path: Path) -> None:
    """The calls' arguments, on a driver that only tells them."""
    library = tmp_path / "libcuda.so"
    (tmp_path / "driver.cc").write_text(DRIVER)
    subprocess.run([os.environ.get("CXX", "g++"), "-shared", "-fPIC", "-o", str(library),
                    str(tmp_path / "driver.cc")], check=True)
    program = ("from benchmarks.counters_child import Marks\n"
               f"marks = Marks({str(library)!r})\n"
               "marks.begin(3)\nmarks.end()\nmarks.begin(99)\n")
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True,
                          check=False)
    assert done.stdout == ("wait start launch 1 3 1 1 1 1 1 0 0 wait wait stop "
                           "wait start launch 1 99 1 1 1 1 1 0 0 ")
    assert "OSError: cuLaunchKernel: CUDA driver error 719" in done.stderr


NCU = """#!{python}
import json, os, pathlib, subprocess, sys
given = sys.argv[1:]
with open({log!r}, "a") as log:
    log.write(json.dumps(given) + "\\n")
if given == ["--query-metrics"]:
    print("sm__cycles_active  Counter cycle")
elif given[0] == "--import":
    print(pathlib.Path({page!r}).read_text(), end="")
elif "--metrics" in given and {picky}:
    sys.exit("==ERROR== no such metric")
else:
    environment = {{**os.environ, "STUB": "1"}}
    status = subprocess.run(given[given.index({python!r}):], env=environment).returncode
    pathlib.Path(given[given.index("-o") + 1] + ".ncu-rep").write_text("report")
    sys.exit(status)
"""
CHILD = """
import os, pathlib, sys, time
{before}
assert os.environ["XLA_FLAGS"].endswith("--xla_gpu_enable_command_buffer=")
pathlib.Path(sys.argv[1]).write_text({ranges!r})
print(*sys.argv[1:], os.environ["JAXMONO_CACHE_DIR"])
"""


def start(tmp_path: Path, *, picky: bool = False, before: str = "", limit: int = 60,
          ) -> subprocess.CompletedProcess[str]:
    """The program with a stub of ncu and one of the child."""
    (tmp_path / "page.csv").write_text(page())
    ncu, child = tmp_path / "bin" / "ncu", tmp_path / "child.py"
    ncu.parent.mkdir(exist_ok=True)
    ncu.write_text(NCU.format(python=sys.executable, log=str(tmp_path / "calls"), picky=picky,
                              page=str(tmp_path / "page.csv")))
    ncu.chmod(0o755)
    child.write_text(CHILD.format(before=before, ranges=lines_of(RANGES)))
    program = ("import sys\nfrom absl import app\nfrom benchmarks import counters\n"
               f"counters.CHILD = (sys.executable, {str(child)!r})\napp.run(counters.main)\n")
    return subprocess.run(
        [sys.executable, "-c", program, str(tmp_path / "kept"), f"--out={tmp_path / 'out'}",
         "--models=dot_2048_3072_768,dot_2048_768_3072", "--dtype=f16", f"--limit={limit}"],
        capture_output=True, text=True, check=False,
        env={**os.environ, "PATH": f"{ncu.parent}:{os.environ['PATH']}"})


@pytest.mark.slow
@pytest.mark.parametrize("picky", [False, True])
def test_from_cases_to_the_table(tmp_path: Path, picky: bool) -> None:
    """With metrics of its own; without, where ncu does not take them."""
    done = start(tmp_path, picky=picky)
    assert done.returncode == 0, done.stderr
    table = (tmp_path / "out" / "counters.txt").read_text()
    assert cells(table, "duration us") == ["16.03", "18.24", "15.81", "20.06"]
    assert done.stdout == f"2 cases, into {tmp_path}/out\n{table}"
    told = (tmp_path / "out" / "plain.log").read_text()
    assert told == (tmp_path / "out" / "ncu.log").read_text() == (
        f'{tmp_path}/out/ranges.jsonl [["dot_2048_3072_768", 1, "f16"], '
        f'["dot_2048_768_3072", 1, "f16"]] {tmp_path}/kept/jaxmono\n')
    calls = [json.loads(line) for line in (tmp_path / "calls").read_text().splitlines()]
    assert len(calls) == 3 + picky
    assert calls[1][:2] == ["--profile-from-start", "off"]
    assert calls[1][calls[1].index("--metrics") + 1] == \
        "sm__cycles_active.avg,sm__cycles_active.max"
    assert ("--metrics" in calls[-2]) != picky


@pytest.mark.slow
def test_a_child_that_fails(tmp_path: Path) -> None:
    done = start(tmp_path, before="print('JAX sees no GPU here'); sys.exit(2)")
    assert done.returncode == 1
    assert "no counters (status 2)" in done.stderr
    assert done.stderr.endswith("\n  JAX sees no GPU here\n")


@pytest.mark.slow
def test_a_child_that_hangs(tmp_path: Path) -> None:
    """Under ncu, whose child it is: both are ended."""
    done = start(tmp_path, limit=3, before="if os.environ.get('STUB'):\n"
                 "  print(os.getpid(), flush=True)\n  time.sleep(60)")
    assert done.returncode == 1
    assert "ended after --limit=3 s" in done.stderr and "no counters (status 124)" in done.stderr
    state = Path("/proc", (tmp_path / "out" / "ncu.log").read_text().strip(), "status")
    for _ in range(50):
        if not state.exists() or "State:\tZ" in state.read_text():
            break
        time.sleep(0.1)
    else:
        pytest.fail("it still runs")


@pytest.mark.parametrize(("arguments", "told"), [
    (["--ncu=no_such_program", "{kept}"], "there is no program no_such_program. It is NVIDIA's"),
    pytest.param(["--models=nothing", "{kept}"], "--models: unknown model 'nothing'",
                 marks=pytest.mark.slow),
    pytest.param(["--models=mlp"], "give one folder, as benchmarks.prepare makes it",
                 marks=pytest.mark.slow)])
def test_what_makes_no_sense_is_refused(arguments: list[str], told: str, tmp_path: Path) -> None:
    given = [a.format(kept=tmp_path) for a in arguments]
    done = subprocess.run([sys.executable, "-m", "benchmarks.counters", *given],
                          capture_output=True, text=True, check=False)
    assert done.returncode == 2 and told in done.stderr
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
def test_without_a_gpu_the_child_says_so(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.counters_child", str(tmp_path / "x"), "[]"],
        capture_output=True, text=True, check=False, env={**os.environ, "JAX_PLATFORMS": "cpu"})
    assert done.returncode == 2 and "JAX sees no GPU here" in done.stderr
