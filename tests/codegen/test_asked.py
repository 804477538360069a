"""Values with flags that a normalisation waits for together (asked.py)."""

from __future__ import annotations

import re
from typing import Any

import jax
import jax.numpy as jnp
import pytest
from contraction_harness import build, check_near, dot_sigs, plan_of, smooth
from lost_waits import Case, failure

from jaxmono.codegen import Program
from jaxmono.codegen.dot_gemv_shape import GRANULE
from jaxmono.codegen.dot_schedule import DotSchedule
from jaxmono.codegen.writer import Writer
from jaxmono.fusion.plan import Plan

Spec = jax.ShapeDtypeStruct
BF16, F32 = jnp.bfloat16, jnp.float32


def dot(x: Any, w: Any) -> Any:
    return jnp.einsum("mk,kn->mn", x, w, preferred_element_type=F32, precision="highest")


def normed(kind: str) -> Plan:
    """A norm of two values that the stage before has made, which is a residual, too: of their sum,
    or of one behind the other."""
    def fn(x: Any, first: Any, u: Any, v: Any, scale: Any, bias: Any, w: Any, last: Any) -> Any:
        x = jnp.tanh(dot(x, first)).astype(BF16)
        a = jnp.tanh(dot(x, u)).astype(BF16).astype(F32)
        b = jnp.tanh(dot(x, v)).astype(BF16).astype(F32)
        y = a + b if kind == "sum" else jnp.concatenate([a, b], axis=-1)
        z = y * jax.lax.rsqrt(jnp.square(y).mean(-1, keepdims=True) + 1e-5)
        y += dot((z * scale + bias).astype(BF16), w)
        return dot(y.astype(BF16), last)

    n = 64 if kind == "sum" else 128
    return plan_of(fn, Spec((1, 32), BF16), Spec((32, 64), BF16), Spec((64, 64), BF16),
                   Spec((64, 64), BF16), Spec((n,), F32), Spec((n,), F32), Spec((n, n), BF16),
                   Spec((n, 48), BF16))


def made(plan: Plan) -> tuple[Program, dict[str, DotSchedule]]:
    sigs = {s.key: DotSchedule("gemv", 1, 16, GRANULE, 3, (1, 4, 1)) for s in dot_sigs(plan)}
    return build(plan, sigs), sigs


def inputs(plan: Plan) -> list[Any]:
    return [a if a.shape[0] == 1 else (a * 0.25).astype(a.dtype) for a in smooth(plan.graph)]


@pytest.mark.sampled(2)
@pytest.mark.parametrize(("kind", "waits"), [("sum", [2]), ("behind", [1, 1])])
def test_a_norm_waits_for_all_that_a_block_of_statements_reads(kind: str, waits: list[int]) -> None:
    plan = normed(kind)
    program, _ = made(plan)
    kernel = program.source[program.source.index("struct Params"):]
    found = re.findall(r"^ *wait_for_all\((.*)\);$", kernel, re.M)
    assert [x.count("asked") for x in found] == waits
    if kind == "sum":  # what is read-only is not asked for behind them
        assert kernel.index("early1 = load_ro<") < kernel.index("wait_for_all(")
    check_near(plan, program, inputs(plan), 2e-2, seeds=(0, 1, 2), blocks=(1, 3, 5))


@pytest.mark.sampled(2)
@pytest.mark.parametrize("lost", ["all of it", "the second"])
def test_all_are_waited_for(lost: str, monkeypatch: pytest.MonkeyPatch) -> None:
    plan = normed("sum")
    case = Case(plan, made(plan)[1], inputs(plan), 2e-2, blocks=(3, 5))

    def change(text: str) -> str:
        pattern = r"(?<=\n)( *wait_for_all\(asked\d+, [^,]*)(, .*)?\);"
        found = re.sub(pattern, "" if lost == "all of it" else r"\1);", text)
        assert found != text
        return found

    assert failure(case, monkeypatch, lambda s: s) == ""
    assert failure(case, monkeypatch, change) != ""


def test_early_lines_are_at_the_begin_of_their_block() -> None:
    w = Writer()
    w.line("one;")
    with w.block("if (x)"):
        w.line("two;")
        with w.block("if (y)"):
            w.line("three;")
            w.early("a;")
            w.early("b;")
        w.early("c;")
    w.early("d;")
    assert w.lines == ["d;", "one;", "if (x) {", "  c;", "  two;", "  if (y) {", "    a;", "    b;",
                       "    three;", "  }", "}"]
