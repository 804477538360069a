"""Reports say what the rows say: made-up rows in, table, plot and comparison out."""

from __future__ import annotations

import importlib.util
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from benchmarks import report
from benchmarks.report import compare, head
from benchmarks.report.load import BadResults, Results, read
from benchmarks.report.plot import draw
from benchmarks.report.table import device_table, document
from benchmarks.row import Row

HEADER = {"date": "2026-11-21", "time": "10:00:00", "gpu": "Some GPU", "commit": "abc123",
          "versions": {"jax": "0.11.2", "torch": None}, "flags": ["--batch=1"], "note": ""}


def row(model: str, system: str, device: float | None, **more: Any) -> Row:
    pipelined = None if device is None else device + 10
    base = Row(model, 1, "s128", "bf16", system, device_us=device, pipelined_us=pipelined,
               latency_us_p50=pipelined, latency_us_p95=pipelined, latency_us_p99=pipelined)
    return replace(base, **more)


def rows() -> list[Row]:
    return [
        row("bert", "xla", 400.0, kernels=220.0, reference_error=0.012, floor_us=52.0,
            roofline=0.13, variant="command buffers"),
        row("bert", "torch_compile", 1200.0, kernels=90.0, profile={"b": 2.0, "a": 2.0, "c": 6.0}),
        row("bert", "torch_cudagraph", None, status="failed", reason="CUDA out of memory | 3 GB"),
        row("bert", "jaxmono", 200.0, mode="monolithic", kernels=1.0, barriers=61, error=0.011,
            reference_error=0.012, ok=True, floor_us=52.0, roofline=0.26,
            pipelined_us_low=205.0, pipelined_us_high=215.0, ratio_to_xla=0.505),
        row("bert", "jaxmono", 500.0, mode="stitch", status="fallback", reason="no libcuda"),
        row("bert", "jaxmono", 210.0, mode="monolithic", cpu_load=0.5, latency_us_p99=900.0),
        row("conv", "xla", 50.0),
        row("conv", "jaxmono", 75.0, mode="monolithic", error=0.5, reference_error=0.01, ok=False),
    ]


def write(folder: Path, of: list[Row], header: dict[str, Any] | None = None) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "rows.jsonl").write_text("".join(r.to_json() + "\n" for r in of))
    (folder / "header.json").write_text(json.dumps(HEADER if header is None else header))
    return folder


def section(text: str, title: str) -> list[str]:
    lines = text.split(f"## {title}\n")[1].split("\n## ")[0].splitlines()
    return [line for line in lines if line.startswith("|")]


def test_every_system_of_a_model_stands_in_one_line(tmp_path: Path) -> None:
    text = document(read(write(tmp_path, rows())), plot="p.svg")
    assert "date 2026-11-21; time 10:00:00; gpu Some GPU; commit abc123; versions jax 0.11.2; " \
        "flags `--batch=1`." in text
    assert "](p.svg)" in text
    head, _, bert, conv = section(text, "Device time")
    assert head == ("| model | batch | shape | dtype | floor | xla | torch_compile | "
                    "torch_cudagraph | jaxmono monolithic | jaxmono stitch | torch_compile / xla | "
                    "torch_cudagraph / xla | jaxmono monolithic / xla | jaxmono stitch / xla |")
    assert bert == ("| bert | 1 | s128 | bf16 | 52.0 | 400.0 | 1200 | failed | **200.0** | "
                    "500.0 (fallback) | 3.00 | – | **0.50** | **1.25** |")
    assert conv == ("| conv | 1 | s128 | bf16 | – | **50.0** | – | – | 75.0 (wrong) | – | – | – | "
                    "**1.50** | – |")
    pipelined = section(text, "Pipelined time")[2]
    assert "| 210.0 (205.0 to 215.0) |" in pipelined and "| 0.51 |" in pipelined
    ours = section(text, "jaxmono's kernels")[2]
    assert "| 26 % | 13 % | 1 | 220 | – | 61 | – | – | 1.1e-02 | 1.2e-02 | yes | ok |" \
        in ours
    assert "| 410.0 / 410.0 / 410.0 | 1210 / 1210 / 1210 | failed | 210.0" in text


def test_failures_fallbacks_wrong_results_load_and_profile_are_shown(tmp_path: Path) -> None:
    text = document(read(write(tmp_path, rows())))
    troubles = section(text, "Failures and fallbacks")[2:]
    assert troubles == [
        "| bert | 1 | s128 | bf16 | torch_cudagraph | – | failed | CUDA out of memory \\| 3 GB |",
        "| bert | 1 | s128 | bf16 | jaxmono stitch | – | fallback | no libcuda |",
        "| conv | 1 | s128 | bf16 | jaxmono monolithic | – | ok | the error is too large |"]
    assert section(text, "Latency with busy CPU cores")[2] == (
        "| bert | 1 | s128 | bf16 | jaxmono monolithic | 50 % | 220.0 | 220.0 | 900.0 | 210.0 | "
        "210.0 | ok |")
    kernels = section(text, "Kernels' own times")[2:]
    assert kernels == ["| `c` | 6.0 | 60 % |", "| `a` | 2.0 | 20 % |", "| `b` | 2.0 | 20 % |"]


def test_a_run_without_figures_has_no_empty_sections(tmp_path: Path) -> None:
    failed = [Row("m", 1, "", "bf16", "xla", status="failed", reason="no GPU")]
    folder = write(tmp_path, failed, {})
    assert report.write(folder) == "no row has a ratio to XLA"
    text = (folder / "results.md").read_text()
    assert "No plot: no row has a ratio to XLA" in text and "There is no header.json" in text
    assert "| m | 1 | – | bf16 | – | failed |" in text and "jaxmono's kernels" not in text


def test_of_equal_rows_the_last_counts(tmp_path: Path) -> None:
    results = read(write(tmp_path, [*rows(), row("bert", "xla", 800.0)]))
    assert results.ratio(results.cases()[0], "jaxmono monolithic") == 0.25
    assert len(results.rows) == len(rows())


def test_what_failed_without_a_shape_stands_with_its_model(tmp_path: Path) -> None:
    lost = Row("bert", 1, "", "bf16", "torch_compile", status="failed", reason="the GPU was lost")
    again = [lost if r.system == "torch_compile" else r for r in rows()]
    results = read(write(tmp_path, again))
    assert [c[0] for c in results.cases()] == ["bert", "conv"]
    assert "| 400.0 | failed | failed |" in document(results)


def test_other_parts_have_tables(tmp_path: Path) -> None:
    write(tmp_path, rows())
    other = [{"part": "first", "model": "bert", "system": "xla", "cache": "", "seconds": 2.5},
             {"part": "first", "model": "bert", "system": "jaxmono", "cache": "cold",
              "failed": "no"},
             {"part": "depth", "layers": 12, "compile_s": 3.25}]
    (tmp_path / "other.jsonl").write_text("\n".join(json.dumps(o) for o in other))
    text = document(read(tmp_path))
    assert section(text, "First result") == [
        "| model | system | cache | seconds | failed |", "|---|--:|--:|--:|--:|",
        "| bert | xla | – | 2.5 | – |", "| bert | jaxmono | cold | – | no |"]
    assert section(text, "Compile time against depth")[2] == "| 12 | 3.25 |"


def test_some_lines_can_be_chosen(tmp_path: Path) -> None:
    results = read(write(tmp_path, rows()))
    assert [line.split(" |")[0] for line in device_table(results, results.cases()[1:])[2:]] == \
        ["| conv"]


@pytest.mark.parametrize(("content", "message"), [
    (None, "rows.jsonl does not exist; python -m benchmarks.run writes it"),
    ("\n", "rows.jsonl is empty"),
    ('{"model": "m"}\n', "line 1: not a row of results"),
    ("{\n", "line 1: .*remove the line or measure again"),
])
def test_damaged_folders_are_refused(tmp_path: Path, content: str | None, message: str,
                                     capsys: pytest.CaptureFixture[str]) -> None:
    if content is not None:
        (tmp_path / "rows.jsonl").write_text(content)
    with pytest.raises(BadResults, match=message):
        read(tmp_path)
    assert compare.main([str(tmp_path), str(tmp_path)]) == 2
    assert "rows.jsonl" in capsys.readouterr().err


def test_without_matplotlib_there_is_the_table_and_one_line(
        tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    find = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec",
                        lambda name, *a: None if name == "matplotlib" else find(name, *a))
    report.write(write(tmp_path, rows()))
    assert "No plot: matplotlib is not installed; pip install matplotlib\n" in \
        (tmp_path / "results.md").read_text()
    assert not (tmp_path / report.PLOT).exists()


def test_the_plot_shows_every_ratio_and_does_not_change_from_run_to_run(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    results = read(write(tmp_path, rows()))
    assert draw(results, tmp_path / "a.svg") == "" == draw(results, tmp_path / "b.svg")
    text = (tmp_path / "a.svg").read_text()
    assert text == (tmp_path / "b.svg").read_text()
    for shown in ("bert b1", "conv b1", ">0.50<", ">1.25<", "torch_compile",
                  "jaxmono stitch"):
        assert shown in text, shown
    assert "torch_cudagraph" not in text and "dc:date" not in text


def changed(factor: float, **more: Any) -> Results:
    slower = [replace(r, device_us=r.device_us * factor, **more)
              if r.system == "jaxmono" and r.device_us and r.model == "bert" and not r.cpu_load
              else r for r in rows()]
    return Results({}, tuple(slower))


def test_compare_judges_ratios_of_rows_that_are_long_enough() -> None:
    a = Results({}, tuple(rows()))
    verdicts = {(d.case[0], d.system, d.measure): d.verdict
                for d in compare.compare(a, changed(1.04))}
    assert verdicts["bert", "jaxmono monolithic", "device"] == "same"
    assert verdicts["conv", "jaxmono monolithic", "device"] == "short"
    assert ("bert", "torch_cudagraph", "device") not in verdicts  # failed in both
    assert [d.system for d in compare.compare(a, changed(0.95), ("device",)) if d.bad] == \
        ["jaxmono monolithic", "jaxmono stitch"]
    failed = compare.compare(a, changed(1.0, status="failed", reason="x"), ("device",))
    assert {d.verdict for d in failed if d.bad} == {"ok / failed", "fallback / failed"}


def test_exit_status_of_compare(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    a = write(tmp_path / "a", rows())
    b = write(tmp_path / "b", [*changed(1.06).rows, row("new", "jaxmono", 1.0, mode="stitch")])
    out = tmp_path / "table.md"
    assert compare.main([str(a), str(a), "--out", str(out), "--by=both"]) == 0
    assert "0 of 6 ratios to XLA of rows over 100 us differ by 5 % or more" in out.read_text()
    assert compare.main([str(a), str(b)]) == 1
    assert "Verdict: different: 3 ratios judged, 2 of them" in capsys.readouterr().out
    assert compare.main([str(a), str(b), "--by=both"]) == 1
    text = capsys.readouterr().out
    assert "| bert | 1 | s128 | bf16 | jaxmono monolithic | device | 200.0 | 0.50 | 0.53 | " \
        "+6.0 % | differs |" in text
    assert "Only in b: new 1 s128 bf16 jaxmono stitch." in text
    assert compare.main([str(a), str(b), "--tolerance=0.1"]) == 0
    assert text.endswith("Verdict: different: 6 ratios judged, 2 of them differ; 1 rows are in one "
                         "run only, and are not judged.\n")
    assert compare.main([str(a), str(b), "--by=pipelined", "--least=1e6"]) == 2  # none is judged
    assert "Verdict: nothing to compare" in capsys.readouterr().out
    other = write(tmp_path / "c", [row("other", "xla", 1.0)])
    assert compare.main([str(a), str(other)]) == 2


def test_compare_knows_a_case_that_lost_its_process_and_rows_of_other_commits() -> None:
    a = Results({}, tuple(replace(r, commit="abc") for r in rows()))
    lost = tuple(replace(r, shape="", status="failed", reason="died", commit="abc",
                         device_us=None, pipelined_us=None) for r in a.rows if r.model == "bert")
    for one, other in ((a, Results({}, lost)), (Results({}, lost), a)):
        found = compare.compare(one, other, ("device",))
        assert {d.verdict for d in found if d.bad} >= {"ok / failed"} or \
            {d.verdict for d in found if d.bad} >= {"failed / ok"}
        assert "different" in compare.verdict(one, other, found)
    assert "commit" not in compare.verdict(a, a, compare.compare(a, a))
    resumed = Results({}, (*a.rows[:3], *(replace(r, commit="def") for r in a.rows[3:])))
    assert "not all of one commit" in compare.verdict(a, resumed, compare.compare(a, resumed))


def test_the_command_rewrites_a_folder(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from benchmarks.report.__main__ import main

    write(tmp_path, rows())
    assert main([str(tmp_path)]) == 0
    assert f"{tmp_path}: wrote results.md" in capsys.readouterr().out
    assert main([str(tmp_path / "none")]) == 2


def test_readme_shows_the_telling_lines_of_the_newest_run(tmp_path: Path) -> None:
    assert head.part(tmp_path) == head.NONE_YET
    runs = tmp_path / "benchmarks" / "results"
    write(runs / "z-old", [row("bert_base", "xla", 999.0)], {**HEADER, "time": "09:59:59"})
    write(runs / "a-cut-short", [], {**HEADER, "time": "23:00:00"})
    write(runs / "a-part", [row("bert_base", "xla", 998.0)],
          {**HEADER, "time": "23:30:00", "partial": True})
    write(runs / "not-timed", [row("m", "xla", None)], {**HEADER, "time": "23:00:00"})
    (runs / "other-form").mkdir()
    (runs / "other-form" / "rows.jsonl").write_text('{"kind": "stamp"}\n')
    telling = [replace(r, model={"bert": "bert_base"}.get(r.model, r.model),
                       commit="0123456789abcdef-dirty") for r in rows()]
    folder = write(runs / "new", telling, HEADER)
    text = head.part(tmp_path)
    assert "Note:" not in text
    resumed = [*telling[:-1], replace(telling[-1], commit="fedcba")]
    write(runs / "new", resumed, {**HEADER, "note": "of two"})
    assert "Note: of two." in head.part(tmp_path)
    assert "commits `0123456789-dirty` and `fedcba`" in head.part(tmp_path)
    assert "(Some GPU, 2026-11-21, commit `0123456789-dirty`)" in text
    assert "| bert_base | 1 | s128 | bf16 | 52.0 | 400.0 | 1200 | failed | **200.0** |" in text
    assert "| conv |" not in text and "torch_compile / xla" not in text
    assert "999" not in text and "998" not in text
    assert "(benchmarks/results/new/results.md)" in text and "svg" not in text
    (folder / report.PLOT).write_text("")
    assert "](benchmarks/results/new/ratio_to_xla.svg)" in head.part(tmp_path)
    write(folder, rows())
    assert "| conv |" in head.part(tmp_path)  # none of the telling models: the first lines
