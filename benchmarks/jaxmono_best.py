"""jaxmono's side of a case: as it comes, or with the flags that XLA is fastest with.

What jaxmono leaves to XLA (a loop, a scatter) runs under XLA's flags. Where XLA's own side has
been given its best ones, such a program is tried with the same; a program without such ops has
nothing that they could change.
"""

from __future__ import annotations

from dataclasses import replace

from benchmarks import timing
from benchmarks.data import Data
from benchmarks.errors import Check
from benchmarks.phases import Phases
from benchmarks.running import Facts
from benchmarks.systems_jax import JaxRunning, compile_jaxmono
from benchmarks.xla_best import DEFAULT, FLAGS, XLA_FLAGS, Choices, Variant, first_right, scores


def prepare(data: Data, mode: str, choices: Choices, *, interpret: bool, phases: Phases,
            check: Check, only: str | None = None) -> JaxRunning:
    """jaxmono compiled, warm.

    Args:
      choices: of earlier runs; what is chosen here is remembered there.
      check: judges the results with other flags than the default's.
      only: the flags that are taken, whatever XLA is fastest with.

    Raises:
      Exception: what JAX or jaxmono raises for the default flags, or for ``only``.
    """
    if only is not None:
        return _running(data, mode, only, interpret=interpret)
    whose, flags = f"jaxmono {mode}", data.kept.get(XLA_FLAGS, DEFAULT)
    known = choices.get(data, whose) if flags != DEFAULT else None
    if known is not None and known.flags in (DEFAULT, flags):
        return _noted(_running(data, mode, known.flags, interpret=interpret),
                      "flags chosen by an earlier run")
    first = _running(data, mode, DEFAULT, interpret=interpret)
    if first.facts.status != "fallback" or flags == DEFAULT:
        return first
    first.wait(first.start())
    try:
        with phases.phase("variants"):
            second = _running(data, mode, flags, interpret=interpret)
            second.wait(second.start())
    except Exception as error:  # the flags may not fit what is left of the program
        return _noted(first, f"not tried: {flags}: {timing.reason(error)}")
    with phases.phase("choosing"):
        if first_right(scores((first, second)),
                       lambda i: i == 0 or check.right(second.function)) == 0:
            choices.put(data, Variant(), whose)
            second.close()
            return _noted(first, f"no better or not right: {flags}")
    choices.put(data, Variant(flags), whose)
    first.close()
    # Its own compile time would be that of the second compilation, whose kernels were there.
    second.facts = replace(second.facts, compile_s=first.facts.compile_s)
    return second


def _running(data: Data, mode: str, flags: str, *, interpret: bool) -> JaxRunning:
    step = data.flat(data.case.jaxmono_program()).step
    compiled, facts = compile_jaxmono(step, data, mode, interpret=interpret, options=FLAGS[flags])
    return JaxRunning(f"jaxmono {mode}", compiled, data,
                      facts if flags == DEFAULT else replace(facts, variant=flags))


def _noted(running: JaxRunning, note: str) -> JaxRunning:
    facts: Facts = running.facts
    running.facts = replace(facts, notes="; ".join(filter(None, (facts.notes, note))))
    return running
