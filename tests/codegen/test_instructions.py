"""Elements of a thread by how much text each of them is."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import pytest
from contraction_harness import plan_of

from jaxmono.codegen.instructions import instructions
from jaxmono.codegen.loop_schedule import LoopSchedule, choose_loop
from jaxmono.fusion.plan import Device

Spec = jax.ShapeDtypeStruct


def six(f: Callable[[Any], Any]) -> Callable[[Any], Any]:
    return lambda x: sum((f(x * i) for i in range(2, 7)), f(x))


@pytest.mark.parametrize(("f", "dtype", "schedule"), [
    (jnp.exp, jnp.float32, LoopSchedule(4, 4)),
    (jnp.arcsinh, jnp.float32, LoopSchedule(4, 2)),
    (jnp.sin, jnp.float32, LoopSchedule(4, 2)), (jnp.tan, jnp.float32, LoopSchedule(4, 1)),
    (jnp.tan, jnp.bfloat16, LoopSchedule(4, 1)),
    (jnp.exp, jnp.bfloat16, LoopSchedule(8, 4)),
    (lambda x: x // 7, jnp.int32, LoopSchedule(4, 4)),
    (lambda x: x // (x + 1000), jnp.int32, LoopSchedule(4, 1))])
def test_much_text_has_few_elements(f: Callable[[Any], Any], dtype: Any,
                                    schedule: LoopSchedule) -> None:
    plan = plan_of(six(f), Spec((1 << 23,), dtype), device=Device())
    (sig,) = plan.sigs
    assert choose_loop(sig, Device(), 256) == schedule, instructions(sig.body)
