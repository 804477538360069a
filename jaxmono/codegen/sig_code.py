"""What the kernel assembly needs from the code of one kind of Sig, and the registry of kinds."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Protocol, runtime_checkable

from jaxmono.codegen.errors import CodegenError
from jaxmono.codegen.writer import Writer
from jaxmono.fusion.plan import Device, Sig
from jaxmono.hlo.ir import Value


@dataclass(frozen=True)
class Function:
    """The C names in scope in the body of a Sig's device function.

    Attributes:
      pointers: of the body's inputs, ``const T*``.
      outputs: of the body's outputs, ``T*``, in order.
      read_only: inputs that nothing in the launch writes, at any call.
      threads: of the block.
      workspace: ``float*``, this group's `SigCode.workspace_bytes` (or "").
      arrivals: ``unsigned*``, this group's `SigCode.counters` (or "").
      mail: ``float*``, this group's `SigCode.mail` (or "").
      fetched: ``bool``: this task's `SigCode.emit_prefetch` ran before the last grid barrier.
      doubled: prefetches make no cp.async groups: the kernel makes one of each, and one more,
        of another stage, before the body of a task that was fetched (`doubled.py`).
      task: ``int``, in [0, tasks). smem: ``unsigned char*``, 128-byte aligned shared memory, which
        the block's previous task may still be reading.
      behind: a grid barrier may be in front of it.
      given: inputs whose contents are there when the launch begins, and stay until all groups that
        read them are done (what is updated in place, with its old contents).
      flagged: inputs whose elements lie in words with flags: their pointers are ``Flagged<T>``
        (device/flagged.cuh), as are those of such outputs.
    """

    pointers: Mapping[Value, str]
    outputs: tuple[str, ...]
    read_only: frozenset[Value]
    threads: int
    workspace: str = ""
    arrivals: str = ""
    mail: str = ""
    fetched: str = "false"
    doubled: bool = False
    task: str = "task"
    smem: str = "smem"
    behind: bool = True
    given: frozenset[Value] = frozenset()
    flagged: frozenset[Value] = frozenset()


RESIDENT = 4
"""Blocks per SM of a kernel that only moves data. One block of 256 threads has 4 KB of loads in
flight, of about 40 KB that an H200 needs to reach its bandwidth: a softmax of 49152 x 128 took
22 us, XLA's 7.5. With 4 blocks a thread still has 64 registers."""


@dataclass(frozen=True)
class Request:
    """What a schedule is chosen for.

    Attributes:
      shared_bytes: dynamic shared memory that one block may use.
      siblings: groups of the same Sig in its stage.
      stage: batch, columns and k of all contractions that run beside it, itself included.
      wgmma: the kernel may have producer warps and Hopper's products.
      behind: a grid barrier is in front of its stage, wherever it runs: producers are ahead of it.
      streaming: the kernel only moves data; a multiprocessor may run several of its blocks.
      rounds: products may round weights of f32 in registers, wgmma's left operand.
      alone: nothing else is in its stages.
      sole: its kernel has a single stage.
    """

    device: Device
    threads: int
    shared_bytes: int
    siblings: int
    wgmma: bool = False
    stage: tuple[tuple[int, int, int], ...] = ()
    behind: bool = False
    streaming: bool = False
    rounds: bool = True
    alone: bool = False
    sole: bool = False

    @property
    def mixed(self) -> bool:
        """Whether contractions of other shapes run beside it."""
        return len(self.stage) > self.siblings


class SigCode(Protocol):
    """The code of one kind of Sig. ``schedule`` is whatever `choose` made (or a tuner)."""

    def choose(self, sig: Sig, request: Request) -> Any: ...

    def tasks(self, sig: Sig, schedule: Any, threads: int) -> int:
        """Independent tasks of one group; one block runs one task at a time."""
        ...

    def shared_bytes(self, sig: Sig, schedule: Any, threads: int) -> int:
        """Dynamic shared memory of one task."""
        ...

    def workspace_bytes(self, sig: Sig, schedule: Any) -> int:
        """Global scratch of one group, beyond its buffers."""
        ...

    def counters(self, sig: Sig, schedule: Any) -> int:
        """``unsigned`` counters of one group: zero at module load, then left to its code."""
        ...

    def mail(self, sig: Sig, schedule: Any) -> int:
        """Words of one group's share of a `Mailbox` (device/mailbox.cuh)."""
        ...

    def can_flag(self, sig: Sig, schedule: Any, result: bool, number: int) -> bool:
        """Whether the code can have words with flags for a result, or a param."""
        ...

    def emit_prefetch(self, w: Writer, sig: Sig, schedule: Any, function: Function) -> bool:
        """The statements that may run before the grid barrier in front of the group's stage.

        They read only `Function.given` inputs (others they may ask into the L2, where whatever is
        written later replaces it), and may use all of ``smem``: the block's next
        task is the one that they were emitted for. False: there are none.
        """
        ...

    def can_double(self, sig: Sig, schedule: Any, function: Function) -> bool:
        """Whether it has code for `Function.doubled`: what is prefetched is all that a task
        copies."""
        ...

    def emit_load(self, w: Writer, sig: Sig, schedule: Any, function: Function) -> bool:
        """What the producer warps do for one task (`dot_wgmma.emit_load`). False: nothing."""
        ...

    def emit_body(self, w: Writer, sig: Sig, schedule: Any, function: Function) -> None:
        """The statements of one task."""
        ...


@runtime_checkable
class Tunable(Protocol):
    """A `SigCode` whose schedules are worth measuring."""

    def candidates(self, sig: Sig, request: Request) -> Sequence[Any]:
        """A few tens of legal schedules, frozen dataclasses of plain values; `choose`'s first."""
        ...

    def late_us(self, sig: Sig, request: Request, schedule: Any) -> float:
        """Microseconds that a schedule takes longer in a kernel of many stages than measured alone,
        against the other candidates."""
        ...


_REGISTRY: dict[str, list[tuple[Callable[[Sig], bool], SigCode]]] = {}


def register(kind: str, code: SigCode, when: Callable[[Sig], bool] = lambda _: True) -> None:
    """Makes ``code`` the generator of Sigs of a kind ("loop", "row", "dot", "attention"), before
    others of that kind, where ``when`` holds."""
    _REGISTRY.setdefault(kind, []).insert(0, (when, code))


_MODULES = ("loop", "prefix", "fourier", "row", "contractions")
"""Modules of this room that register kinds when they are imported."""


def code_for(sig: Sig) -> SigCode:
    """The generator of a Sig's kind."""
    _load()
    for when, code in _REGISTRY.get(sig.kind, ()):
        if when(sig):
            return code
    raise CodegenError(f"no generator for {sig.kind} groups ({sig.name}); the planner should "
                       "have left them to XLA")


@lru_cache(maxsize=1)
def _load() -> None:
    for module in _MODULES:
        importlib.import_module(f"jaxmono.codegen.{module}")
