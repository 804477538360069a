"""ncu's raw page to a table that can be read: a column for each kernel, X XLA's, J jaxmono's."""

from __future__ import annotations

import csv
import json
import re
from collections.abc import Sequence
from dataclasses import dataclass

from benchmarks.counters_child import MARKER

_WIDE = 12
"""Columns beside each other."""
_FLOPS = {"9.0": {"bf16": 4096, "f16": 4096, "f32": 2048}}
"""Of tensor cores, per SM and cycle, by compute capability and dtype (f32 runs as tf32)."""
_US = "gpu__time_duration.sum"

# Label; metrics, of which the first that has a value counts ("%": of the elapsed peak); factor;
# digits. By name: a pattern such as lts__t_sectors_* would be hundreds of counters for ncu, and a
# launch of the kernel for every few of them.
_ROWS = [(label, names.replace("%", ".avg.pct_of_peak_sustained_elapsed").split(), float(factor),
          int(digits)) for label, names, factor, digits in (line.split("|") for line in f"""
threads|launch__block_size|1|0
cluster size|launch__cluster_size|1|0
dynamic smem KiB|launch__shared_mem_per_block_dynamic|9.765625e-4|1
registers|launch__registers_per_thread|1|0
waves per SM|launch__waves_per_multiprocessor|1|2
duration us|{_US}|1e-3|2
SM clock MHz|gpc__cycles_elapsed.avg.per_second sm__cycles_elapsed.avg.per_second|1e-6|0
cycles elapsed|gpc__cycles_elapsed.max sm__cycles_elapsed.max|1|0
SM active cycles avg|sm__cycles_active.avg|1|0
SM active cycles max|sm__cycles_active.max|1|0
tensor %|sm__pipe_tensor_cycles_active% sm__pipe_tensor_op_hmma_cycles_active%|1|1
gmma inst|sm__inst_executed_pipe_tensor_op_gmma.sum|1|0
TMA pipe %|sm__pipe_tma_cycles_active%|1|1
memory throughput %|gpu__compute_memory_throughput%|1|1
smem bank reads|l1tex__data_bank_reads.sum|1|0
smem bank reads %|l1tex__data_bank_reads%|1|1
smem bank writes|l1tex__data_bank_writes.sum|1|0
smem bank writes %|l1tex__data_bank_writes%|1|1
conflicts shared ld|l1tex__data_bank_conflicts_pipe_lsu_mem_shared_op_ld.sum|1|0
conflicts shared st|l1tex__data_bank_conflicts_pipe_lsu_mem_shared_op_st.sum|1|0
wavefronts lsu|l1tex__data_pipe_lsu_wavefronts.sum|1|0
wavefronts lsu %|l1tex__data_pipe_lsu_wavefronts%|1|1
wavefronts shared ld|l1tex__data_pipe_lsu_wavefronts_mem_shared_op_ld.sum|1|0
wavefronts shared st|l1tex__data_pipe_lsu_wavefronts_mem_shared_op_st.sum|1|0
L2->L1 read MB|l1tex__m_xbar2l1tex_read_bytes.sum|1e-6|2
of it TMA MB|l1tex__m_xbar2l1tex_read_bytes_mem_global_op_tma_ld.sum|1e-6|2
L1->L2 write MB|l1tex__m_l1tex2xbar_write_bytes.sum|1e-6|2
lts sectors|lts__t_sectors.sum|1|0
lts tex read|lts__t_sectors_srcunit_tex_op_read.sum|1|0
lts tex write|lts__t_sectors_srcunit_tex_op_write.sum|1|0
lts tex miss|lts__t_sectors_srcunit_tex_lookup_miss.sum|1|0
lts ltcfabric|lts__t_sectors_srcunit_ltcfabric.sum|1|0
lts requests tex|lts__t_requests_srcunit_tex.sum|1|0
lts throughput %|lts__throughput%|1|1
lts2xbar %|lts__lts2xbar_cycles_active%|1|1
xbar2lts %|lts__xbar2lts_cycles_active%|1|1
L2 hit rate %|lts__t_sector_hit_rate.pct|1|1
dram read MB|dram__bytes_read.sum|1e-6|2
dram write MB|dram__bytes_write.sum|1e-6|2
dram throughput %|gpu__dram_throughput%|1|1
issue slots % active|smsp__issue_active.avg.pct_of_peak_sustained_active|1|1
instructions|smsp__inst_executed.sum|1|0
warps active %|sm__warps_active.avg.pct_of_peak_sustained_active|1|1
warp cycles per inst|smsp__average_warp_latency_per_inst_issued.ratio|1|1
""".split("\n") if line)]
_STALL = re.compile(r"smsp__average_warps_issue_stalled_(\w+?)_per_issue_active\.ratio")


@dataclass(frozen=True)
class Kernel:
    """A column. ``flops``: of its range, where it is the only kernel of it."""

    label: str
    dtype: str
    flops: int | None
    cells: dict[str, str]

    def value(self, *names: str) -> float | None:
        """Of the first of some metrics that has a value."""
        return next((v for x in names if (v := number(self.cells.get(x, ""))) is not None), None)


def wanted(known: str) -> str:
    """The argument of --metrics: what the table has, of what ``ncu --query-metrics`` prints. Most
    of it is in no section of --set full."""
    names = set(re.findall(r'^[\s"]*([a-z0-9]+__\w+)', known, re.M))
    return ",".join(x for _, metrics, *_ in _ROWS for x in metrics if x.partition(".")[0] in names)


def table(raw: str, ranges: str, most: int) -> str:
    """Text for people, from ncu's raw page and the lines that `benchmarks.counters_child` wrote; of
    a system's kernels the ``most`` longest ones, in their order.

    Raises:
      ValueError: this is no raw page.
    """
    found, kernels = kernels_of(raw), list[Kernel]()
    told = {about["range"]: about for about in map(json.loads, ranges.splitlines())}
    lines = ["X: XLA, J: jaxmono; one launch each, replayed with warm caches"]
    for at in sorted({*told, *found}):
        about, here = told.get(at, {}), found.get(at, [])
        # Two ranges a case.
        label = f"{(at + 1) // 2}{'J' if about.get('system') == 'jaxmono' else 'X'}"
        kept = sorted(sorted(range(len(here)), key=lambda k: -_us(here[k]))[:most])
        rest = sum(_us(x) for k, x in enumerate(here) if k not in kept)
        words = [about.get(x, "") for x in ("case", "shape", "system", "failed", "reason")]
        more = f"and {len(here) - len(kept)} kernels more, {rest:.1f} us" * (len(here) > len(kept))
        lines.append(f"{label:5} {'  '.join(filter(None, [*words, more])) or '?'}")
        for k in kept:
            kernels.append(Kernel(f"{label}.{k + 1}" if len(here) > 1 else label,
                                  about.get("dtype", ""),
                                  about.get("flops") if len(here) == 1 else None, here[k]))
            lines.append(f"{kernels[-1].label:>9} grid {here[k]['Grid Size']:14} block "
                         f"{here[k]['Block Size']:14} {here[k]['Kernel Name'][:90]}")
    for first in range(0, len(kernels), _WIDE):
        lines += ["", *_block(kernels[first:first + _WIDE])]
    lines += ["", "warp stalls, cycles per issued instruction, the 8 largest:",
              *(f"{k.label:9}{_stalls(k)}" for k in kernels)]
    return "\n".join(lines) + "\n"


def kernels_of(raw: str) -> dict[int, list[dict[str, str]]]:
    """The metrics of kernels by the number of their range; 0 for those before the first mark.

    Raises:
      ValueError: this is no raw page.
    """
    rows = list(csv.reader(x for x in raw.splitlines() if not x.startswith("==")))
    at = next((i for i, row in enumerate(rows) if "Kernel Name" in row), None)
    if at is None:
        raise ValueError("ncu's page has no column 'Kernel Name'")
    out, current = dict[int, list[dict[str, str]]](), 0
    for row in rows[at + 1:]:
        cells = dict(zip(rows[at], row, strict=False))
        if number(cells.get("ID", "")) is None:
            continue  # the row of units
        if cells["Kernel Name"].startswith(MARKER):
            current = int(cells["Grid Size"].strip("() ").split(",")[0])
        else:
            out.setdefault(current, []).append(cells)
    return out


def _block(kernels: Sequence[Kernel]) -> list[str]:
    """Rows of some kernels beside each other; those without any value are left out."""
    lines = [_line("", [k.label for k in kernels])]
    for label, metrics, factor, digits in _ROWS:
        values = [k.value(*metrics) for k in kernels]
        lines += _row(label, [None if v is None else v * factor for v in values], digits)
        if label == "duration us":
            lines += _row("TFLOP/s", [k.flops / v * 1e-3 if k.flops and v else None
                                      for k, v in zip(kernels, values, strict=True)], 0)
        if label == "cycles elapsed":
            floors = [_floor(k) for k in kernels]
            lines += _row("tensor floor cycles", floors, 0)
            lines += _row("floor / elapsed %", [100 * f / v if f and v else None for f, v in
                                                zip(floors, values, strict=True)], 1)
    return lines


def _floor(kernel: Kernel) -> float | None:
    """Cycles that the tensor cores of all SMs would take."""
    rate = _FLOPS.get(kernel.cells.get("CC", ""), {}).get(kernel.dtype)
    sms = kernel.value("launch__sm_count")
    return kernel.flops / rate / sms if kernel.flops and rate and sms else None


def _stalls(kernel: Kernel) -> str:
    found = [(number(text) or 0.0, m[1]) for name, text in kernel.cells.items()
             if (m := _STALL.fullmatch(name)) and not m[1].endswith("_not_issued")]
    return "  ".join(f"{name} {v:.2f}" for v, name in sorted(found, reverse=True)[:8])


def _us(cells: dict[str, str]) -> float:
    return (number(cells.get(_US, "")) or 0.0) * 1e-3


def _row(label: str, values: Sequence[float | None], digits: int) -> list[str]:
    if all(v is None for v in values):
        return []
    return [_line(label, [shown(v, digits) for v in values])]


def _line(label: str, cells: Sequence[str]) -> str:
    return f"{label:21}" + "".join(f"{c:>9}" for c in cells)


def number(text: str) -> float | None:
    """As ncu writes them: 62,914,560."""
    try:
        return float(text.replace(",", ""))
    except ValueError:
        return None


def shown(value: float | None, digits: int) -> str:
    """For people, in at most 8 characters."""
    if value is None:
        return "-"
    if digits == 0 and abs(value) >= 1e5:
        return f"{value / 1e6:.3f}M" if abs(value) >= 1e6 else f"{value / 1e3:.1f}k"
    return f"{value:.{digits}f}"
