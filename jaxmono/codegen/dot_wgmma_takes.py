"""What the families on Hopper's warpgroups take (device/gemm_wgmma.cuh, gemm_swapped.cuh,
gemm_tf32.cuh, gemm_bytes.cuh, gemm_bf16x6.cuh), with the reasons why not."""

from __future__ import annotations

from jaxmono.codegen.dot import DotCode
from jaxmono.codegen.dot_wgmma_shared import comes
from jaxmono.codegen.gathered import parts_of
from jaxmono.codegen.names import is_f8
from jaxmono.codegen.operand import (
    PIECE_BYTES,
    is_looked_up,
    is_strided,
    is_unaligned,
    paired_halves,
    shifted,
)
from jaxmono.fusion.indexing import stride
from jaxmono.fusion.plan import DotForm
from jaxmono.fusion.support import asks_for_nine
from jaxmono.hlo.precision import algorithm_of
from jaxmono.hlo.types import FOUR_BITS, DType


def takes(form: DotForm, code: DotCode, element: DType | None) -> str | None:
    """Why a contraction cannot run in this family; None if it can."""
    if element is not None and is_f8(element):
        return _takes_f8(form, code)
    if element not in (DType.BF16, DType.F16, DType.F32):
        return "wgmma multiplies floats of 8 and 16 bits, and tf32"
    if not comes(code.rhs) or not (comes(code.lhs) or form.row_prologue):
        return "an operand is computed, not copied"
    if form.pairs is not None and paired_halves(code.rhs) is None:
        return "columns are paired in pieces of 16 bytes"
    return None


def takes_swapped(form: DotForm, code: DotCode, element: DType | None) -> str | None:
    """Why a contraction cannot run with its operands swapped; None if it can."""
    if form.row_prologue:
        return "the rows are normalised while they are loaded"
    if form.taps > 1:
        return "the rows are read in windows"
    if element not in (DType.BF16, DType.F16):
        return "swapped operands have 16 bits"
    if not comes(code.rhs) or not (comes(code.lhs) or code.lhs.k_major):
        return "weights are computed, or rows whose k are no neighbours"
    return None


def takes_tf32(form: DotForm, code: DotCode, element: DType | None) -> str | None:
    """Why a contraction cannot have its rows rounded in shared memory, by the tensor memory
    accelerator or because they lie so in memory; None if it can."""
    if element is not DType.F32:
        return "tf32 are rounded f32"
    if code.rhs.param is None:
        return "weights are computed"
    if form.row_prologue or form.batch.size > 1:
        return "rows are computed, or a batch's own"
    if is_gathered(code):
        return None if form.rounded else "gathered rows are not rounded in memory"
    if code.lhs.width < PIECE_BYTES:
        return "rows are no multiples of the accelerator's 16 bytes"
    if form.taps > 1:
        return "rows that the accelerator brings are stored in windows"
    if is_looked_up(code.lhs):
        return "an earlier stage tells where rows are, not the host"
    if not (is_strided(code.lhs) and code.lhs.k_major):
        return "rows do not lie at constant distances, their k next to each other"
    assert code.lhs.offset is not None
    if (stride(code.lhs.offset, form.m) or 0) < form.k.size and form.m.size > 1:
        return "rows lie backwards in memory, or over each other"
    return None


def takes_bytes(form: DotForm, code: DotCode) -> str | None:
    """Why a contraction cannot have weights that pass through registers: bytes, f32 that are
    rounded, or 16 bits in rows that begin anywhere; None if it can. ``code``: of that family."""
    stored = code.rhs.stored
    if code.element is None or code.rhs_element is None or (shifted(code.rhs) is None and (
            code.rhs.param is None or (code.rhs_element.bits > 8 and stored is not DType.F32))):
        return "weights are not stored as bytes, or as f32, 16 bytes of which are neighbours, " \
               "nor as 16 bits of which all k are shifted against them"
    if code.rhs_element in FOUR_BITS and not is_strided(code.rhs):
        return "rows of weights of 4 bits do not lie at constant distances"
    if code.element not in (DType.BF16, DType.F16) and stored is not None:
        return "stored weights are converted to 16 bits"
    if form.taps > 1:
        return "rows are read in windows"
    if not code.lhs.k_major or is_unaligned(code.lhs):
        return "the k of rows are no neighbours, or begin anywhere"
    return _imprecise(form) if is_f8(code.rhs_element) and code.rhs.stored is None else None


def takes_bf16x6(form: DotForm, code: DotCode) -> str | None:
    """Why an exact product of f32 cannot be six of bf16 parts; None if it can. ``code``: of that
    family."""
    if code.element is not DType.F32:
        return "parts are those of f32"
    if code.rhs.param is None:
        return "weights are computed"
    if form.row_prologue or not comes(code.lhs):
        return "rows are computed"
    if asks_for_nine(form.dot.algorithm):
        return "nine products are asked for"
    return None


def is_gathered(code: DotCode) -> bool:
    """Whether the rows of a contraction are a `Gathered` (codegen/gathered.py)."""
    return not is_strided(code.lhs) and parts_of(code.lhs) is not None


def _takes_f8(form: DotForm, code: DotCode) -> str | None:
    if any(map(is_looked_up, (code.lhs, code.rhs))):
        return "an earlier stage tells where bytes are"
    if not all(is_strided(x) and x.k_major for x in (code.lhs, code.rhs)):
        return "wgmma reads bytes whose k are neighbours"
    return _imprecise(form)


def _imprecise(form: DotForm) -> str | None:
    d = form.dot
    asked = algorithm_of(d.algorithm)
    if d.precision != ("DEFAULT", "DEFAULT") or (asked is not None and not asked.imprecise):
        return "wgmma adds products of 8-bit floats with 14 bits"
    return None
