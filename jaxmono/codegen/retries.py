"""Other texts of a kernel, where ptxas has too few registers for the first.

    producers have more registers, consumers fewer (`rich`): f32 is rounded by them
    what threads find again in each stage is kept, or the other way round
    products of f32 wait for those of the tile before, of images for all but one (`in_turn`)
    fewer registers, more instructions (`lean`)
    what epilogues read is loaded where it is added, not brought through the ring (`unsourced`)

What these are is in `KernelSchedule`. Each change is made to the best text so far, until that is
good, or good enough for a long one; of two alike the first is taken. A text takes ptxas as long as
the one before it (the backward kernel of wav2vec2's training step 29 s), but they do not depend on
each other: where cores are to spare some start before it is known that they are needed, and end
when it is known that they are not.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from threading import Event
from typing import Protocol

from jaxmono import _logging
from jaxmono._errors import CompileError
from jaxmono.codegen.cores import spare
from jaxmono.codegen.dot_wgmma_shared import BYTES, IMAGE, REGISTERS, TF32
from jaxmono.codegen.schedule import KernelSchedule

_log = _logging.get("codegen")

_RICH, _RICHER = 104, 120
"""Registers of a producer (device/roles.cuh)."""
_MANY, _FEW_BYTES, _MANY_BYTES = 25, 32, 64
"""Functions of a long text; bytes that one of them may spill, which is not worth another text of
10 to 20 s (two kernels of wav2vec2's training step spill 32 as the fourth of eight and the fourth
of seven texts, 24 and 32 as the best); bytes of spills that are worse than products in turn."""


@dataclass(frozen=True)
class Made:
    """A text of the kernel, compiled."""

    schedule: KernelSchedule
    binary: bytes
    source: str
    resources: Mapping[str, int]

    @property
    def spilled(self) -> int:
        return self.resources.get("spill_stores", 0)

    @property
    def faults(self) -> tuple[int, int, int]:
        """The worst first: a text of ViT-B/16 b16 whose products wait for each other took 10 % more
        time. Of wav2vec2's training step two texts store 16 bytes; the one that loads 12, not 16,
        spills nothing once it is `rich`."""
        return self.resources.get("serialized", 0), self.spilled, \
            self.resources.get("spill_loads", 0)


class Compiler(Protocol):
    """Writes a text, and returns what compiles it, in any thread, until an event is set."""

    def __call__(self, schedule: KernelSchedule, *unwanted: Event) -> Callable[[], Made]: ...


def improved(made: Made, wide_tiles: bool, text: Compiler, sourced: Collection[str] = ()) -> Made:
    """``made``, or a better text of the same kernel.

    Args:
      wide_tiles: as ``made`` has taken it. sourced: keys of the Sigs whose epilogues have a source
        in the ring.
    """
    if _enough(made):
        return made
    families = {getattr(s, "family", "") for s in made.schedule.sigs.values()}
    on_the_left = not families.isdisjoint(REGISTERS)
    beside = not families.isdisjoint((TF32, BYTES))  # products run while the next weights come
    images = not beside and IMAGE in families

    def flipped(s: KernelSchedule) -> KernelSchedule:
        # By a few bytes ptxas may have the registers for the other text (CLIP b16: 8, and 0).
        return replace(s, wide_tiles=not wide_tiles)

    def in_turn(s: KernelSchedule) -> KernelSchedule:
        # wav2vec2's training step: forward serialized, and not so; backward 480 bytes, and 136.
        return replace(s, in_turn=True)

    def rich(s: KernelSchedule) -> KernelSchedule:
        # f32 of CLIP's images b1 68 bytes, wav2vec2 b1 216, and none; of ResNet-50 b32 180, and
        # none but serialized, so in turn, and 4.
        return replace(s, producer_registers=_RICH)

    def richer(s: KernelSchedule) -> KernelSchedule:
        # OPT-125M b16: 144 bytes, with 104 44, with 120 none.
        return replace(s, producer_registers=_RICHER)

    def lean(s: KernelSchedule) -> KernelSchedule:
        # What is left may be the word of predicates that producers share with all functions (the
        # third kernel of wav2vec2's training step: 80 bytes, with wide tiles 156, so 0), or a
        # thread's number (the fourth of DIEN's: 12 bytes stored, 448 loaded, so none).
        return replace(s, lean=True)

    def unsourced(s: KernelSchedule) -> KernelSchedule:
        # Stable Diffusion's UNet: a GELU times a source in tiles of 128 x 160, and ptxas lets all
        # products of the kernel wait for each other, however few pieces are in flight.
        return replace(s, sigs={key: replace(x, source=False) if key in sourced else x
                                for key, x in s.sigs.items()})

    # Fewer registers may serialize products, which then have to wait in turn: `rich` again. And
    # once more for what lean texts still spill (the third kernel of wav2vec2's training step: in
    # turn 16 bytes, lean 8, so none).
    changes = [rich, flipped, in_turn, rich, richer, lean, rich] if beside else \
        [rich, flipped, richer, lean] if on_the_left else [flipped, lean]
    if BYTES in families:
        # Enough for int8 BERT-base b16, Llama's prefill b1, and its decode step b16, of 436 bytes.
        changes = [in_turn, *changes]
    changes = [*([in_turn] if images else []), *changes, unsourced]
    bases = [made.schedule, flipped(made.schedule)]
    likely = [bases[1], *map(in_turn, bases)] if beside else bases[1:]
    if made.spilled and on_the_left:
        # DIEN's training step: neither is enough, both are.
        likely = [*map(rich, bases), *likely, *([rich(in_turn(bases[0]))] if beside else [])]
    elif made.spilled:
        likely += map(lean, bases)
    else:
        likely += [change(bases[0]) for change, helps in ((in_turn, images), (unsourced, sourced))
                   if helps]
    for_spills, for_waits = (rich, richer, lean), (in_turn,) if images else ()
    tried = [made.schedule]
    with _Ahead(text, likely) as ahead:
        for change in changes:
            wanted = change(made.schedule)
            if not _enough(made) and (made.spilled or change not in for_spills) \
                    and (made.faults[0] or change not in for_waits) and wanted not in tried:
                tried.append(wanted)
                other = ahead.found(wanted)
                turned = in_turn(made.schedule)
                if beside and other is not None and turned not in tried \
                        and _spills_less_but_waits(made, other):
                    tried.append(turned)
                    other = ahead.found(turned)
                made = _better(made, other)
        return made


class _Ahead:
    """Texts that are compiled before anybody asks for them, as far as there are cores to spare."""

    def __init__(self, text: Compiler, likely: Sequence[KernelSchedule]) -> None:
        self._text, self._unwanted = text, Event()
        self._pool = ThreadPoolExecutor(len(likely), "jaxmono-compile")
        self._begun: list[tuple[KernelSchedule, Future[Made | None]]] = []
        for s in likely:
            if not spare().acquire(blocking=False):
                break
            try:
                future = self._pool.submit(_asked, text(s, self._unwanted))
            except BaseException:
                spare().release()
                raise
            future.add_done_callback(lambda _: spare().release())
            self._begun.append((s, future))

    def found(self, wanted: KernelSchedule) -> Made | None:
        future = next((f for s, f in self._begun if s == wanted), None)
        return future.result() if future is not None else _asked(self._text(wanted))

    def __enter__(self) -> _Ahead:
        return self

    def __exit__(self, *_: object) -> None:
        self._unwanted.set()
        self._pool.shutdown(wait=False, cancel_futures=True)


def _spills_less_but_waits(made: Made, other: Made) -> bool:
    """Those two kernels spill 212 and 380 bytes, with more registers for producers 32 and 68, but
    serialized, and in turn 32 both (the first with these registers 88), which is tried at once."""
    return other.faults[0] > made.faults[0] and other.spilled + _MANY_BYTES <= made.spilled


def _enough(made: Made) -> bool:
    serialized, spilled, _ = made.faults
    few = _FEW_BYTES if len(made.schedule.sigs) >= _MANY else 0
    return not serialized and spilled <= few


def _better(made: Made, other: Made | None) -> Made:
    return other if other is not None and other.faults < made.faults else made


def _asked(compiled: Callable[[], Made]) -> Made | None:
    """None where the compiler refuses the text: there is another one."""
    try:
        return compiled()
    except CompileError as error:
        _log.info("another text of a kernel is not taken: %s", error)
        return None
