"""The head of the newest committed run, for README.md."""

from __future__ import annotations

from pathlib import Path

from benchmarks.report.load import BadResults, Case, Results, header, read
from benchmarks.report.plot import NAME as PLOT
from benchmarks.report.table import device_table

TELLING = (("bert_base", 1), ("bert_base", 16), ("bert_base", 32), ("t5_base_encoder", 1),
           ("opt_decode", 1), ("gpt2_decode", 1), ("llama_decode", 1), ("gptj_decode", 1),
           ("vit_b16", 1), ("wav2vec2", 1), ("resnet50", 1), ("resnet50", 32), ("dien", 1))
"""(model, batch) of the lines shown: small and large, each family, wins and losses."""

NONE_YET = ("There are no results yet: `python -m benchmarks.run`, on a machine with a GPU, writes "
            "them.")


def newest(folder: Path) -> Path | None:
    """The run in a folder of runs that was measured last, by its header; None if there is none.

    Runs that time nothing (in the interpreter) do not count, nor those whose header says that they
    are a part of the table.
    """
    dated = []
    for path in folder.glob("*/header.json"):
        try:
            told = header(path.parent)
            timed = any(row.device_us or row.pipelined_us for row in read(path.parent).rows)
        except BadResults:
            continue  # of an older form, or cut short before its first row
        if not timed or told.get("partial"):
            continue
        # ISO dates and times sort as text; the folder's name decides between equal ones.
        dated.append((f"{told.get('date', '')} {told.get('time', '')}", path.parent.name, path))
    return max(dated)[2].parent if dated else None


def part(root: Path) -> str:
    """Markdown: the telling lines of the newest run's table, and its plot.

    Args:
      root: of the repository; README.md is there.
    """
    folder = newest(root / "benchmarks" / "results")
    if folder is None:
        return NONE_YET
    results = read(folder)
    where = folder.relative_to(root).as_posix()
    told = results.header
    place = ", ".join(str(told[key]) for key in ("gpu", "device", "date") if told.get(key))
    # Of the rows: a run that was resumed may have those of an earlier commit, too.
    commits = list(dict.fromkeys(_short(row.commit) for row in results.rows if row.commit))
    named = " and ".join(f"`{commit}`" for commit in commits)
    commit = f", commit{'s' * (len(commits) > 1)} {named}" if commits else ""
    lines = [
        f"Microseconds on the GPU per call ({place or folder.name}{commit}); a ratio below 1 is "
        f"faster than XLA. [All rows, and pipelined times, latency, kernels, errors, failures]"
        f"({where}/results.md).", "",
        *([f"Note: {told['note'].rstrip('.')}.", ""] if told.get("note") else []),
        *device_table(results, _telling(results), ratios_of=("jaxmono",))]
    if (folder / PLOT).is_file():
        lines += ["", f"![Time as a multiple of XLA's, per model]({where}/{PLOT})"]
    return "\n".join(lines)


def _short(commit: str) -> str:
    full, dash, changes = commit.partition("-")
    return f"{full[:10]}{dash}{changes}"


def _telling(results: Results) -> list[Case]:
    """Those lines of TELLING that were measured; the first dozen of all if none was."""
    cases = results.cases()
    return [c for want in TELLING for c in cases if c[:2] == want] or cases[:12]
