"""Weights of 16 bits in rows that begin anywhere in memory, wgmma's left operand in registers
(device/unaligned_weights.cuh)."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from contraction_harness import build, dot_sigs, in_order, plan_of
from contraction_harness import run_wgmma as run
from harness import run_program
from test_dot_bytes import SHAPES, tile

from jaxmono.codegen.dot import DotCode
from jaxmono.codegen.dot_wgmma_shared import shifts
from jaxmono.codegen.dot_wgmma_takes import takes_bytes
from jaxmono.fusion.plan import DotForm, Plan

Spec = jax.ShapeDtypeStruct
BF16, F16, F32 = jnp.bfloat16, jnp.float16, jnp.float32


def product(m: int, n: int, k: int, dtype: Any = BF16, *, before: int = 0) -> Plan:
    """``before``: elements in front of the weights, of their buffer."""
    def fn(x: Any, w: Any, bias: Any) -> Any:
        w = w.reshape(-1)[before:].reshape(k, n)
        return jnp.dot(x, w, preferred_element_type=F32) + bias

    weights = (k * n + before,) if before else (k, n)
    return plan_of(fn, Spec((m, k), dtype), Spec(weights, dtype), Spec((n,), F32))


def shift_of(plan: Plan) -> tuple[int, int] | None:
    (sig,) = dot_sigs(plan)
    return shifts(DotCode.of(sig, tile(64, 64, 3, (2, 1, 1), bits=16)))


@pytest.mark.sampled(7)
@pytest.mark.parametrize("n", [130, 131, 132, 133, 134, 135, 137])
@pytest.mark.parametrize("before", [0, 1, 2, 7])
@pytest.mark.parametrize("dtype", [BF16, F16])
def test_all_shifts(n: int, before: int, dtype: Any) -> None:
    plan = product(70, n, 136, dtype, before=before)
    assert shift_of(plan) == (n % 8, before)
    run(plan, tile(*SHAPES[1], bits=16))


@pytest.mark.sampled(5)
@pytest.mark.parametrize(("shape", "lines"), [
    *((s, 1) for s in SHAPES), *((s, 2) for s in SHAPES if s[0] <= 96)])
def test_all_tiles(shape: Any, lines: int) -> None:
    run(product(140, 203, 208), tile(*shape, bits=16, lines=lines), seeds=(0, 1))


@pytest.mark.parametrize("split", [2, 4])
def test_blocks_share_k(split: int) -> None:
    run(product(16, 131, 512), tile(16, 128, 3, (1, 2, 1), bits=16, split=split), seeds=(0, 1))


def test_a_batch() -> None:
    """Each has weights a multiple of 8 elements behind the one before."""
    plan = plan_of(lambda x, w: jnp.einsum("bmk,bkn->bmn", x, w, preferred_element_type=F32),
                   Spec((2, 70, 72), BF16), Spec((2, 72, 131), BF16))
    assert shift_of(plan) == (3, 0)
    run(plan, tile(*SHAPES[1], bits=16))


@pytest.mark.parametrize(("n", "k"), [(131, 71), (133, 67)])
def test_batches_that_are_shifted_differently_are_refused(n: int, k: int) -> None:
    plan = plan_of(lambda x, w: jnp.einsum("bmk,bkn->bmn", x, w, preferred_element_type=F32),
                   Spec((2, 70, k), BF16), Spec((2, k, n), BF16))
    assert shift_of(plan) is None


def test_rows_in_reverse_order_are_refused() -> None:
    """The first row of a tile would be its last one in memory."""
    plan = plan_of(lambda x, w: x @ w[::-1], Spec((70, 128), BF16), Spec((128, 131), BF16))
    assert shift_of(plan) is None


def test_rows_of_whole_pieces_are_refused() -> None:
    """Other families read these as they are."""
    (sig,) = dot_sigs(product(70, 136, 128))
    assert isinstance(sig.form, DotForm)
    code = DotCode.of(sig, tile(64, 64, 3, (2, 1, 1), bits=16))
    assert shifts(code) is None
    assert "16 bits" in str(takes_bytes(sig.form, code))


def test_what_lies_behind_a_row_does_not_count() -> None:
    """The last columns of a tile, and its last k, are others' numbers or nobody's: infinite here.
    Of what a row of x picks nothing else is seen."""
    m, n, k = 64, 131, 72
    plan = product(m, n, k)
    program = build(plan, in_order(plan, tile(*SHAPES[0], bits=16)), threads=256)
    x = np.eye(m, k, dtype=np.float32).astype(BF16)
    w = np.arange(k * n, dtype=np.float32).reshape(k, n) % 251
    w[m:] = np.inf
    x[:, m:] = 0
    w[m:, :] = 0
    w[:, -1] = np.inf
    bias = np.zeros(n, np.float32)
    with np.errstate(invalid="ignore"):
        (found,) = run_program(program, [x, w.astype(BF16), bias], seed=1)
    np.testing.assert_array_equal(found[:, :-1], w[:m, :-1])


def between_fences() -> None:
    """Weights that end where a page does: who reads behind it is killed."""
    import harness
    from fenced import fenced

    n, k = 131, 128
    assert k * n * 2 % 256 == 0
    for front in (True, False):
        harness.buffer = lambda nbytes, front=front: fenced(nbytes, front=front)
        run(product(70, n, k), tile(*SHAPES[0], bits=16), seeds=(0,))


def test_nothing_in_front_of_the_buffer_is_read_nor_behind() -> None:
    done = subprocess.run(
        [sys.executable, "-c", "import test_unaligned_weights as t; t.between_fences()"],
        cwd=Path(__file__).parent, capture_output=True, text=True, timeout=300, check=False,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))})
    assert done.returncode == 0, done.stderr[-2000:] or f"ended by signal {-done.returncode}"
