"""The Plan: what runs together, where values live, who waits for whom, in which order.

    Plan -> stages -> groups (instances of a Sig, bound to buffers) -> tiles (made by codegen)

A Sig is self-contained: its ``body`` is a small Graph from the buffers that a group reads to the
buffers it writes. Two groups with equal Sigs run the same device function on other buffers, so the
code of a repeated layer is generated, compiled and tuned once.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass, field
from functools import cached_property

from jaxmono.fusion.indexing import IndexMap, Var
from jaxmono.hlo import ops
from jaxmono.hlo.ir import Graph, Value
from jaxmono.hlo.types import TensorType

# ---- what one group computes -------------------------------------------------------------------


@dataclass(frozen=True)
class Store:
    """One element of ``body.outputs[result]`` written per point of a domain.

    Attributes:
      result: index into ``body.outputs``.
      index: where the element goes, as a function of the domain's Vars (may be dynamic).
      over: the Vars of the domain this result is stored over (for a row Sig: rows and cols, or
        rows alone; for a dot Sig's normalised left operand: batch, m and k; for a reduce that
        begins in its epilogue: groups of rows for m, or of columns for n).
    """

    result: int
    index: IndexMap
    over: tuple[Var, ...]


@dataclass(frozen=True)
class LoopForm:
    """EWS: every stored element is computed by itself. ``vars``: the iteration space, minor last.

    In place (dynamic_update_slice on its own buffer): the iteration space is the update only.
    """

    vars: tuple[Var, ...]
    stores: tuple[Store, ...]


@dataclass(frozen=True)
class RowForm:
    """SIS with output-only contractions (OCS): a row is owned by one thread, warp or block.

    Every reduce in the body is demanded at exactly ``rows`` and reduces exactly ``cols``; all
    other values are functions of (rows, cols), of rows, or of nothing.
    """

    rows: tuple[Var, ...]
    cols: tuple[Var, ...]
    stores: tuple[Store, ...]


@dataclass(frozen=True)
class DotForm:
    """One dot_general with its prologues and epilogue.

    The dot is demanded by every output at exactly `dots.demanded` (flattened: one Var each). Its
    operands are demanded at ``lhs_index`` over (batch, m, k) and ``rhs_index`` over (batch, n, k),
    and may be any expression of the parameters (prologue).

    Attributes:
      row_prologue: the left operand contains reduces over exactly k (a normalisation): a block
        computes whole rows of it into shared memory first. ``stores`` over (batch, m, k) are
        then written by the tiles of column 0.
      windows: what is stored instead of m (over batch, windows, n), if each element takes the dot
        at several neighbouring rows: `taps` of them (see window_rows.py).
      pairs: what is stored instead of n (over batch, rows, pairs), if each element takes the dot
        at one column of each half of n (see paired_columns.py).
      rounded: all that the left operand is made of lies rounded to tf32 in memory (round_rows.py).
    """

    dot: ops.DotGeneral
    batch: Var
    m: Var
    n: Var
    k: Var
    lhs_index: IndexMap
    rhs_index: IndexMap
    stores: tuple[Store, ...]
    row_prologue: bool = False
    windows: Var | None = None
    pairs: Var | None = None
    rounded: bool = False

    @property
    def rows(self) -> Var:
        """What the results are stored over, beside batch and n."""
        return self.m if self.windows is None else self.windows

    @property
    def columns(self) -> Var:
        """What they are stored over beside batch and rows."""
        return self.n if self.pairs is None else self.pairs

    @property
    def takes_several(self) -> bool:
        """Whether an element that is stored takes several of the product."""
        return self.windows is not None or self.pairs is not None

    @property
    def taps(self) -> int:
        """Rows of m that each stored one takes."""
        return 1 if self.windows is None else self.m.size // self.windows.size

    @property
    def elements(self) -> tuple[Store, ...]:
        """Stores of each element of the product."""
        return tuple(s for s in self.stores if s.over == (self.batch, self.rows, self.columns))

    @property
    def reduced(self) -> tuple[Store, ...]:
        """Stores of reduces that begin in the epilogue: each group of rows, or of columns, one
        element (epilogue_reduces.py)."""
        every = (self.batch, self.rows, self.columns)
        return tuple(s for s in self.stores if s.over != every and self.k not in s.over)


@dataclass(frozen=True)
class AttentionForm:
    """dot -> row-wise chain over n -> dot, scores never leave the block.

        scores[b,m,n] = sum_k lhs[b,m,k] * rhs[b,n,k]
        p[b,m,n]      = row chain of scores (mask, softmax...), reduces over exactly n
        out[b,m,v]    = sum_n p[b,m,n] * value[b,n,v]

    ``first``/``second`` are the ops; ``scores_side`` tells whether p is the second dot's lhs.
    ``p_index`` is where p is demanded, over (batch, m, n). Indices as in DotForm;
    ``stores`` are over (batch, m, v).
    """

    first: ops.DotGeneral
    second: ops.DotGeneral
    batch: Var
    m: Var
    n: Var
    k: Var
    v: Var
    first_swapped: bool
    """The rows m come from ``first.rhs`` (so lhs_index below belongs to first.rhs)."""
    lhs_index: IndexMap
    rhs_index: IndexMap
    probs: Value
    p_index: IndexMap
    value: Value
    value_index: IndexMap
    stores: tuple[Store, ...]


Form = LoopForm | RowForm | DotForm | AttentionForm


@dataclass(frozen=True, eq=False)
class Sig:
    """A schedule-independent group (MonoNN section 4.5): the unit generated, tuned and reused.

    Attributes:
      body: inputs = buffers read, outputs = buffers written.
      form: how the body is iterated; its Vars appear in the stores' indices.
      key: content hash of body and form; equal keys mean interchangeable code.
      name: short readable name, e.g. ``dot_add_gelu``.
    """

    body: Graph
    form: Form
    key: str
    name: str

    @property
    def kind(self) -> str:
        return {LoopForm: "loop", RowForm: "row", DotForm: "dot",
                AttentionForm: "attention"}[type(self.form)]


# ---- buffers -----------------------------------------------------------------------------------


class Place(enum.Enum):
    INPUT = "input"
    OUTPUT = "output"
    SCRATCH = "scratch"
    FLAGGED = "flagged"
    """Words of the module: value and number of the launch (codegen/device/flagged.cuh)."""
    STATE = "state"
    """Memory of an output, of which a loop makes the next value there."""
    PART = "part"
    """Bytes of another buffer: all of it is written in such parts, or as a whole."""
    SHARED = "shared"
    REGISTER = "register"


@dataclass(frozen=True)
class Buffer:
    """Where one value lives.

    Attributes:
      index: which program input or output, for those places (of a state, which output); of a part,
        the id of the whole.
      offset: byte offset in the scratch allocation, or among the flagged words (multiple of 256);
        of a part, in the whole.
      first, last: stages during which the contents must stay (inputs: from -1; outputs: to the
        number of stages).
      alias: for an OUTPUT that updates an input in place, that input's index.
      before: for what a trip of a loop leaves behind, the buffer that the trip found there.
    """

    id: int
    type: TensorType
    place: Place
    index: int = -1
    offset: int = -1
    first: int = -1
    last: int = -1
    alias: int | None = None
    before: int | None = None


# ---- order and synchronisation -----------------------------------------------------------------


class Scope(enum.Enum):
    THREAD = "thread"
    WARP = "warp"
    BLOCK = "block"
    CLUSTER = "cluster"
    GRID = "grid"


class Mechanism(enum.Enum):
    REGISTER = "register"
    SHUFFLE = "shuffle"
    SHARED = "shared"
    BARRIER = "barrier"
    COUNTER = "counter"
    FLAGGED = "flagged"
    """Value and epoch in one word."""
    LAUNCH = "launch"
    """A kernel boundary: stream order."""


@dataclass(frozen=True)
class SyncEdge:
    """``consumer`` may touch ``buffer`` only after ``producer`` is done with it.

    ``hazard``: "raw" (reads what was written), "war" or "waw" (the place is reused).
    """

    producer: int
    consumer: int
    buffer: int
    scope: Scope
    mechanism: Mechanism
    hazard: str = "raw"


@dataclass(frozen=True)
class Group:
    """An instance of a Sig. ``params`` / ``results``: buffer ids, parallel to the body's."""

    id: int
    sig: Sig
    params: tuple[int, ...]
    results: tuple[int, ...]


@dataclass(frozen=True)
class Stage:
    """Groups that may run side by side; a grid barrier separates stages, but at open borders."""

    groups: tuple[Group, ...]


@dataclass(frozen=True)
class Loop:
    """Stages ``start .. start + period * trips`` repeat the same Sigs ``trips`` times.

    The generator emits them once, inside a loop over a table of buffers.
    """

    start: int
    period: int
    trips: int


@dataclass(frozen=True)
class Repeat:
    """Stages from ``start`` on repeat, with a grid barrier in between, while the buffer ``going``
    is true."""

    start: int
    going: int


@dataclass(frozen=True, eq=False)
class Plan:
    """One kernel's worth of work.

    Attributes:
      graph: what is computed (simplified), inputs and outputs in buffer order.
      barriers_before_merging: grid barriers if every op group had its own stage.
      notes: decisions worth telling the user, each one line.
      open: borders without a grid barrier (`fusion.flags`), by the stage in front; what crosses no
        other border has flags.
      flagged_bytes: of all words of flagged buffers.
      repeat: whether the kernel is a loop.
    """

    graph: Graph
    buffers: tuple[Buffer, ...]
    stages: tuple[Stage, ...]
    edges: tuple[SyncEdge, ...]
    loops: tuple[Loop, ...]
    scratch_bytes: int
    barriers_before_merging: int
    notes: tuple[str, ...] = field(default=())
    open: frozenset[int] = frozenset()
    flagged_bytes: int = 0
    repeat: Repeat | None = None

    @cached_property
    def groups(self) -> tuple[Group, ...]:
        return tuple(g for s in self.stages for g in s.groups)

    @cached_property
    def sigs(self) -> tuple[Sig, ...]:
        """Distinct Sigs in order of first use."""
        return tuple({g.sig.key: g.sig for g in reversed(self.groups)}.values())[::-1]

    @property
    def barriers(self) -> int:
        """Grid barriers executed by one launch, of a loop's trips by one."""
        return max(len(self.stages) - 1, 0) - len(self.open) + (self.repeat is not None)

    @property
    def meets_first(self) -> bool:
        """Whether the blocks of a loop have to meet before each trip: no barrier in it keeps those
        that are ahead from writing whether it goes on where others still read it."""
        return self.repeat is not None and self.open.issuperset(
            range(self.repeat.start, self.buffers[self.repeat.going].first))

    @property
    def inputs(self) -> tuple[Buffer, ...]:
        return tuple(b for b in self.buffers if b.place is Place.INPUT)

    @property
    def outputs(self) -> tuple[Buffer, ...]:
        return tuple(sorted((b for b in self.buffers if b.place is Place.OUTPUT),
                            key=lambda b: b.index))


@dataclass(frozen=True)
class Device:
    """The facts of a GPU that planning needs; no planning decision names a device."""

    name: str = "generic"
    sm_count: int = 132
    shared_bytes: int = 227 * 1024
    read_bytes_per_us: float = 4.2e6
    matrix_flops_per_us: float = 7.9e8
    barrier_us: float = 0.92
    phase_us: float = 2.4
    """Fixed cost of one more stage: barrier, first L2 load, epilogue (measured)."""
    wgmma: bool = True
    """Warpgroups multiply (sm_90a): a kernel can keep a contraction's result in registers for the
    next one, and multiply f32 as it lies in shared memory, as tf32."""
