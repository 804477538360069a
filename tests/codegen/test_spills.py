"""What is tried where a kernel's registers do not suffice."""

from __future__ import annotations

from importlib import import_module
from typing import Any

import jax.numpy as jnp
import pytest
from jax import ShapeDtypeStruct
from models import graph_of

from jaxmono.codegen.target import cuda_target
from jaxmono.fusion import make_plan
from jaxmono.fusion.plan import Device

WIDE = "#define JM_WIDE_TILES"
module = import_module("jaxmono.codegen.generate")  # the package has its function by that name


@pytest.mark.parametrize(("faults", "taken"), [
    ({True: (1, 0), False: (0, 0)}, False), ({True: (1, 0), False: (0, 24)}, False),
    ({True: (0, 24), False: (1, 0)}, True), ({True: (1, 0), False: (1, 0)}, True)])
def test_products_that_wait_for_each_other_are_worse_than_spills(
        faults: dict[bool, tuple[int, int]], taken: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    def fake(source: str, *_: Any, **kw: Any) -> tuple[bytes, str, dict[str, int]]:
        serialized, spilled = faults[WIDE in source]
        return b"", source, {"spill_stores": spilled, "serialized": serialized}

    monkeypatch.setattr(module, "compile_kernel", fake)
    made = module.generate(plan(4096, 4096), cuda_target("sm_90a"), Device(), "k")
    assert (WIDE in made.source) == taken
    assert made.resources["serialized"] == faults[taken][0]


@pytest.mark.parametrize(("n", "spills", "tried", "taken"), [
    (4096, {True: 0}, [True], True),  # of 128 x 256
    (4096, {True: 8, False: 0}, [True, False], False),
    (4096, {True: 8, False: 8}, [True, False], True),
    (4096, {True: 8, False: 24}, [True, False], True),
    (64, {False: 0}, [False], False),
    (64, {False: 300, True: 12}, [False, True], True)])
def test_a_text_that_spills_is_tried_the_other_way(
        n: int, spills: dict[bool, int], tried: list[bool], taken: bool,
        monkeypatch: pytest.MonkeyPatch) -> None:
    """Whether what can be found again is kept; the better text is taken, of two alike the first."""
    given = list[bool]()

    def fake(source: str, *_: Any, **kw: Any) -> tuple[bytes, str, dict[str, int]]:
        given.append(WIDE in source)
        return b"", source, {"spill_stores": spills[WIDE in source]}

    monkeypatch.setattr(module, "compile_kernel", fake)
    made = module.generate(plan(4096, n), cuda_target("sm_90a"), Device(), "k")
    assert given == tried
    assert (WIDE in made.source) == taken and made.resources["spill_stores"] == spills[taken]


def test_a_kernel_without_producers_has_one_text(monkeypatch: pytest.MonkeyPatch) -> None:
    given = list[str]()

    def fake(source: str, *_: Any, **kw: Any) -> tuple[bytes, str, dict[str, int]]:
        given.append(source)
        return b"", source, {"spill_stores": 16}

    monkeypatch.setattr(module, "compile_kernel", fake)
    module.generate(plan(1, 4096), cuda_target("sm_90a"), Device(), "k")
    assert given and not any(WIDE in source for source in given)
    assert len(set(given)) == len(given)


def plan(m: int, n: int) -> Any:
    a, b = (ShapeDtypeStruct(shape, jnp.bfloat16) for shape in ((m, 1024), (1024, n)))
    return make_plan(graph_of(lambda a, b: a @ b, a, b), Device())
