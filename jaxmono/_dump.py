"""``JAXMONO_DUMP_TO``: the texts of every program as files, for reading and for bug reports."""

from __future__ import annotations

import json
import os
from pathlib import Path

from jaxmono.codegen.program import Program
from jaxmono.fusion.plan import Plan
from jaxmono.fusion.print import print_plan
from jaxmono.hlo.print import to_text

SUFFIXES = {"hlo": ".hlo.txt", "plan": ".plan.txt", "cuda": ".cu", "ptxas": ".ptxas.txt"}


def texts(plan: Plan, program: Program | None) -> dict[str, str]:
    """What is worth reading about one kernel, by the names that ``as_text`` uses."""
    # The program's has the borders that its schedules leave without a barrier.
    out = {"hlo": to_text(plan.graph),
           "plan": program.plan_text if program is not None else print_plan(plan)}
    if program is not None:
        out["cuda"] = program.source
        out["ptxas"] = resource_text(program)
    return out


def resource_text(program: Program) -> str:
    """What the compiler reported on a binary, one fact a line."""
    facts = {
        "target": f"{program.target} {program.arch}",
        "threads per block": program.threads,
        "blocks per SM": program.blocks_per_sm or "as many as fit, of one task each",
        "dynamic shared memory": f"{program.shared_bytes} bytes",
        "scratch": f"{program.scratch_bytes} bytes",
        "binary": f"{len(program.binary)} bytes",
        "compile time": f"{program.compile_seconds:.3f} s",
        **program.resources,
    }
    return "".join(f"{name}: {value}\n" for name, value in facts.items())


def write(folder: Path, name: str, key: str, shown: dict[str, str]) -> None:
    """Writes ``folder/<name>-<start of key>.<kind>``; a file of the same key is replaced whole."""
    folder.mkdir(parents=True, exist_ok=True)
    stem = f"{name}-{key[:12]}"
    for kind, text in shown.items():
        path = folder / f"{stem}{SUFFIXES[kind]}"
        part = path.with_name(f"{path.name}.{os.getpid()}.part")
        part.write_text(text)
        part.replace(path)
    (folder / f"{stem}.json").write_text(json.dumps({"name": name, "key": key}) + "\n")
