"""Kernels of scatters whose updates are sorted by line, in the emulator."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from contraction_harness import plan_of

import jaxmono
from jaxmono.codegen.generate import default_schedule
from jaxmono.codegen.open_borders import open_borders
from jaxmono.codegen.target import interpret_target
from jaxmono.fusion.plan import Device, Place, RowForm


def added(x: Any, i: Any, u: Any) -> Any:
    return jnp.tanh(x).at[i].add(u)


def program(lines: int, updates: int, width: int, dtype: Any) -> tuple[Any, ...]:
    """A third of the updates is for one line, some for none; some are not finite."""
    rng = np.random.default_rng(lines)
    x, u = (rng.normal(size=(n, width)) for n in (lines, updates))
    i = rng.integers(-1, lines + 1, updates).astype(np.int32)
    i[rng.permutation(updates)[:updates // 3]] = lines // 2
    u[5, 7], u[6, 8], u[9, 10], u[11, 10] = np.inf, -np.inf, np.nan, np.inf
    return jnp.asarray(x, dtype), i, jnp.asarray(u, dtype)


@pytest.mark.sampled(5)
@pytest.mark.parametrize("dtype", [jnp.bfloat16, jnp.float16])
@pytest.mark.parametrize(("lines", "updates", "width"), [(600, 300, 256), (3000, 40, 258)])
def test_as_near_to_f32_as_sums_that_are_rounded_once(lines: int, updates: int, width: int,
                                                      dtype: Any) -> None:
    args = program(lines, updates, width, dtype)
    function = jaxmono.jit(added, interpret=True)
    report = function.lower(*args).explain()
    assert report.kernels == 1 and not report.refused
    got = np.asarray(function(*args).astype(jnp.float32))
    x, i, u = args
    want = jnp.tanh(x).astype(jnp.float32).at[i].add(u.astype(jnp.float32))
    want = np.asarray(want.astype(dtype).astype(jnp.float32))
    for special in (np.isnan, np.isposinf, np.isneginf):
        np.testing.assert_array_equal(special(got), special(want))
    finite = np.isfinite(want)
    one = float(jnp.finfo(dtype).eps)
    np.testing.assert_allclose(got[finite], want[finite], rtol=one, atol=one)  # of the tanh


def test_values_that_are_read_again_and_again_have_no_flags() -> None:
    """2048 keys that are compared each with each: each read of a flagged one goes to the L2."""
    shapes = [jax.ShapeDtypeStruct(s, t) for s, t in (
        ((30522, 768), jnp.bfloat16), ((2048,), jnp.int32), ((2048, 768), jnp.bfloat16))]
    plan = plan_of(added, *shapes, device=Device())
    opened = open_borders(plan, default_schedule(plan, interpret_target(), Device()))
    compared = [g for g in opened.groups if isinstance(g.sig.form, RowForm) and np.prod(
        [v.size for v in (*g.sig.form.rows, *g.sig.form.cols)]) >= 2048 * 2048]
    assert len(compared) >= 2
    for g in compared:
        assert not any(opened.buffers[b].place is Place.FLAGGED for b in g.params)
