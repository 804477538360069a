"""XLA at its best: the fastest of its public flags and of JAX's attention implementations.

Command buffers and donation are on in all of them. Two rounds: attention first (the model's own
einsums, and those of `jax.nn.dot_product_attention`, where the workload takes one), then the
flags with the best of those. The one that occupies the device least wins; of those within 3 % of
it, the one that the host dispatches fastest. (By pipelined time, what other processes do to the
host decides: beside three others that compiled, ResNet-50's choice was 19 % slower on the device.)
A variant whose results are not as right as the default's is none: with ``WHILE`` in command
buffers, a beam search ended after its first trips, and was fast.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path

import jax

from benchmarks import timing, trace
from benchmarks.data import Data
from benchmarks.errors import Check
from benchmarks.kept import Kept
from benchmarks.phases import Phases
from benchmarks.running import Running
from benchmarks.systems_jax import JaxRunning, Options, compile_xla

_GRAPHS: Options = {
    "xla_gpu_enable_command_buffer":
        "FUSION,CUBLAS,CUBLASLT,CUSTOM_CALL,CUDNN,CONDITIONAL,WHILE,DYNAMIC_SLICE_FUSION",
    "xla_gpu_graph_min_graph_size": 1,
}
FLAGS: Mapping[str, Options] = {
    "default": {},
    "all in command buffers": _GRAPHS,
    "concurrent command buffers": {**_GRAPHS,
                                   "xla_gpu_command_buffer_scheduling_mode": "CONCURRENT"},
    "no triton gemm": {"xla_gpu_enable_triton_gemm": False},
    "cudnn gemm fusion": {"xla_gpu_cudnn_gemm_fusion_level": 2},
}
ATTENTION: tuple[str | None, ...] = (None, "xla", "cudnn")

DEFAULT = "default"
XLA_DEFAULT = "XLA's default variant"
"""In `Data.kept`: the default variant compiled, where another one was the fastest."""
XLA_FLAGS = "XLA's flags"
"""In `Data.kept`: the name of the flags that XLA is fastest with."""
_EQUAL = 1.03
_ROUNDS = 5


@dataclass(frozen=True)
class Variant:
    """What can be chosen of XLA."""

    flags: str = DEFAULT
    attention: str | None = None

    def __str__(self) -> str:
        return self.flags if self.attention is None else \
            f"{self.flags}, attention={self.attention}"

    @classmethod
    def named(cls, text: str) -> Variant:
        """The one that is written so.

        Raises:
          ValueError: there is none.
        """
        for flags in FLAGS:
            for attention in ATTENTION:
                if str(found := cls(flags, attention)) == text:
                    return found
        raise ValueError(f"no variant of XLA is called {text!r}")


class Choices:
    """Variants chosen before, in a file: a second run of a commit need not try them all again."""

    def __init__(self, path: Path | None) -> None:
        self._kept = Kept(path)

    def get(self, data: Data, whose: str = "") -> Variant | None:
        """What was chosen for a case under this version of JAX: for XLA, or another system."""
        found = self._kept.get(self._key(data, whose))
        known = found and found["flags"] in FLAGS and found["attention"] in ATTENTION
        return Variant(found["flags"], found["attention"]) if known else None

    def put(self, data: Data, chosen: Variant, whose: str = "") -> None:
        """Remembers it."""
        self._kept.put(self._key(data, whose),
                       {"flags": chosen.flags, "attention": chosen.attention})

    @staticmethod
    def _key(data: Data, whose: str) -> str:
        device = jax.devices()[0].device_kind
        return (f"{data.case.name} {data.program.shape}, jax {jax.__version__}, {device}, "
                f"results checked{whose and ', ' + whose}")


def prepare(data: Data, choices: Choices, *, search: bool, phases: Phases,
            check: Check, only: str | None = None) -> JaxRunning:
    """XLA's side of a case.

    Args:
      only: the variant that is taken, whatever else there may be.
      check: gets the default's errors where variants are searched, and judges these.
      search: try the variants, unless they were tried before; else take the default.
      phases: told what the search takes.

    Raises:
      Exception: what JAX raises when it compiles or runs the default, or ``only``.
    """
    if only is not None:
        return _running(data, Variant.named(only))
    if not search or jax.default_backend() == "cpu":
        return _running(data, Variant())
    known = choices.get(data)
    if known is not None:
        running = _running(data, known)
        running.facts = replace(running.facts, notes=_note("chosen by an earlier run", []))
        data.kept[XLA_FLAGS] = known.flags
        return running
    start = time.perf_counter()
    best = _running(data, Variant())
    best.wait(best.start())
    data.kept[XLA_DEFAULT] = best.function
    with phases.phase("errors"):
        check.set_bar(best.function)
    compile_s = best.facts.compile_s
    failed: list[str] = []
    if data.case.workload.attention:
        best = _fastest(best, [Variant(attention=a) for a in ATTENTION if a], data, failed, phases,
                        check)
    flags = [replace(best.chosen, flags=name) for name in FLAGS if name != DEFAULT]
    best = _fastest(best, flags, data, failed, phases, check)
    choices.put(data, best.chosen)
    data.kept[XLA_FLAGS] = best.chosen.flags
    # The default's own compile time: the variants were compiled side by side.
    spent = time.perf_counter() - start - (compile_s or 0.0)
    best.facts = replace(best.facts, compile_s=compile_s, tune_s=spent, notes=_note("", failed))
    return best


class _Xla(JaxRunning):
    """One variant."""

    chosen: Variant


def _running(data: Data, variant: Variant) -> _Xla:
    program = data.program if variant.attention is None else \
        data.flat(data.case.program(attention=variant.attention))
    compiled, facts = compile_xla(program.step, data, FLAGS[variant.flags])
    running = _Xla("xla", compiled, data, replace(facts, variant=str(variant)))
    running.chosen = variant
    return running


def _fastest(best: _Xla, others: Sequence[Variant], data: Data, failed: list[str],
             phases: Phases, check: Check) -> _Xla:
    """The fastest of one that runs and others; closes the rest, notes those that fail or are
    wrong."""

    def attempt(variant: Variant, work: Callable[[], _Xla]) -> _Xla | None:
        try:
            return work()
        except Exception as error:  # a flag that this JAX lacks, an attention that does not fit
            failed.append(f"{variant}: {timing.reason(error)}")
            return None

    def first_run(made: _Xla) -> _Xla:
        made.wait(made.start())
        return made

    with phases.phase("variants"):
        with ThreadPoolExecutor(len(others)) as pool:
            compiled = list(pool.map(lambda v: attempt(v, lambda: _running(data, v)), others))
        # One by one: XLA aborts where one thread loads what another captures in a CUDA graph.
        ran = [attempt(r.chosen, lambda r=r: first_run(r)) for r in compiled if r]
    running = [best, *(r for r in ran if r)]
    with phases.phase("choosing"):
        winner = first_right(scores(running), lambda i: running[i] is best
                             or _is_right(running[i], check, failed))
    for i, r in enumerate(running):
        if i != winner:
            r.close()
    return running[winner]


def _is_right(running: _Xla, check: Check, failed: list[str]) -> bool:
    try:
        right, why = check.right(running.function), "its results are wrong"
    except Exception as error:  # out of memory
        right, why = False, timing.reason(error)
    if not right:
        failed.append(f"{running.chosen}: {why}")
    return right


Score = tuple[float, float]
"""Microseconds of a call: on the device, and pipelined."""


def first_right(scores: Sequence[Score], right: Callable[[int], bool]) -> int:
    """Index of the fastest (see `choose`) of those that are right, asked of no more than it takes.
    One must be."""
    left = list(range(len(scores)))
    while True:
        i = left[choose([scores[k] for k in left])]
        if right(i):
            return i
        left.remove(i)


def scores(running: Sequence[Running]) -> list[Score]:
    """What `choose` asks for, of programs that are warm."""
    times = timing.pipelined(dict(enumerate(running)), seconds=0.1, rounds=_ROUNDS, calls=50)
    pipelined = [times[i].median_us for i in range(len(running))]
    asked = {i: trace.Asked(r, us, issuing=timing.issuing_us(r, us))
             for i, (r, us) in enumerate(zip(running, pipelined, strict=True))}
    # As the table's device time is measured. (`timing.queued` is as much as 40 % off where a call
    # is short beside the work in front of it: it chose flags that made ResNet-50 38 % slower.)
    traced = trace.device_times(asked, timing.Failures())
    return [(_on_device(traced.get(i), one), one.us) for i, one in asked.items()]


def _on_device(traced: trace.DeviceTimes | trace.NoDeviceTrace | None, asked: trace.Asked) -> float:
    if isinstance(traced, trace.DeviceTimes):
        return traced.span_us
    return timing.queued(asked.running, asked.us, issuing=asked.issuing) or asked.us


def choose(scores: Sequence[Score]) -> int:
    """Index of the fastest."""
    bar = min(device for device, _ in scores) * _EQUAL
    equal = [i for i, (device, _) in enumerate(scores) if device <= bar]
    return min(equal, key=lambda i: scores[i][1])


def _note(text: str, failed: Sequence[str]) -> str:
    told = [text] if text else []
    return "; ".join(told + [f"left out: {f}" for f in failed])
