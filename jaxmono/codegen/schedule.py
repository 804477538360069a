"""Schedules: how a Plan's groups are mapped to threads, of a whole kernel.

Each kind of group has its own (loop_schedule.py, row_schedule.py, dot_schedule.py, attention.py),
with the analytic chooser beside it. A tuner makes other values of the same types; the generator
takes any that fit.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from jaxmono.codegen.traverse import Reduction, walk
from jaxmono.fusion.indexing import Index, IndexMap, Var, linearize
from jaxmono.fusion.plan import Sig, Store
from jaxmono.hlo.ir import Graph, Value


@dataclass(frozen=True)
class KernelSchedule:
    """Attributes:
      threads: per block; a multiple of 32.
      blocks_per_sm: what registers and shared memory are limited for.
      sigs: schedule of every Sig, by its key.
      wide_tiles: whether threads that compute keep next to nothing between stages that can be
        found again (`fresh` in device/opaque.cuh); None: where a tile needs their registers.
      lean: whether a text takes more instructions for fewer registers: producers do with the
        predicates that there are (`at_once` in device/opaque.cuh), a thread's number is found again
        wherever it is used, a tile's sums stay where they are (device/staged_rows.cuh).
      in_turn: whether products with the weights on the left, in registers, wait for those of the
        tile before, which needs fewer registers (device/weights_left.cuh), and those of an image
        for all but one (device/gemm_image.cuh).
      producer_registers: of a thread that brings operands, 16 n + 8; those that compute do without
        half as many. None: what device/roles.cuh gives them, fewer beside tiles of very many sums.
    """

    threads: int = 256
    blocks_per_sm: int = 1
    sigs: Mapping[str, Any] = field(default_factory=dict)
    wide_tiles: bool | None = None
    lean: bool = False
    in_turn: bool = False
    producer_registers: int | None = None


def substitute(index: IndexMap, env: Mapping[Var, Index]) -> IndexMap:
    return tuple(i.substitute(env) for i in index)


def store_offset(sig: Sig, s: Store, env: Mapping[Var, Index]) -> Index:
    """Element offset of a store in its buffer."""
    return linearize(substitute(s.index, env), sig.body.outputs[s.result].type.dims)


def widest_input(sig: Sig) -> int:
    """Bytes of an element of what a body reads, at most."""
    return max((v.type.dtype.itemsize for v in sig.body.inputs), default=4)


def sinks(sig: Sig, stores: tuple[Store, ...], env: Mapping[Var, Index]) -> list[tuple[Index, int]]:
    """Offset and item size of every store."""
    return [(store_offset(sig, s, env), sig.body.outputs[s.result].type.dtype.itemsize)
            for s in stores]


def roots(sig: Sig, stores: tuple[Store, ...], env: Mapping[Var, Index],
          ) -> list[tuple[Value, IndexMap]]:
    """The values stored, with their indices."""
    return [(sig.body.outputs[s.result], substitute(s.index, env)) for s in stores]


MOST_FLAGGED = 8
"""Places of a value with flags that an element is computed of: its loads wait one after the other.
Nucleus sampling of 4 x 1000 words, with 77 for each of the elements, took 816 us a call on an H200,
and 53 without these flags and with sums of pieces that are stored."""
MOST_ALONG = 16
"""Elements with flags of a row that a thread takes, a vector after the other. With 64 (sums of 512
x 32 by one block) k-means took twice as long, with 32 (the largest of 8192 logits) a network's text
1.05 of its time."""


Places = Mapping[Value, Sequence[IndexMap]]
"""Of each input of a body, those that an element or a column is computed of."""


def reads(body: Graph, every: Sequence[tuple[Value, IndexMap]],
          reduction: Reduction | None = None) -> Places:
    """Found in one walk: with one for each input the text of wav2vec2's training took 42 s, not 6.
    """
    out: dict[Value, list[IndexMap]] = {v: [] for v in body.inputs}
    for n in walk(body, every, reduction=reduction):
        if n.op is None and n.value in out:
            out[n.value].append(n.index)
    return out


def reads_few(places: Sequence[IndexMap], col: Var | None = None, along: int = 1) -> bool:
    """Whether a thread waits for an input, of which it reads these, only a few times.

    Args:
      col: the Var along which a thread takes so many places one after the other as ``along`` says.
    """
    varies = col is not None and any(i.depends_on(col) for at in places for i in at)
    return len(places) <= MOST_FLAGGED and (along <= MOST_ALONG or not varies)
