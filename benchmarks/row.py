"""One line of rows.jsonl: what was measured of one system running one model at one size."""

from __future__ import annotations

import dataclasses
import json
import math
from dataclasses import dataclass
from typing import Any

SYSTEMS = ("xla", "torch_compile", "torch_cudagraph", "jaxmono")
STATUSES = ("ok", "fallback", "failed")


@dataclass(frozen=True)
class Row:
    """Times are microseconds per call; an absent figure is None, null on disk.

    Attributes:
      model, batch, shape, dtype: of the workload; ``shape`` as in "s128".
      system: one of SYSTEMS. mode: of `jaxmono.jit`; None for the others.
      device_us: span on the GPU of one call, gaps between its kernels included and the host's
        dispatch excluded, from the profiler: median over calls.
      pipelined_us: per call queued back to back from Python, median over rounds.
      latency_us_p50, latency_us_p95, latency_us_p99: of one call, dispatch and waiting included.
      floor_us: the least time this GPU needs for the program's bytes and flops (`floor.py`).
      roofline: floor_us / device_us, from 0 to 1.
      kernels: launched per call. barriers: grid barriers inside jaxmono's kernels.
      scratch_bytes: device memory for intermediate values.
      compile_s: from traced function to executable, when that was done; None when it came from a
        cache of which no more is known.
      error, reference_error: |x - ref| / |ref| against the f32 program, of this row and of XLA;
        `errors.py` says how several outputs count.
      ok: verdict on the error; None where there is no comparison (other frameworks' weights).
      status: "ok"; "fallback": XLA runs all or part of a jaxmono row; "failed".
      reason: of a status other than ok.
      commit: measured.
      variant: which of a system's public settings was used (the fastest).
      pipelined_us_low, pipelined_us_high: 10th and 90th percentile of the rounds.
      ratio_to_xla: pipelined, median of the rounds' own ratios; the quotient of the times where
        these are of different passes. device_ratio_to_xla: of device_us.
      queued_us: per call, when all calls wait behind other device work, by the host's clock:
        device_us without a profiler, plus the gap between two calls.
      busy_us: sum of the durations of the call's kernels and copies.
      copies: copies and fills on the device per call.
      peak_bytes: device memory of one call, arguments and results included.
      trace_s: from function to traced program. tune_s: spent on choosing among variants.
      stages, registers, spill_bytes: of jaxmono's kernels; registers of the one with most.
      throttled: the GPU lowered its clocks meanwhile; throttle_reasons: why, comma-separated.
      passes: the last one that the row has been through, of those that timed its case.
      device_pass, pipelined_pass: the one that device_us and what belongs to it is of, or
        pipelined_us (`passes.py`). device_us_next: the second lowest of the passes.
      cpu_load: share of the cores that other processes kept busy; the row then has latency only.
      profile: kernel name -> microseconds per call, with --profile.
      notes: what a reader of the row has to know.
    """

    model: str
    batch: int
    shape: str
    dtype: str
    system: str
    mode: str | None = None
    device_us: float | None = None
    pipelined_us: float | None = None
    latency_us_p50: float | None = None
    latency_us_p95: float | None = None
    latency_us_p99: float | None = None
    floor_us: float | None = None
    roofline: float | None = None
    kernels: float | None = None
    barriers: int | None = None
    scratch_bytes: int | None = None
    compile_s: float | None = None
    error: float | None = None
    reference_error: float | None = None
    ok: bool | None = None
    status: str = "ok"
    reason: str = ""
    commit: str | None = None
    variant: str | None = None
    pipelined_us_low: float | None = None
    pipelined_us_high: float | None = None
    ratio_to_xla: float | None = None
    device_ratio_to_xla: float | None = None
    queued_us: float | None = None
    busy_us: float | None = None
    copies: float | None = None
    peak_bytes: int | None = None
    trace_s: float | None = None
    tune_s: float | None = None
    stages: int | None = None
    registers: int | None = None
    spill_bytes: int | None = None
    throttled: bool | None = None
    throttle_reasons: str | None = None
    passes: int = 1
    device_pass: int = 1
    device_us_next: float | None = None
    pipelined_pass: int = 1
    cpu_load: float | None = None
    profile: dict[str, float] | None = None
    notes: str = ""

    def __post_init__(self) -> None:
        if self.system not in SYSTEMS:
            raise ValueError(f"system={self.system!r} is none of {', '.join(SYSTEMS)}")
        if self.status not in STATUSES:
            raise ValueError(f"status={self.status!r} is none of {', '.join(STATUSES)}")
        if self.status != "ok" and not self.reason:
            raise ValueError(f"status={self.status!r} needs a reason")

    @property
    def name(self) -> str:
        """The system as tables head it: "xla", "jaxmono stitch"."""
        return self.system if self.mode is None else f"{self.system} {self.mode}"

    def to_json(self) -> str:
        """One line. JSON has no infinity: what is not finite is null."""
        return json.dumps({f.name: _plain(getattr(self, f.name))
                           for f in dataclasses.fields(self)}, allow_nan=False)

    @classmethod
    def from_json(cls, line: str) -> Row:
        """The row of a line; keys that are not known are left out.

        Raises:
          ValueError: no JSON object, or without the keys that every row has.
        """
        found: Any = json.loads(line)
        known = {f.name for f in dataclasses.fields(cls)}
        try:
            return cls(**{k: v for k, v in found.items() if k in known})
        except (TypeError, AttributeError) as error:
            raise ValueError(f"not a row of results: {error}") from error


def _plain(value: Any) -> Any:
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value
