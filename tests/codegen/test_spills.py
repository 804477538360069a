"""What is tried where a kernel's registers do not suffice."""

from __future__ import annotations

import re
from importlib import import_module
from threading import Semaphore
from typing import Any

import jax
import jax.numpy as jnp
import pytest
from contraction_harness import build, check_exact, every_layout, in_order, plan_of
from jax import ShapeDtypeStruct, lax
from models import graph_of
from test_guarded_loads import ptx

from jaxmono._errors import CompileError
from jaxmono.codegen import retries
from jaxmono.codegen.dot_schedule import DotSchedule
from jaxmono.codegen.headers import bundle
from jaxmono.codegen.schedule import KernelSchedule
from jaxmono.codegen.target import cuda_target, interpret_target
from jaxmono.fusion import make_plan
from jaxmono.fusion.plan import Device

WIDE, LEAN = "#define JM_WIDE_TILES", "#define JM_LEAN"
IN_TURN = "#define JM_IN_TURN"
RICH = {"rich": "#define JM_PRODUCER_REGISTERS 104", "richer": "#define JM_PRODUCER_REGISTERS 120"}
module = import_module("jaxmono.codegen.generate")  # the package has its function by that name


@pytest.fixture(autouse=True)
def few_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    """One text after the other."""
    idle = Semaphore(0)
    monkeypatch.setattr(retries, "spare", lambda: idle)


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


@pytest.mark.parametrize(("n", "spills", "taken"), [
    (4096, {"wide": 0}, "wide"),  # of 128 x 256
    (4096, {"wide": 8, "": 0}, ""),
    (4096, {"wide": 8, "": 8, "wide lean": 8}, "wide"),
    (4096, {"wide": 8, "": 24, "wide lean": 0}, "wide lean"),
    (4096, {"wide": 24, "": 8, "lean": 0}, "lean"),
    (64, {"": 0}, ""),
    (64, {"": 300, "wide": 0}, "wide"),
    (64, {"": 300, "wide": 12, "wide lean": 16}, "wide"),
    (64, {"": 80, "wide": 156, "lean": 0}, "lean")])  # a training step of wav2vec2
def test_a_text_that_spills_is_tried_another_way(
        n: int, spills: dict[str, int], taken: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whether what can be found again is kept; then, of the better text, with producers that need
    few predicates. The best text is taken, of two alike the first."""
    given = list[str]()

    def fake(source: str, *_: Any, **kw: Any) -> tuple[bytes, str, dict[str, int]]:
        given.append(kind(source))
        return b"", source, {"spill_stores": spills[given[-1]]}

    monkeypatch.setattr(module, "compile_kernel", fake)
    made = module.generate(plan(4096, n), cuda_target("sm_90a"), Device(), "k")
    assert given == list(spills)
    assert kind(made.source) == taken and made.resources["spill_stores"] == spills[taken]


def test_of_texts_that_store_as_much_the_one_that_loads_less_goes_on(
        monkeypatch: pytest.MonkeyPatch) -> None:
    """As in the training step of wav2vec2, where the lean text is no better but `rich` on it is."""
    spills = {"wide": (8, 24), "": (8, 16), "lean": (0, 0)}

    def fake(source: str, *_: Any, **kw: Any) -> tuple[bytes, str, dict[str, int]]:
        stores, loads = spills[kind(source)]
        return b"", source, {"spill_stores": stores, "spill_loads": loads}

    monkeypatch.setattr(module, "compile_kernel", fake)
    made = module.generate(plan(4096, 4096), cuda_target("sm_90a"), Device(), "k")
    assert kind(made.source) == "lean" and made.resources["spill_stores"] == 0


def kind(source: str) -> str:
    lean = "opaque(block_id())" in source
    assert (LEAN in source) is lean
    return " ".join(["wide"] * (WIDE in source) + ["lean"] * lean
                    + [name for name, text in RICH.items() if text in source]
                    + ["in turn"] * (IN_TURN in source))


@pytest.mark.sampled(2)
@pytest.mark.parametrize("wide", [False, True])
def test_wide_texts_ask_for_the_grid_behind_every_task(wide: bool) -> None:
    """What the compiler reads in front of a stage's tasks ptxas spills (GoogLeNet b32: in eleven
    stages)."""
    p = plan(149, 768)
    kernel = module.emit(p, cuda_target("sm_90a"), Device(), "k",
                         KernelSchedule(sigs=module.default_schedule(
                             p, cuda_target("sm_90a"), Device()).sigs, wide_tiles=wide))
    lines = ptx(bundle(kernel.source)).splitlines()
    reads = [i for i, line in enumerate(lines) if "%nctaid.x" in line]
    again = [i for i in reads if any("bra" in line for line in lines[i:i + 8])]
    assert bool(again) is wide


@pytest.mark.sampled(2)
@pytest.mark.parametrize("lean", [False, True])
def test_lean_producers_test_four_pieces_between_branches(lean: bool) -> None:
    """Of 149 rows each piece has a test of its own, and ptxas has seven predicates: what is behind
    is in a word, for which a kernel with large functions has no register."""
    p = plan(149, 768)
    tile = DotSchedule("wgmma", 128, 160, 128, 2, (2, 1, 1))
    schedule = KernelSchedule(sigs={s.key: tile for s in p.sigs}, lean=lean)
    kernel = module.emit(p, cuda_target("sm_90a"), Device(), "k", schedule)
    most = largest = 0
    for line in ptx(bundle(kernel.source)).splitlines():
        # A piece without a test has a literal for its bytes.
        if re.search(r"cp\.async\.cg\.shared\.global .*, 16, %r\d+;", line):
            largest += 1
        elif re.match(r"\s*(@!?%p\d+ )?bra|\$L", line):
            largest = 0
        most = max(most, largest)
    assert most == 4 if lean else most > 7


@pytest.mark.sampled(2)
@pytest.mark.parametrize("tile", [
    DotSchedule("wgmma", 128, 96, 64, 2, (2, 1, 1)),  # 8 and 6 pieces
    DotSchedule("wgmma", 64, 80, 128, 2, (1, 1, 2))])  # 4 and 5, of two panels
def test_lean_producers_bring_the_same(tile: DotSchedule) -> None:
    """In all layouts, of sizes that no tile divides; several stages' tasks a block."""
    p = every_layout(136)
    schedule = KernelSchedule(sigs={s.key: tile for s in p.sigs}, lean=True)
    made = module.generate(p, interpret_target(), Device(), "k", schedule)
    assert LEAN in made.source and made.threads == 384
    check_exact(p, made, blocks=(1, 3))


@pytest.mark.sampled(2)
@pytest.mark.parametrize("lean", [False, True])
def test_lean_texts_ask_for_the_threads_number_where_it_is_used(lean: bool) -> None:
    p = plan(149, 768)
    schedule = KernelSchedule(sigs=module.default_schedule(p, cuda_target("sm_90a"), Device()).sigs,
                              lean=lean)
    reads = ptx(bundle(module.emit(p, cuda_target("sm_90a"), Device(), "k", schedule).source)
                ).count("%tid.x")
    assert (reads > 1) is lean


@pytest.mark.sampled(2)
@pytest.mark.parametrize("dtype", [jnp.bfloat16, jnp.float32])
def test_lean_texts_leave_sums_where_they_are(dtype: Any) -> None:
    """Of four chunks of columns."""
    def fn(x: Any, w: Any, b: Any) -> Any:
        return jax.nn.relu(lax.dot(x, w, preferred_element_type=jnp.float32) + b).astype(dtype)

    p = plan_of(fn, ShapeDtypeStruct((128, 64), jnp.bfloat16),
                ShapeDtypeStruct((64, 256), jnp.bfloat16), ShapeDtypeStruct((256,), jnp.float32))
    tile = DotSchedule("wgmma", 128, 256, 64, 2, (2, 1, 1))
    program = build(p, in_order(p, tile), threads=256, lean=True)
    assert LEAN in program.source
    check_exact(p, program, blocks=(1, 3))


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


@pytest.mark.parametrize(("faults", "taken"), [
    ({"wide": (1, 0), "": (0, 0)}, ""),  # BERT-base b16
    ({"wide": (1, 0), "": (1, 0), "wide in turn": (0, 0)}, "wide in turn"),
    ({"wide": (0, 480), "wide rich": (1, 0), "wide in turn": (0, 0)}, "wide in turn"),
    ({"wide": (0, 480), "wide rich": (1, 416), "wide in turn": (0, 500), "": (0, 240),
      "in turn": (0, 0)}, "in turn"),
    ({"wide": (0, 0)}, "wide"),
    ({"wide": (0, 68), "wide rich": (0, 0)}, "wide rich"),  # CLIP's images
    ({"wide": (0, 144), "wide rich": (0, 44), "rich": (0, 44), "wide rich in turn": (0, 44),
      "wide richer": (0, 0)}, "wide richer"),
    ({"wide": (0, 60), "wide rich": (1, 0), "": (0, 240), "wide in turn": (0, 40),
      "wide rich in turn": (0, 0)}, "wide rich in turn"),
    ({"wide": (1, 0), "": (1, 8), "wide in turn": (0, 136), "wide rich in turn": (0, 136),
      "wide richer in turn": (0, 140), "wide lean in turn": (0, 128),
      "wide lean rich in turn": (0, 64)}, "wide lean rich in turn"),
    ({"wide": (0, 8), "wide rich": (1, 0), "": (0, 24), "wide in turn": (0, 16),
      "wide richer": (1, 0), "wide lean": (0, 0)}, "wide lean")])
def test_what_is_tried_for_products_of_f32(
        faults: dict[str, tuple[int, int]], taken: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Producers with more registers, products in turn, and both."""
    made, given = tried(monkeypatch, faults)
    assert given == list(faults) and made == taken


@pytest.mark.parametrize("spilled", [32, 33])
def test_a_few_bytes_of_a_long_text_are_let_be(spilled: int,
                                               monkeypatch: pytest.MonkeyPatch) -> None:
    """But no product that waits, and nothing of a text that takes a moment."""
    monkeypatch.setattr(retries, "_MANY", 1)
    faults = {"wide": (0, 380), "wide rich": (1, 68), "wide in turn": (0, spilled),
              "in turn": (0, 36), "wide rich in turn": (0, 0)}
    made, given = tried(monkeypatch, faults)
    assert given == list(faults)[:3 if spilled == 32 else 5] and made == given[-1]
    monkeypatch.setattr(retries, "_MANY", 2)  # the text has one function
    assert tried(monkeypatch, faults)[0] == "wide rich in turn"


@pytest.mark.parametrize("left", [False, True])
@pytest.mark.parametrize(("faults", "taken"), [
    ({"wide": (0, 24), "": (0, 8), "lean": (0, 0), "wide lean": (0, 4)}, "lean"),
    ({"wide": (0, 8), "": (0, 24), "lean": (0, 0), "wide lean": (0, 4)}, "wide lean"),
    ({"wide": (0, 8), "": (0, 0), "lean": (0, 0), "wide lean": (0, 0)}, "")])
def test_with_cores_to_spare_the_same_text_is_taken(
        faults: dict[str, tuple[int, int]], taken: str, left: bool,
        monkeypatch: pytest.MonkeyPatch) -> None:
    """What one after the other would be taken, although all texts are compiled at once."""
    if left and taken:  # all are better in turn
        faults |= {f"{k} in turn".strip(): (0, n // 2) for k, (_, n) in faults.items()}
        taken = f"{taken} in turn"
    for spare in (0, 2, 9):
        assert tried(monkeypatch, faults, left=left, spare=spare)[0] == taken


def test_a_text_that_the_compiler_refuses_is_not_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    """There is one that it took."""
    made, _ = tried(monkeypatch, {"wide": (0, 8), "lean": (0, 0)}, left=False)
    assert made == "wide"


def tried(monkeypatch: pytest.MonkeyPatch, faults: dict[str, tuple[int, int]], *, left: bool = True,
          spare: int = 0, of: Any = None) -> tuple[str, list[str]]:
    """Which text `generate` takes, and those that were compiled: ``of`` a plan, or of a product
    whose weights are f32 (``left``) or not."""
    given = list[str]()

    def fake(source: str, *_: Any, **kw: Any) -> tuple[bytes, str, dict[str, int]]:
        what = kind(source)
        given.append(what)
        if what not in faults:
            raise CompileError(what)
        serialized, spilled = faults[what]
        return b"", source, {"spill_stores": spilled, "serialized": serialized}

    monkeypatch.setattr(module, "compile_kernel", fake)
    idle = Semaphore(spare)
    monkeypatch.setattr(retries, "spare", lambda: idle)
    given_plan = of if of is not None else f32_plan(4096) if left else plan(4096, 4096)
    source = module.generate(given_plan, cuda_target("sm_90a"), Device(), "k").source
    return kind(source), given


def f32_plan(m: int) -> Any:
    f32 = jnp.float32
    return make_plan(graph_of(jnp.matmul, ShapeDtypeStruct((m, 4096), f32),
                              ShapeDtypeStruct((4096, 4096), f32)), Device())


def test_what_is_not_needed_is_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    """The text with lean producers, once it is known that the other one does not spill."""
    began, ended = Semaphore(0), list[bool]()

    def fake(source: str, *_: Any, cancelled: Any, **kw: Any) -> tuple[bytes, str, dict[str, int]]:
        what = kind(source)
        if "lean" in what:
            began.release()
            ended.append(any(e.wait(30) for e in cancelled))
            raise CompileError("not needed any more")
        if not what:  # not before both have begun: of what has not, nobody would hear
            assert all(began.acquire(timeout=30) for _ in range(2))
        return b"", source, {"spill_stores": {"wide": 8, "": 0}[what]}

    monkeypatch.setattr(module, "compile_kernel", fake)
    idle = Semaphore(9)
    monkeypatch.setattr(retries, "spare", lambda: idle)
    made = module.generate(plan(4096, 4096), cuda_target("sm_90a"), Device(), "k")
    assert kind(made.source) == ""
    for _ in range(9):  # all are free again
        assert idle.acquire(timeout=30)
    assert ended == [True, True]


@pytest.mark.parametrize("sourced", [True, False])
def test_products_that_wait_are_tried_without_sources_in_the_ring(
        sourced: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Only where there are some, and where nothing else helped."""
    given = list[str]()

    def fake(source: str, *_: Any, **kw: Any) -> tuple[bytes, str, dict[str, int]]:
        given.append("ring" if "G::Source<" in source else "")
        return b"", source, {"spill_stores": 0, "serialized": int("G::Source<" in source)
                             if sourced else 1}

    def fn(x: Any, w: Any, y: Any) -> Any:
        return jax.nn.gelu(x @ w) * y if sourced else jax.nn.gelu(x @ w)

    t = jnp.bfloat16
    graph = graph_of(fn, ShapeDtypeStruct((4096, 512), t), ShapeDtypeStruct((512, 1280), t),
                     ShapeDtypeStruct((4096, 1280), t))
    monkeypatch.setattr(module, "compile_kernel", fake)
    made = module.generate(make_plan(graph, Device()), cuda_target("sm_90a"), Device(), "k")
    assert given == (["ring", "ring", ""] if sourced else ["", ""])
    assert "G::Source<" not in made.source


@pytest.mark.parametrize(("faults", "taken"), [
    ({"": (1, 0), "in turn": (0, 0)}, "in turn"),  # Stable Diffusion's UNet
    ({"": (1, 0), "in turn": (1, 0), "wide": (0, 0)}, "wide"),
    ({"": (0, 8), "wide": (0, 0)}, "wide")])
def test_what_is_tried_for_images(faults: dict[str, tuple[int, int]], taken: str,
                                  monkeypatch: pytest.MonkeyPatch) -> None:
    """Fewer products in flight, where they wait for each other."""
    def fn(x: Any, w: Any) -> Any:
        return lax.conv_general_dilated(x, w, (1, 1), "SAME",
                                        dimension_numbers=("NHWC", "HWIO", "NHWC"))

    t = jnp.bfloat16
    image = make_plan(graph_of(fn, ShapeDtypeStruct((32, 56, 56, 64), t),
                               ShapeDtypeStruct((3, 3, 64, 64), t)), Device())
    assert tried(monkeypatch, faults, of=image) == (taken, list(faults))
