"""What the lowering asks of the compiler above it: which ops run as which kernels.

The compiler (hlo passes, planning, code generation) is above this room, so it is put into a slot
here by whoever owns it, and the lowering calls whatever is there.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from jaxmono.codegen.program import Program
from jaxmono.custom_call.options import Options
from jaxmono.hlo.importer import Imported
from jaxmono.hlo.ir import Op, Value


@dataclass(frozen=True, eq=False)
class Region:
    """A convex part of a function that one kernel computes.

    Attributes:
      op_indices: which ops of ``imported.graph.ops`` it stands for. An op whose results are also
        needed outside and that are not among ``outputs`` (a constant, say) is emitted for XLA too.
      inputs: what the kernel reads, in the order of ``program.inputs``: inputs of the graph,
        results of ops that XLA runs, or outputs of other regions.
      outputs: what the kernel writes, in the order of ``program.outputs``.
    """

    op_indices: tuple[int, ...]
    inputs: tuple[Value, ...]
    outputs: tuple[Value, ...]


@dataclass(frozen=True, eq=False)
class CompileResult:
    """Of a function, or of a region of an op that XLA runs (a loop's body, a branch).

    Attributes:
      regions: what runs as kernels.
      programs: one per region.
      inside: the same of what ops of this graph run, in the order of `Origin.regions`; None where
        nothing changes. Empty, as ``regions``: the whole function stays with XLA.
      instead: what the regions are of, where that is not what was imported.
      report: the compiler's own account; the lowering does not look at it.
    """

    regions: tuple[Region, ...] = ()
    programs: tuple[Program, ...] = ()
    inside: Mapping[Op, tuple[CompileResult | None, ...]] = field(default_factory=dict)
    instead: Imported | None = None
    report: Any = None

    def all_programs(self) -> tuple[Program, ...]:
        """Those inside, too."""
        return (*self.programs, *(p for results in self.inside.values() for r in results if r
                                  for p in r.all_programs()))


class MadeLaterError(Exception):
    """Kernels are being made beside the caller: XLA runs the function until they are there."""


class Compiler(Protocol):
    """What `set_compiler` takes."""

    def compile_regions(self, imported: Imported, options: Options,
                        platform: str) -> CompileResult:
        """Plans and compiles one function.

        Args:
          imported: the function as JAX lowered it; Region values are values of its graph.
          platform: "cuda" or "cpu"; on "cpu" ``options.interpret`` is set.

        Raises:
          MadeLaterError: with ``options.later``, some kernels are missing.
          Exception: whatever goes wrong. The lowering turns it into one warning line and leaves
            the function to XLA, unless ``options.on_unsupported`` is "error".
        """
        ...

    def observe(self, imported: Callable[[], Imported], options: Options, platform: str,
                note: str) -> None:
        """Tells of a function that stays with XLA as a whole, for reports.

        Args:
          imported: imports the function; call it only if somebody wants the report.
          note: one sentence: why it stays with XLA.
        """
        ...


_slot: list[Compiler] = []


def set_compiler(compiler: Compiler) -> Compiler | None:
    """Makes ``compiler`` the one that lowerings use; returns the one before."""
    previous = _slot[0] if _slot else None
    _slot[:] = [compiler]
    return previous


def get_compiler() -> Compiler | None:
    """The compiler in the slot."""
    return _slot[0] if _slot else None
