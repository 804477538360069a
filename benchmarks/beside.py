"""Kernels of several trees, compiled ahead, timed beside each other: what a change is worth.

    python -m benchmarks.prepare --cache_dir=/tmp/before --models=bert_base     in one tree
    python -m benchmarks.prepare --cache_dir=/tmp/after --models=bert_base      in the other
    python -m benchmarks.beside /tmp/before /tmp/after                          on the GPU

    python -m benchmarks.beside /tmp/before /tmp/after --out=table.md           a table to keep

A line for each kernel that two folders have under the same case: microseconds a launch (median of
turns taken one after the other), as a ratio to the first folder's, and how far its outputs are from
the first one's on the same random inputs. Where the folders have different numbers of kernels of a
case, one line for the sum of its kernels, each timed alone. The launches of a turn are one CUDA
graph, so that the host does not matter. Fifty kernels take some seconds; what stays is measured by
the yardstick.
"""

from __future__ import annotations

import itertools
import math
import statistics
import sys
import tempfile
from collections.abc import Collection, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from absl import app, flags

from benchmarks import ahead, machine
from examples.cli import flags_parser
from jaxmono.codegen.program import Program
from jaxmono.hlo.types import TensorType
from jaxmono.tuning.gpu_worker import Bench, CudaError, MachineError

_TURNS = flags.DEFINE_integer("turns", 9, "Of each kernel; the median counts.", lower_bound=1)
_OUT = flags.DEFINE_string("out", None, "Markdown file for the table, with date, GPU, driver, "
                           "versions and commits.")


def main(arguments: Sequence[str]) -> int:
    """Times all; returns 1 if a kernel failed, 2 where there is nothing to compare."""
    folders = [Path(a) for a in arguments[1:]]
    missing = [f for f in folders if not (f / ahead.INDEX).is_file()]
    if not folders or missing:
        sys.stderr.write(f"python -m benchmarks.beside: {missing[0] if missing else 'no folder'}: "
                         f"give folders that benchmarks.prepare has made, with {ahead.INDEX}\n")
        return 2
    bench, bad = Bench(0), 0
    all_found: dict[str, dict[str, tuple[float, float]]] = {}
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        todo = itertools.chain(
            ((name, partial(times, bench, one, folder)) for name, one in pairs(folders)),
            ((name, partial(sums, bench, all_, folder)) for name, all_ in uneven(folders)))
        for name, measured in todo:
            try:
                found = measured()
            except (CudaError, MachineError) as error:
                bad += 1
                sys.stdout.write(f"{name}: {error}\n")
                continue
            all_found[name] = found
            sys.stdout.write(f"{name}: {told(found)}\n")
            sys.stdout.flush()
    if _OUT.value:
        Path(_OUT.value).write_text(table(folders, all_found, machine.stamp()), encoding="utf-8")
    return 1 if bad else 0


def pairs(folders: Sequence[Path]) -> Iterator[tuple[str, dict[str, Program]]]:
    """(case and kernel, programs by folder) of what the first folder has and others too, if there
    are others: kernels that take the same arrays."""
    known = [(f, ahead.read(f)) for f in folders]
    for case, first in known[0][1].items():
        have = [(f, index[case]) for f, index in known if len(index.get(case, ())) == len(first)]
        if len(have) < min(2, len(folders)):
            continue
        for k in range(len(first)):
            programs = {f.name: Program.from_bytes((f / files[k]).read_bytes())
                        for f, files in have}
            if _take_the_same(programs.values()):
                yield case + (f" kernel {k + 1}" if len(first) > 1 else ""), programs


def uneven(folders: Sequence[Path]) -> Iterator[tuple[str, dict[str, list[Program]]]]:
    """(case and numbers of kernels, its programs by folder) of what has not as many in all that
    have it, the first folder among them, or others that take other arrays."""
    known = [(f, ahead.read(f)) for f in folders]
    for case, first in known[0][1].items():
        have = {f: index[case] for f, index in known if case in index}
        programs = {f.name: [Program.from_bytes((f / file).read_bytes()) for file in files]
                    for f, files in have.items()}
        if any(len(files) != len(first) for files in have.values()) or not all(
                map(_take_the_same, zip(*programs.values(), strict=True))):
            name = f"{case}, {' and '.join(str(len(files)) for files in have.values())} kernels"
            yield name, programs


def _take_the_same(programs: Collection[Program]) -> bool:
    """Whether they have inputs and outputs of the same types."""
    return len({(p.inputs, p.outputs) for p in programs}) == 1


def times(bench: Bench, programs: dict[str, Program], scratch: Path,
          ) -> dict[str, tuple[float, float]]:
    """(microseconds, difference of the outputs from the first one's) by folder.

    Raises:
      CudaError, MachineError: a kernel cannot be loaded or run here.
    """
    bench.problem(*problem_of(list(programs.values())))
    differences = {}
    for number, (label, program) in enumerate(programs.items()):
        file = scratch / f"{number}.cubin"
        file.write_bytes(program.binary)
        differences[label] = bench.load(launch_of(number, program, file))["difference"]
    samples: dict[str, list[float]] = {label: [] for label in programs}
    for _ in range(_TURNS.value):
        for number, label in enumerate(programs):
            samples[label].append(bench.time(number))
    return {label: (statistics.median(us), differences[label]) for label, us in samples.items()}


def sums(bench: Bench, programs: dict[str, list[Program]], scratch: Path,
         ) -> dict[str, tuple[float, float]]:
    """(microseconds of all kernels, each timed alone, no number) by folder; raises as `times`."""
    return {label: (sum(times(bench, {label: program}, scratch)[label][0] for program in kernels),
                    math.nan) for label, kernels in programs.items()}


def told(found: dict[str, tuple[float, float]]) -> str:
    """For people: each folder's microseconds, ratio to the first one's, difference of outputs."""
    base = next(iter(found.values()))[0]
    first, *others = (f"{label} {us:.2f} us" for label, (us, _) in found.items())
    more = [f"{text} ({us / base:.3f}"
            + ("" if math.isnan(difference) else f", outputs off by {difference:.1e}") + ")"
            for text, (us, difference) in zip(others, list(found.values())[1:], strict=True)]
    return "  ".join([first, *more])


def table(folders: Sequence[Path], found: dict[str, dict[str, tuple[float, float]]],
          stamp: dict[str, Any]) -> str:
    """Markdown: what was measured where and of which commits, a row for each kernel."""
    versions = ", ".join(f"{name} {v}" for name, v in stamp["versions"].items())
    first, *others = (f.name for f in folders)
    head = ["kernel", f"{first} us", *(f"{x} us | {x} / {first} | difference" for x in others)]
    lines = [
        "# Kernels beside each other", "",
        f"date {stamp['date']}; gpu {stamp['gpu']}; driver {stamp['driver']}; python "
        f"{stamp['python']}; versions {versions}; turns {_TURNS.value}.", "",
        *(f"- {f.name}: {ahead.made_of(f)}" for f in folders), "",
        f"| {' | '.join(head)} |", f"|---|--:|{'--:|--:|--:|' * len(others)}"]
    for name, times_of in found.items():
        base = times_of[first][0]
        cells = [" | | "] * len(others)
        for k, label in enumerate(others):
            if label in times_of:
                us, off = times_of[label]
                cells[k] = f"{us:.2f} | {us / base:.3f} | "
                cells[k] += "" if math.isnan(off) else f"{off:.1e}"
        lines.append(f"| {' | '.join([name, f'{base:.2f}', *cells])} |")
    return "\n".join(lines) + "\n"


def problem_of(programs: Sequence[Program],
               ) -> tuple[list[tuple[int, str]], list[tuple[int, str]], list[tuple[int, int]], int]:
    """What `Bench.problem` takes, for kernels of the same inputs and outputs."""
    one = programs[0]
    return (_buffers(one.inputs), _buffers(one.outputs), list(one.aliases),
            max(p.scratch_bytes for p in programs))


def launch_of(number: int, program: Program, cubin: Path) -> dict[str, Any]:
    """What `Bench.load` takes."""
    return {"id": number, "cubin": str(cubin), "name": program.name, "threads": program.threads,
            "shared_bytes": program.shared_bytes, "max_blocks": program.max_blocks,
            "blocks_per_sm": program.blocks_per_sm, "min_blocks": program.min_blocks,
            "cooperative": program.cooperative}


def _buffers(types: Sequence[TensorType]) -> list[tuple[int, str]]:
    return [(t.nbytes, t.dtype.value) for t in types]


if __name__ == "__main__":
    app.run(main, flags_parser=flags_parser("python -m benchmarks.beside"))
