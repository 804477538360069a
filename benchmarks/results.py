"""Results on disk: rows.jsonl, one measurement a line, and results.md, made from all its rows."""

from __future__ import annotations

import datetime
import importlib.metadata
import json
import platform
import re
import subprocess
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import jax

Row = dict[str, Any]
_PACKAGES = ("jax", "jaxlib", "jax-cuda13-plugin", "flax", "numpy", "cuda-core", "cuda-bindings",
             "nvidia-cuda-nvrtc")
ROOT = Path(__file__).resolve().parent.parent


def stamp(commit: str | None, flags: Sequence[str]) -> Row:
    """Where and with what these numbers were measured."""
    device = jax.devices()[0]
    return {
        "kind": "stamp", "date": datetime.date.today().isoformat(), "device": device.device_kind,
        "platform": device.platform, "driver": _output("nvidia-smi", "--query-gpu=driver_version",
                                                       "--format=csv,noheader"),
        "python": platform.python_version(),
        "versions": {name: _version(name) for name in _PACKAGES},
        "commit": commit or _output("git", "-C", str(ROOT), "rev-parse", "HEAD"),
        "flags": list(flags),
    }


def default_folder(where: Row) -> Path:
    """benchmarks/results/<date>-<device>."""
    device = re.sub(r"[^a-z0-9]+", "-", where["device"].lower()).strip("-")
    return Path(__file__).resolve().parent / "results" / f"{where['date']}-{device}"


def append(folder: Path, row: Row) -> None:
    """Adds a row and writes the tables anew, so that a run that is cut short leaves both."""
    folder.mkdir(parents=True, exist_ok=True)
    with open(folder / "rows.jsonl", "a", encoding="utf-8") as file:
        file.write(json.dumps(row, default=str) + "\n")
    (folder / "results.md").write_text(tables(read(folder)), encoding="utf-8")


def read(folder: Path) -> list[Row]:
    """All rows of a folder."""
    lines = (folder / "rows.jsonl").read_text(encoding="utf-8").splitlines()
    return [json.loads(line) for line in lines]


def tables(rows: Sequence[Row]) -> str:
    """The rows as Markdown; of equal measurements the last counts."""
    found: dict[tuple[str, str, str], Row] = {}
    for row in rows:
        if row["kind"] not in ("stamp", "first_result", "depth"):
            found[row.get("case", ""), row["kind"], row.get("side", "")] = row
    cases = list(dict.fromkeys(case for case, kind, _ in found if kind == "program"))
    titles = {row["case"]: row.get("title", "") for row in rows if row.get("title")}

    def get(case: str, kind: str, side: str, field: str) -> Any:
        return found.get((case, kind, side), {}).get(field)

    parts = ["# Measured by `make gpu`", *_stamps(r for r in rows if r["kind"] == "stamp")]
    for kind, told in (
            ("chained", "Time per call inside one XLA program that makes several calls in a row, "
             "so that the host's work per call is paid once"),
            ("pipelined", "Time per call from Python, queued back to back (all weights passed as "
             "arguments each time)")):
        body = []
        for case in cases:
            ours, xla = (get(case, kind, side, "median_us") for side in ("jaxmono", "xla"))
            if ours is None or xla is None:
                continue
            body.append((titles[case], _spread(found[case, kind, "xla"]),
                         _spread(found[case, kind, "jaxmono"]), f"{ours / xla:.2f}"))
        parts += _section(f"{told}. Microseconds: median (10th to 90th percentile of the rounds); "
                          f"both sides in turns in one process.",
                          ("case", "XLA", "jaxmono", "ratio"), body)

    body = [(titles[c], get(c, "program", "xla", "hlo_kernels"), get(c, "trace", "xla", "launches"),
             get(c, "trace", "xla", "busy_us"), get(c, "program", "jaxmono", "kernels"),
             get(c, "trace", "jaxmono", "launches"), get(c, "trace", "jaxmono", "busy_us"))
            for c in cases]
    parts += _section("Kernels per call: by the optimised HLO, and launches and microseconds of "
                      "kernel time seen by the profiler.",
                      ("case", "XLA, HLO", "XLA, launched", "XLA, busy us", "jaxmono, HLO",
                       "jaxmono, launched", "jaxmono, busy us"), body)

    fields = ("stages", "barriers", "barriers_before_merging", "registers", "spill_bytes",
              "shared_bytes", "scratch_bytes", "source_bytes", "nvrtc_seconds", "compile_seconds",
              "predicted_us", "floor_us")
    body = [(titles[c], *(get(c, "program", "jaxmono", f) for f in fields)) for c in cases]
    parts += _section("The generated kernels. NVRTC seconds are generating and compiling; compile "
                      "seconds are all phases.", ("case", *fields), body)

    fields = ("relative", "largest", "lowest_cosine")
    body = [(titles[c], *(get(c, "error", s, f) for s in ("xla", "jaxmono") for f in fields))
            for c in cases]
    parts += _section("Error against the same model in f32 at the highest precision: norm of the "
                      "difference over norm, largest difference, lowest cosine.",
                      ("case", *(f"{s}, {f}" for s in ("XLA", "jaxmono") for f in fields)), body)

    depth = {r["layers"]: r for r in rows if r["kind"] == "depth"}
    parts += _section("Compile time against depth, cache off.",
                      ("layers", "NVRTC s", "all phases s", "source bytes", "stages"),
                      [(n, r.get("nvrtc_seconds"), r.get("compile_seconds"), r.get("source_bytes"),
                        r.get("stages")) for n, r in sorted(depth.items())])
    first = {(r["case"], r["side"], r["cache"]): r for r in rows if r["kind"] == "first_result"}
    parts += _section("Seconds from an untraced function to its first result, in fresh processes.",
                      ("case", "side", "kernel cache", "seconds"),
                      [(*key, r.get("seconds")) for key, r in first.items()])
    parts += _section("What failed or was left to XLA.", ("case", "what", "side", "reason"),
                      _troubles([*found.values(), *depth.values(), *first.values()]))
    return "\n".join(parts) + "\n"


def _stamps(rows: Iterable[Row]) -> list[str]:
    out = []
    for r in rows:
        versions = ", ".join(f"{name} {v}" for name, v in r["versions"].items() if v)
        out += ["", f"{r['date']}: {r['device']}, driver {r['driver'] or 'none'}, Python "
                f"{r['python']}, {versions}; commit {r['commit'] or 'unknown'}; flags: "
                f"`{' '.join(r['flags']) or 'none'}`"]
    return out


def _troubles(rows: Iterable[Row]) -> list[tuple[Any, ...]]:
    out = []
    for row in rows:
        reasons = [row["failed"]] if row.get("failed") else list(row.get("refused") or [])
        reasons += [row["note"]] if row.get("note") else []
        out += [(row.get("case", ""), row["kind"], row.get("side", ""), reason)
                for reason in reasons]
    return out


def _section(title: str, head: Sequence[str], body: Sequence[Sequence[Any]]) -> list[str]:
    if not body:
        return []
    lines = ["", title, "", "| " + " | ".join(head) + " |", "|" + "---|" * len(head)]
    return lines + ["| " + " | ".join(_cell(v) for v in row) + " |" for row in body]


def _cell(value: Any) -> str:
    if value is None:
        return "-"
    if isinstance(value, float):
        if not 1e-3 <= abs(value) < 1e6 and value:
            return f"{value:.2e}"
        return f"{value:.6f}" if 0.99 < value < 1 else f"{value:.4g}"
    return str(value).replace("|", "\\|").replace("\n", " ")


def _spread(row: Row) -> str:
    return f"{row['median_us']:.1f} ({row['low_us']:.1f} to {row['high_us']:.1f})"


def _version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def _output(*command: str) -> str | None:
    """First line that a program prints, or None if it cannot be run."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=30)
    except (OSError, subprocess.SubprocessError):
        return None
    return (done.stdout.splitlines() or [""])[0].strip() or None
