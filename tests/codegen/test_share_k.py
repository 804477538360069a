"""Shares of k that a norm adds up, as a kernel in the emulator."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from contraction_harness import build, in_order, plan_of, small_integers, wgmma
from harness import run_program

from jaxmono.fusion.plan import Device
from jaxmono.hlo.interp import evaluate


def test_shares_on_warpgroups_and_their_sum() -> None:
    """Rows that no tile divides, a residual that is read again, all blocks' orders: the sums of
    integers are exact, and rounded once."""
    def fn(a: Any, w: Any, bias: Any, x: Any) -> Any:
        z = x + (a @ w + bias)
        y = z.astype(jnp.float32)
        return z, (y * jax.lax.rsqrt(jnp.mean(y * y, -1, keepdims=True))).astype(z.dtype)

    m, k, n = 70, 768, 256
    plan = plan_of(fn, *(jax.ShapeDtypeStruct(s, jnp.bfloat16) for s in (
        (m, k), (k, n), (n,), (m, n))), device=Device())
    assert [[g.sig.kind for g in s.groups] for s in plan.stages] == [["dot"], ["row"]]
    inputs = small_integers(plan.graph)
    wanted = evaluate(plan.graph, inputs)
    for lines in (1, 3):
        sigs = in_order(plan, wgmma(64, 96, 2, (1, 1, 2), lines=lines))
        program = build(plan, sigs, threads=256)
        assert program.barriers == 1 and "finish_fragments<" in program.source
        for seed in (0, 1, 2):
            z, y = run_program(program, inputs, seed=seed)
            assert np.array_equal(z, wanted[0])
            np.testing.assert_allclose(y.astype(np.float32), wanted[1].astype(np.float32),
                                       rtol=2 ** -7, atol=2 ** -9)
