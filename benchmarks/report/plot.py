"""The plot of a run: time as a multiple of XLA's, per model, on a logarithmic axis."""

from __future__ import annotations

import importlib.util
from pathlib import Path

from benchmarks.report.load import Case, Results, System

NAME = "ratio_to_xla.svg"

_INK = "#7a828e"
"""Of text and lines: a grey that stands out from white and from GitHub's dark background alike."""
_PEERS = {"torch_compile": ("#db6d28", "D"), "torch_cudagraph": ("#a371f7", "o")}
_OURS = ("#2f81f7", "#3fb950", "#d4a72c", "#db61a2")
_LINE = 0.21
"""Inches of one model; each further mode of jaxmono adds half of it."""


def draw(results: Results, path: Path) -> str:
    """Writes the plot as an SVG; the same rows give the same bytes.

    Returns:
      Why nothing was written, or "": matplotlib is missing, or no row has a ratio.
    """
    systems = [s for s in results.systems() if s != "xla"]
    shown = [(of, {s: r for s in systems if (r := results.ratio(of, s))})
             for of in results.cases()]
    shown = [(of, ratios) for of, ratios in shown if ratios]
    if not shown:
        return "no row has a ratio to XLA"
    if importlib.util.find_spec("matplotlib") is None:
        return "matplotlib is not installed; pip install matplotlib"
    _write(shown, systems, path)
    return ""


def _write(shown: list[tuple[Case, dict[System, float]]], systems: list[System],
           path: Path) -> None:
    import matplotlib
    from matplotlib.figure import Figure
    from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

    settings = {"svg.fonttype": "none", "svg.hashsalt": "jaxmono", "font.family": "sans-serif",
                "font.size": 9, "text.color": _INK, "axes.labelcolor": _INK,
                "xtick.color": _INK, "ytick.color": _INK, "axes.edgecolor": _INK}
    ours = dict(zip([s for s in systems if s not in _PEERS], _OURS * len(systems), strict=False))
    height = 0.8 / max(1, len(ours))
    with matplotlib.rc_context(settings):
        tall = _LINE * (1 + 0.5 * max(0, len(ours) - 1))
        figure = Figure(figsize=(9, 1.2 + tall * len(shown)), layout="constrained")
        axes = figure.add_subplot()
        for line, (_, ratios) in enumerate(shown):
            for k, (system, colour) in enumerate(ours.items()):
                if (ratio := ratios.get(system)) is None:
                    continue
                y = line + (k - (len(ours) - 1) / 2) * height
                axes.barh(y, ratio - 1, left=1, height=0.9 * height, color=colour)
                axes.annotate(f"{ratio:.2f}", (ratio, y), (3 if ratio >= 1 else -3, 0),
                              textcoords="offset points", va="center", fontsize=7,
                              ha="left" if ratio >= 1 else "right")
        for system, (colour, marker) in _PEERS.items():
            points = [(r[system], line) for line, (_, r) in enumerate(shown) if system in r]
            if points:
                axes.plot(*zip(*points, strict=True), marker, color=colour, markersize=4.5,
                          label=system, zorder=3)
        for system, colour in ours.items():
            axes.barh(0, 0, left=1, color=colour, label=system)
        values = [r for _, ratios in shown for r in ratios.values()]
        axes.set_xscale("log")
        axes.set_xlim(min(0.8, min(values) / 1.25), max(1.25, max(values) * 1.25))
        axes.set_ylim(len(shown) - 0.4, -0.6)
        axes.axvline(1, color=_INK, linewidth=1.2)
        axes.xaxis.set_major_locator(LogLocator(10, subs=(1, 2, 5)))
        axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
        axes.xaxis.set_minor_formatter(NullFormatter())
        axes.grid(axis="x", color=_INK, alpha=0.3, linewidth=0.6)
        axes.set_axisbelow(True)
        every = [of for of, _ in shown]
        axes.set_yticks(range(len(shown)), [_label(of, every) for of in every])
        axes.tick_params(axis="y", length=0)
        for side in ("top", "right", "left"):
            axes.spines[side].set_visible(False)
        axes.set_xlabel("device time / XLA's (log axis): left of 1 is faster than XLA")
        figure.legend(loc="outside upper center", ncols=len(systems), frameon=False)
        figure.savefig(path, format="svg", transparent=True,
                       metadata={"Date": None, "Creator": None})


def _label(of: Case, every: list[Case]) -> str:
    """Model and batch; shape and dtype where those alone do not tell lines apart."""
    model, batch, shape, dtype = of
    same = [c for c in every if c[:2] == of[:2]]
    more = [f for f, kinds in ((shape, {c[2] for c in same}), (dtype, {c[3] for c in same}))
            if len(kinds) > 1]
    return " ".join([model, f"b{batch}", *more])
