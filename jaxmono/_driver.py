"""The driver: from the imported Graph of one call site to its compiled kernels.

    raw Graph -> scopes -> regions -> per region: simplify -> verify -> key -> cache, or plan ->
    verify -> generate -> cache

The primitive's lowering calls `Driver.compile_regions` and emits what it returns. A region that
fails is one warning line, and XLA runs it, unless ``on_unsupported="error"``.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial

from jaxmono import _collect, _config, _dump, _logging, _measure, _tune
from jaxmono._build import Built, Job, begun, build, compilers, known
from jaxmono._config import Config
from jaxmono._device import Facts, facts_for
from jaxmono._errors import CompileError, JaxmonoError, UnsupportedError, warn
from jaxmono._explain import KernelReport, Refusal, Report, Work
from jaxmono._later import Later
from jaxmono._scopes import Scope, find_scopes
from jaxmono.custom_call.compiler import CompileResult, MadeLaterError, Region, set_compiler
from jaxmono.custom_call.options import Options
from jaxmono.fusion.region_aliases import Pairs, region_aliases
from jaxmono.fusion.regions import NOT_STITCHED
from jaxmono.hlo.fingerprint import fingerprint
from jaxmono.hlo.importer import Imported
from jaxmono.hlo.ir import Graph, Op

_log = _logging.get("driver")

_Key = tuple[str, Pairs]
"""What tells the kernels of a function apart."""


@dataclass(frozen=True, eq=False)
class Taken:
    """The live ops of a kernel, each in the first one that computes it, the scope's `runs` and
    `within`, and what is to be told of the region."""

    ops: tuple[Op, ...]
    runs: int
    within: str
    notes: tuple[str, ...]


@dataclass(frozen=True, eq=False)
class Outcome:
    """What the lowering of one call site made: for `Lowered`, `Compiled` and `explain`.

    Attributes:
      symbol: the function in its module; ``name``: as the user knows it.
      built: one per kernel, in program order.
      taken: what each kernel computes.
      refused: the ops that XLA runs.
      live: all ops that matter.
      note: why XLA runs the whole function, or "".
      graph: the function as it was imported. donates: it may write over some arguments.
    """

    symbol: str
    name: str
    platform: str
    options: Options
    facts: Facts
    built: tuple[Built, ...]
    taken: tuple[Taken, ...]
    refused: tuple[Refusal, ...]
    live: tuple[Op, ...]
    note: str
    graph: Graph
    donates: bool

    @cached_property
    def report(self) -> Report:
        """Made when asked for: it may have to plan what came from the cache."""
        kernels = tuple(_kernel_report(b, self.facts, taken)
                        for b, taken in zip(self.built, self.taken, strict=True))
        return Report(self.platform, self.options.interpret, self.options.mode,
                      0 if self.note else len(kernels), kernels, self.refused,
                      _measure.work(self.live), self.note)

    def texts(self, dialect: str) -> list[str]:
        """The "plan", "cuda" or "ptxas" text of each kernel under a banner with its name."""
        out = []
        for b in self.built:
            text = _dump.texts(b.plan, b.program).get(dialect, "(only planned)\n")
            out.append(f"// ==== {b.job.name} ({b.key[:12]}) ====\n{text}")
        return out


class Driver:
    """The compiler that `custom_call` finds in its slot (see `custom_call.compiler.Compiler`)."""

    def compile_regions(self, imported: Imported, options: Options,
                        platform: str) -> CompileResult:
        """Plans and compiles what can be taken of one function.

        Raises:
          UnsupportedError: an op was refused and ``on_unsupported`` is "error".
          ConfigError: an environment variable is malformed.
          MadeLaterError: of ``options.later``.
        """
        collector = _collect.active()
        plan_only = collector is not None and collector.plan_only
        facts = facts_for(platform, interpret=options.interpret)
        if not facts.here and not plan_only:
            raise CompileError(f"this process has no GPU to compile {platform} kernels for; lower "
                               f"the program where such a GPU is")
        if options.on_unsupported != "error" and not imported.donated and (
                note := _tune.left_to_xla(imported.graph, facts, options.mode, _config.read())):
            self.observe(lambda: imported, options, platform, note)
            return CompileResult()
        outcome, result = _run(imported, options, platform, plan_only=plan_only)
        if collector is not None:
            collector.outcomes.append(outcome)
        return CompileResult(report=outcome) if plan_only else result

    def observe(self, imported: Callable[[], Imported], options: Options, platform: str,
                note: str) -> None:
        """Records why a function stays with XLA as a whole, with the plan it would have had."""
        _log.info("XLA runs the whole function on %s: %s", platform, note)
        collector = _collect.active()
        if collector is None:
            return
        try:
            outcome, _ = _run(imported(), options, platform, plan_only=True, note=note)
        except JaxmonoError as error:  # a report must not stop a program that XLA can run
            _log.debug("no report on a function: %s", error, exc_info=error)
            collector.notes.append(note)
            return
        # A function whose kernels were made and then could not be loaded is told of twice.
        collector.outcomes[:] = [o for o in collector.outcomes if o.symbol != outcome.symbol]
        collector.outcomes.append(outcome)


def _run(imported: Imported, options: Options, platform: str, *, plan_only: bool,
         note: str = "") -> tuple[Outcome, CompileResult]:
    """Builds every region; one that fails is left to XLA with a warning.

    When only planning, nothing raises or warns: the report tells it.
    """
    start = time.perf_counter()
    config = _config.read()
    facts = facts_for(platform, interpret=options.interpret)
    graph = imported.graph
    name = _measure.function_name(graph.name, options)
    root = find_scopes(imported, options.mode, facts.device,
                       same_bits=_config.same_bits_on_every_run())
    scopes = list(root.walk())
    refused = [_refusal(op, reason) for scope in scopes for op, reason in scope.refused]
    strict = options.on_unsupported == "error" and not plan_only
    # What stays with XLA inside a loop does so because the loop does, or is XLA's to count trips.
    unsupported = [_refusal(op, why) for op, why in root.refused if why != NOT_STITCHED]
    if unsupported and strict:
        raise UnsupportedError(_unsupported(name, unsupported))
    built: list[Built] = []
    taken: list[Taken] = []
    counted: set[Op] = set()
    parts: dict[Scope, list[tuple[Region, Built]]] = {scope: [] for scope in scopes}
    found = [(scope, region) for scope in scopes for region in scope.regions]
    graphs = [region.subgraph(scope.graph) for scope, region in found]
    aliases = [x for scope in scopes
               for x in region_aliases(scope.graph, scope.regions, scope.imported.donated)]
    # Equal regions (those of repeated layers) are one kernel, built once and launched often.
    keys = [(fingerprint(g), pairs) for g, (pairs, _) in zip(graphs, aliases, strict=True)]
    distinct = list(dict.fromkeys(keys))
    made: dict[_Key, Built] = {}

    def job(key: _Key) -> Job:
        kernel = _measure.kernel_name(name, distinct.index(key), len(distinct))
        subgraph = replace(graphs[keys.index(key)], name=kernel)
        return Job(kernel, subgraph, facts, options.mode, aliases=key[1])

    later = options.later if not plan_only and not _tune.is_on(config) else None
    there = _made_before(later, {key: job(key) for key in distinct}, config, name) \
        if isinstance(later, Later) else {}
    with compilers(facts, config, 0 if plan_only or there else len(distinct)) as pool:
        builds = there or {
            key: begun(job(key), config, pool) if pool else
            partial(build, job(key), config, plan_only=plan_only) for key in distinct}
        for (scope, region), key, (_, copies) in zip(found, keys, aliases, strict=True):
            kernel = _measure.kernel_name(name, distinct.index(key), len(distinct))
            mine = tuple(op for j in region.op_indices
                         if (op := scope.graph.ops[j]) in scope.live and op not in counted)
            try:
                if key in made:
                    built.append(replace(made[key], phases={}, cached=True))
                else:
                    made[key] = builds[key]()
                    built.append(made[key])
            except Exception as error:
                if strict:
                    raise
                _log.debug("building %s failed", kernel, exc_info=error)
                refused += [_refusal(op, f"building its kernel failed: {error}") for op in mine
                            if not _measure.is_free(op)]
                said = (f"jaxmono: {kernel} could not be built ({type(error).__name__}: {error}); "
                        f"XLA runs it, with the same results. JAXMONO_LOGS=debug shows where it "
                        f"failed; on_unsupported='error' raises")
                if not plan_only and (not isinstance(later, Later) or later.is_new(said)):
                    warn(said, stacklevel=3)
                continue
            taken.append(Taken(mine, scope.runs, scope.within, (region.note, copies)))
            counted.update(mine)
            parts[scope].append((Region(region.op_indices, region.inputs, region.outputs),
                                 built[-1]))
    outcome = Outcome(graph.name, name, platform, options, facts, tuple(built), tuple(taken),
                      tuple(refused), tuple(root.live), note, graph,
                      bool(imported.donated))
    _log.info("%s: %d kernels (%d cached), %d ops left to XLA, %.3f s", name, len(built),
              sum(b.cached for b in built), len(refused), time.perf_counter() - start)
    return outcome, replace(_result(root, parts), report=outcome)


def _result(scope: Scope, parts: Mapping[Scope, Sequence[tuple[Region, Built]]]) -> CompileResult:
    """What the lowering needs of a scope and those inside it."""
    inside = {op: tuple(_result(s, parts) if s is not None else None for s in inner)
              for op, inner in scope.inner.items()}
    return CompileResult(tuple(region for region, _ in parts[scope]),
                         tuple(b.program for _, b in parts[scope] if b.program is not None),
                         {op: results for op, results in inside.items()
                          if any(r is not None and r.all_programs() for r in results)},
                         instead=scope.imported)


def _made_before(later: Later, jobs: Mapping[_Key, Job], config: Config,
                 name: str) -> dict[_Key, Callable[[], Built]]:
    """What gives each kernel, made already; nothing where they have to be waited for.

    Raises:
      MadeLaterError: some are not; they are being made.
    """
    found: dict[_Key, Callable[[], Built]] = {}
    missing: dict[tuple[_Key, str], Job] = {}
    for key, job in jobs.items():
        of = key, job.facts.target.kind
        if (made := later.found(of) or known(job, config)) is not None:
            found[key] = made
        else:
            missing[of] = job
    if missing and later.make(missing, name):
        raise MadeLaterError(f"{len(missing)} of its {len(jobs)} kernels are being made; XLA runs "
                             f"it until then")
    return found if not missing else {}


def _refusal(op: Op, reason: str) -> Refusal:
    return Refusal(_measure.op_name(op), str(op.loc), reason)


def _kernel_report(built: Built, facts: Facts, taken: Taken) -> KernelReport:
    plan, program = built.plan, built.program
    once = _measure.work(taken.ops) if taken.runs else Work()
    known = program.resources if program is not None else {}
    spills = [known[k] for k in ("spill_stores", "spill_loads") if k in known]
    return KernelReport(
        name=built.job.name,
        stages=len(plan.stages),
        barriers=program.barriers if program is not None else plan.barriers,
        barriers_before_merging=plan.barriers_before_merging,
        shared_bytes=program.shared_bytes if program is not None else None,
        scratch_bytes=program.scratch_bytes if program is not None else plan.scratch_bytes,
        predicted_us=_measure.predicted_us(plan, facts.device),
        floor_us=_measure.floor_us(plan, facts.device),
        work=replace(once, bytes=once.bytes * taken.runs, flops=once.flops * taken.runs),
        compile_seconds=built.seconds if program is not None else None,
        cached=built.cached if program is not None else None,
        registers=known.get("registers"),
        spill_bytes=sum(spills) if spills else None,
        notes=(*plan.notes, *([f"in the {taken.within}"] if taken.within else []),
               *filter(None, taken.notes)),
        schedules=_schedules(built) if program is not None else None,
    )


def _schedules(built: Built) -> str:
    found = built.choices
    return f"{found.measured} of {found.total} measured" if found.measured else "analytic"


def _unsupported(name: str, refusals: list[Refusal]) -> str:
    shown = [f"  {r.op} at {r.source}: {r.reason}" for r in refusals[:10]]
    if len(refusals) > len(shown):
        shown.append(f"  ... and {len(refusals) - len(shown)} more")
    return (f"{name}: {len(refusals)} ops cannot enter a kernel and on_unsupported='error' "
            f"forbids leaving them to XLA:\n" + "\n".join(shown)
            + "\nUse on_unsupported='xla', or move these ops out of the function")


def install() -> None:
    """Puts the driver into the slot of `custom_call`."""
    set_compiler(Driver())
