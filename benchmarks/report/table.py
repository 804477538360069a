"""results.md: a run as Markdown tables."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from benchmarks.report.load import Case, Results
from benchmarks.report.markdown import (
    ABSENT,
    cell,
    mebibytes,
    percent,
    section,
    small,
    table,
    times,
    us,
)
from benchmarks.row import SYSTEMS, Row

_CASE = ("model", "batch", "shape", "dtype")
_TEXT = len(_CASE)


def document(results: Results, *, plot: str = "", no_plot: str = "") -> str:
    """The whole of results.md.

    Args:
      plot: path of the plot beside the file, or "".
      no_plot: why there is none.
    """
    lines = ["# Benchmark results", "", header_line(results.header), ""]
    if plot:
        lines += [f"![Time as a multiple of XLA's, per model]({plot})"]
    elif no_plot:
        lines += [f"No plot: {no_plot}"]
    lines += _device(results) + _pipelined(results) + _jaxmono(results) + _latency(results)
    lines += _loaded(results) + _resources(results) + _troubles(results) + _notes(results)
    lines += _others(results) + _profiles(results)
    return "\n".join(lines).rstrip("\n") + "\n"


def header_line(header: dict[str, Any]) -> str:
    """Where and with what the run was measured, in one paragraph."""
    if not header:
        return "There is no header.json: where and with what this was measured is not known."
    return "; ".join(f"{name.replace('_', ' ')} {_told(value)}" for name, value in header.items()
                     if value not in (None, "", [], {})) + "."


def device_table(results: Results, cases: Iterable[Case] | None = None, *,
                 ratios_of: tuple[str, ...] = SYSTEMS) -> list[str]:
    """Device time of every system, and the ratios to XLA; README shows its head.

    Args:
      cases: the lines, all by default.
      ratios_of: systems (without mode) whose ratios are shown.
    """
    systems = results.systems()
    others = [s for s in systems if s != "xla" and s.split()[0] in ratios_of]
    ours = [s for s in systems if s.startswith("jaxmono")]
    head = [*_CASE, "floor", *systems, *(f"{s} / xla" for s in others)]
    body = []
    for of in results.cases() if cases is None else cases:
        floor = next((r.floor_us for s in systems if (r := results.row(of, s)) and r.floor_us),
                     None)
        best = min((t for s in systems if (r := results.row(of, s)) and (t := r.device_us)
                    and r.status != "failed"), default=None)
        body.append([*of, us(floor), *(_time(results.row(of, s), "device_us", best)
                                       for s in systems),
                     *(_emphasised(results.ratio(of, s), s in ours) for s in others)])
    return table(head, body, text_columns=_TEXT)


def _device(results: Results) -> list[str]:
    return ["", "## Device time", "",
            "Microseconds on the GPU per call, from the first kernel's start to the last one's "
            "end, the host's dispatch excluded; the fastest in bold. Floor: the least this GPU "
            "needs for the program's bytes and flops. A ratio below 1 is faster than XLA.", "",
            *device_table(results)]


def _pipelined(results: Results) -> list[str]:
    systems = results.systems()
    others = [s for s in systems if s != "xla"]
    body = [[*of, *(_spread(results.row(of, s)) for s in systems),
             *(times(results.ratio(of, s, "pipelined")) for s in others)]
            for of in results.cases()]
    return section("Pipelined time", "Microseconds per call queued back to back from Python, "
                   "dispatch included: median (10th to 90th percentile of the rounds). The ratio "
                   "is the median of the rounds' own ratios, or the quotient where the two times "
                   "are of different passes.",
                   [*_CASE, *systems, *(f"{s} / xla" for s in others)], body, text_columns=_TEXT)


def _jaxmono(results: Results) -> list[str]:
    body = []
    for of in results.cases():
        xla = results.row(of, "xla")
        for system in results.systems():
            row = results.row(of, system)
            if row is None or row.system != "jaxmono":
                continue
            body.append([*of, row.mode, percent(row.roofline), percent(xla and xla.roofline),
                         row.kernels, xla and xla.kernels, row.stages, row.barriers,
                         row.registers, row.spill_bytes, small(row.error),
                         small(row.reference_error), row.ok, row.status])
    return section("jaxmono's kernels", "Roofline: floor over device time. Error: norm of the "
                   "difference from the f32 program over its norm, XLA's beside it.",
                   [*_CASE, "mode", "roofline", "XLA's", "kernels", "XLA's", "stages", "barriers",
                    "registers", "spilled bytes", "error", "XLA's", "ok", "status"], body,
                   text_columns=_TEXT + 1)


def _latency(results: Results) -> list[str]:
    systems = results.systems()

    def three(row: Row | None) -> str | None:
        if row is None or row.latency_us_p50 is None:
            return None if row is None or row.status != "failed" else "failed"
        return " / ".join(us(t) or ABSENT for t in (row.latency_us_p50, row.latency_us_p95,
                                                    row.latency_us_p99))

    body = [[*of, *(three(results.row(of, s)) for s in systems)] for of in results.cases()]
    return section("Latency", "Microseconds of one call, dispatch and waiting included: p50 / p95 "
                   "/ p99.", [*_CASE, *systems], body, text_columns=_TEXT)


def _loaded(results: Results) -> list[str]:
    body = []
    for row in results.rows:
        if row.cpu_load is None:
            continue
        idle = results.row((row.model, row.batch, row.shape, row.dtype), row.name)
        body.append([row.model, row.batch, row.shape, row.dtype, row.name, percent(row.cpu_load),
                     us(row.latency_us_p50), us(row.latency_us_p95), us(row.latency_us_p99),
                     us(idle and idle.latency_us_p50), us(idle and idle.latency_us_p99),
                     _outcome(row)])
    return section("Latency with busy CPU cores", "The same while other processes keep that share "
                   "of the cores busy, and without them (idle).",
                   [*_CASE, "system", "load", "p50", "p95", "p99", "idle p50", "idle p99",
                    "status"], body, text_columns=_TEXT + 1)


def _resources(results: Results) -> list[str]:
    body = [[*of, row.name, row.variant, row.kernels, row.copies, us(row.busy_us),
             us(row.queued_us), _seconds(row.trace_s), _seconds(row.compile_s),
             _seconds(row.tune_s), mebibytes(row.scratch_bytes), mebibytes(row.peak_bytes),
             row.throttle_reasons or row.throttled]
            for of, row in _all(results)]
    return section("Kernels, compile time, memory", "Per call: kernels, copies and fills, "
                   "microseconds in which one of them ran, and microseconds when calls queue "
                   "behind other device work. Seconds to trace, compile and tune; a dash where a "
                   "cache had it. MiB of intermediate values, and in all.",
                   [*_CASE, "system", "variant", "kernels", "copies", "busy us", "queued us",
                    "trace s", "compile s", "tune s", "scratch MiB", "peak MiB", "throttled"],
                   body, text_columns=_TEXT + 2)


def _troubles(results: Results) -> list[str]:
    body = [[r.model, r.batch, r.shape, r.dtype, r.name, percent(r.cpu_load), r.status, r.reason]
            for r in results.rows if r.status != "ok" or r.ok is False]
    body = [[*line[:-1], line[-1] or "the error is too large"] for line in body]
    return section("Failures and fallbacks", "What failed, what XLA ran in jaxmono's place, and "
                   "what was judged wrong.", [*_CASE, "system", "load", "status", "reason"], body,
                   text_columns=_TEXT + 4)


def _notes(results: Results) -> list[str]:
    body = [[*of, row.name, row.notes] for of, row in _all(results) if row.notes]
    return section("Notes", "What a reader of the rows has to know.", [*_CASE, "system", "note"],
                   body, text_columns=_TEXT + 2)


_PARTS = {
    "depth": ("Compile time against depth", "Seconds to trace and compile, every cache off."),
    "first": ("First result", "Seconds from an untraced function to its first result, in a fresh "
              "process each."),
}


def _others(results: Results) -> list[str]:
    lines: list[str] = []
    for part in dict.fromkeys(str(o.get("part", "")) for o in results.others):
        rows = [o for o in results.others if str(o.get("part", "")) == part]
        keys = list(dict.fromkeys(k for row in rows for k in row if k != "part"))
        title, text = _PARTS.get(part, (f"Part {part!r}", "As measured."))
        lines += section(title, text, [k.replace("_", " ") for k in keys],
                         [[row.get(k) for k in keys] for row in rows])
    return lines


def _profiles(results: Results) -> list[str]:
    lines: list[str] = []
    for of, row in _all(results):
        if not row.profile:
            continue
        total = sum(row.profile.values()) or 1.0
        # Ties in the order of names, so that the text does not change from run to run.
        kernels = sorted(row.profile.items(), key=lambda item: (-item[1], item[0]))
        model, batch, shape, dtype = of
        lines += ["", "<details><summary>"
                  f"{model} b{batch} {shape} {dtype}, {row.name}: {len(kernels)} kinds of kernel, "
                  f"{us(total)} us</summary>", "",
                  *table(["kernel", "us per call", "share"],
                         [[f"`{name}`", us(t), percent(t / total)] for name, t in kernels]),
                  "", "</details>"]
    return ["", "## Kernels' own times", *lines] if lines else []


def _all(results: Results) -> Iterable[tuple[Case, Row]]:
    for of in results.cases():
        for system in results.systems():
            row = results.row(of, system)
            if row is not None:
                yield of, row


def _time(row: Row | None, key: str, best: float | None) -> str | None:
    """A time in a table of systems: failures and fallbacks show as such."""
    if row is None:
        return None
    if row.status == "failed":
        return "failed"
    value = getattr(row, key)
    text = us(value)
    if text is not None and value == best:
        text = f"**{text}**"
    marks = ("fallback",) if row.status == "fallback" else ("wrong",) if row.ok is False else ()
    return " ".join([text or ABSENT, *(f"({mark})" for mark in marks)])


def _spread(row: Row | None) -> str | None:
    text = _time(row, "pipelined_us", None)
    if row is None or row.pipelined_us_low is None or row.status == "failed":
        return text
    return f"{text} ({us(row.pipelined_us_low)} to {us(row.pipelined_us_high)})"


def _outcome(row: Row) -> str:
    return row.status if row.status == "ok" else f"{row.status}: {row.reason}"


def _emphasised(value: float | None, bold: bool) -> str | None:
    text = times(value)
    return f"**{text}**" if text is not None and bold else text


def _seconds(value: float | None) -> str | None:
    return None if value is None else f"{value:.2f}"


def _told(value: Any) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{k} {_told(v)}" for k, v in value.items() if v not in (None, ""))
    if isinstance(value, list):
        return f"`{' '.join(str(v) for v in value)}`"
    return cell(value)
