"""One region to one Program: simplify, verify, key, tuned schedules, cache, plan, generate."""

from __future__ import annotations

from collections.abc import Callable, Generator
from concurrent.futures import Executor, ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field, replace
from functools import cached_property
from threading import Event

from jaxmono import _dump, _logging, _tune
from jaxmono._config import Config
from jaxmono._device import Facts
from jaxmono._key import cache_key, compiler_version, tuned_key
from jaxmono.codegen import generate
from jaxmono.codegen.cores import SHARE, cores
from jaxmono.codegen.program import Program
from jaxmono.custom_call import cache
from jaxmono.fusion import grow, make_plan, planner, prepare
from jaxmono.fusion.plan import Plan
from jaxmono.hlo.ir import Graph
from jaxmono.hlo.passes import pipeline, simplify
from jaxmono.hlo.passes.complex_parts import complex_parts
from jaxmono.hlo.passes.flat_outputs import flat_outputs
from jaxmono.hlo.verify import verify
from jaxmono.tuning.tuner import Choices, tuned_schedule

_log = _logging.get("driver")

OPTIONAL = tuple(sorted({*pipeline.OPTIONAL, *planner.OPTIONAL, *prepare.OPTIONAL,
                         *grow.OPTIONAL}))
"""Names of what a kernel can be built without."""


@dataclass(frozen=True, eq=False)
class Job:
    """What to build: a region as a Graph of its own, for one device.

    Attributes:
      without: of `OPTIONAL`, what is left out, to measure what it is worth; users' kernels have
        everything.
      aliases: of `make_plan`.
    """

    name: str
    graph: Graph
    facts: Facts
    mode: str
    without: frozenset[str] = frozenset()
    aliases: tuple[tuple[int, int], ...] = ()


@dataclass(frozen=True, eq=False)
class Built:
    """A region built, or only simplified and keyed.

    Attributes:
      graph: simplified and verified.
      program: None when only planned.
      phases: seconds by phase.
      cached: the program came from the cache.
      choices: what the tuner knew of the kernel's schedules.
    """

    job: Job
    key: str
    graph: Graph
    program: Program | None
    phases: dict[str, float]
    cached: bool
    choices: Choices = field(default_factory=Choices)

    @cached_property
    def plan(self) -> Plan:
        """Made when first asked for: a cached program needs none unless somebody reports on it."""
        with _logging.timed(_log, f"{self.job.name}: plan", self.phases):
            return make_plan(self.graph, self.job.facts.device, mode=self.job.mode,
                             aliases=self.job.aliases, without=self.job.without)

    @property
    def seconds(self) -> float:
        """All phases so far."""
        return sum(self.phases.values())


def build(job: Job, config: Config, *, plan_only: bool) -> Built:
    """Builds a job; every phase is timed and logged under the topic ``driver``.

    Raises:
      JaxmonoError, HloError, PlanError: a phase failed; the caller decides what that means.
    """
    return begin(job, config, plan_only=plan_only)()


def begun(job: Job, config: Config, pool: Compilers) -> Callable[[], Built]:
    """`begin`; what it raises is raised when the kernel's turn comes."""
    try:
        return begin(job, config, plan_only=False, pool=pool)
    except Exception as error:
        return failing(error)


def failing(error: Exception) -> Callable[[], Built]:
    """What raises an error in place of building."""
    def fail() -> Built:
        raise error

    return fail


def known(job: Job, config: Config) -> Callable[[], Built] | None:
    """As `begun` where the cache has the kernel, or it cannot be built; else None."""
    try:
        return begin(job, config, plan_only=False, only_known=True)
    except _UnknownError:
        return None
    except Exception as error:
        return failing(error)


class _UnknownError(Exception):
    """The cache does not have it."""


def begin(job: Job, config: Config, *, plan_only: bool, pool: Compilers | None = None,
          only_known: bool = False) -> Callable[[], Built]:
    """As `build`, up to the plan. What is returned does the rest, or waits for it where ``pool``
    generates and compiles: most of the time, in processes of the compiler's own.

    Raises:
      What `build` does, likewise what is returned.
    """
    phases: dict[str, float] = {}

    def phase(what: str) -> AbstractContextManager[None]:
        return _logging.timed(_log, f"{job.name}: {what}", phases)

    with phase("simplify"):
        graph = simplify(complex_parts(job.graph, job.facts.device.shared_bytes), job.without)
        graph = flat_outputs(graph, [output for output, _ in job.aliases])
        verify(graph)
        compiler = "" if plan_only else compiler_version(job.facts.target)
        key = cache_key(graph, job.facts, name=job.name, mode=job.mode, compiler=compiler,
                        without=job.without, aliases=job.aliases)
    planned = Built(job, key, graph, None, phases, cached=False)
    if plan_only:
        _ = planned.plan  # a plan that cannot be made is a refusal, so it has to be tried now
        return lambda: planned
    with phase("tune"):
        choices = _tune.choices(key, job.facts, config, lambda: planned.plan)
    key = tuned_key(key, choices.changed)
    with phase("cache"):
        program = cache.get(key)
    if program is not None:
        return lambda: _finished(planned, key, program, choices, config, phase)
    if only_known:
        raise _UnknownError
    plan = planned.plan
    schedule = tuned_schedule(plan, _tune.conditions(job.facts), choices.changed) \
        if choices.changed else None

    def made(*cancelled: Event) -> Program:
        with phase("generate"):
            return generate(plan, job.facts.target, job.facts.device, job.name, schedule,
                            seconds=config.compile_seconds, cancelled=cancelled)

    generated = pool.threads.submit(made, pool.cancelled).result if pool is not None else made

    def finish() -> Built:
        program = generated()
        with phase("cache"):
            cache.put(key, program)
        return _finished(planned, key, program, choices, config, phase, cached=False)

    return finish


def _finished(planned: Built, key: str, program: Program, choices: Choices, config: Config,
              phase: Callable[[str], AbstractContextManager[None]], *,
              cached: bool = True) -> Built:
    # What is complex a kernel knows as two floats, and some results in another shape; who calls it
    # does not.
    inputs, outputs = (tuple(v.type for v in values) for values in
                       (planned.job.graph.inputs, planned.job.graph.outputs))
    program = replace(program, inputs=inputs, outputs=outputs)
    built = replace(planned, key=key, program=program, cached=cached, choices=choices)
    if "plan" in planned.__dict__:
        built.__dict__["plan"] = planned.plan  # `replace` does not know it
    if config.dump_to is not None:
        with phase("dump"):
            _dump.write(config.dump_to, planned.job.name, key, _dump.texts(built.plan, program))
    return built


@dataclass(frozen=True)
class Compilers:
    """Compile several kernels at a time, until ``cancelled``."""

    threads: Executor
    cancelled: Event = field(default_factory=Event)


@contextmanager
def compilers(facts: Facts, config: Config, kernels: int) -> Generator[Compilers | None]:
    """For so many kernels of a function; whoever leaves the body before they are done cancels them.

    None where there are not several, or few cores, or where candidates are compiled and measured
    meanwhile.
    """
    at_once = min(kernels, cores() // SHARE)
    if at_once < 2 or facts.target.kind != "cuda" or _tune.is_on(config):
        yield None
        return
    found = Compilers(ThreadPoolExecutor(at_once, "jaxmono-compile"))
    try:
        yield found
    finally:
        found.cancelled.set()
        found.threads.shutdown(wait=False, cancel_futures=True)
