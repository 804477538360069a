"""The fingerprint: equal for equal programs everywhere, different for every real difference."""

from __future__ import annotations

import dataclasses
import os
import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hlo_programs import X, lower, programs
from thinned import thinned

from jaxmono.hlo.fingerprint import fingerprint
from jaxmono.hlo.importer import import_module
from jaxmono.hlo.ir import Graph
from jaxmono.hlo.parse import parse
from jaxmono.hlo.print import to_text

PROGRAMS = programs()

SAMPLE = """\
graph main(%0: f32[4,4], %1: f32[4,4]) {
  %2 = f32[4,4] subtract(%0, %1)
  %3 = f32[] constant() {value=f32[]<0.0>}
  %4 = f32[4] reduce(%2; %3) {dimensions=[1]}
    body(%5: f32[], %6: f32[]) {
      %7 = f32[] add(%5, %6)
      return %7
    }
  %8 = f32[4,4] dot_general(%2, %1) {lhs_batch=[], rhs_batch=[], lhs_contract=[1], rhs_contract=[0]}
  %9 = f32[4] constant() {value=f32[4]<1.0, 2.0, 3.0, nan>}
  %10 = f32[4] add(%4, %9)
  return %8, %10
}
"""


def test_known_value():
    """Also the value in every other process, Python, machine and JAX version."""
    assert fingerprint(parse(SAMPLE)) == KNOWN


KNOWN = "1145cfc45e7ac672218b0188d8f999bb3826f581d4e992367b1424d4d5c9235d"


@pytest.mark.parametrize(("old", "new"), [
    ("subtract(%0, %1)", "subtract(%1, %0)"),
    ("subtract(%0, %1)", "add(%0, %1)"),
    ("value=f32[]<0.0>", "value=f32[]<-0.0>"),
    ("<1.0, 2.0, 3.0, nan>", "<1.0, 2.0, 3.0, 0x7FC00001>"),
    ("<1.0, 2.0, 3.0, nan>", "<1.0, 2.0, 3.0000002, nan>"),
    ("dimensions=[1]", "dimensions=[0]"),
    ("add(%5, %6)", "maximum(%5, %6)"),
    ("add(%5, %6)", "add(%5, %5)"),
    ("rhs_contract=[0]}", "rhs_contract=[1]}"),
    ("rhs_contract=[0]}", "rhs_contract=[0], precision=[HIGHEST, DEFAULT]}"),
    ("rhs_contract=[0]}", "rhs_contract=[0], algorithm=x}"),
    ("return %8, %10", "return %10, %8"),
    ("return %8, %10", "return %8"),
    ("return %8, %10", "return %8, %10, %10"),
    ("%1: f32[4,4]) {", "%1: f32[4,4], %20: f32[]) {"),
    ("f32[4,4]", "bf16[4,4]"),
    ("%8 = f32[4,4]", "%8 = bf16[4,4]"),
    ("add(%4, %9)", "add(%4, %4)"),
])
def test_differs_with_every_real_change(old, new):
    assert old in SAMPLE
    assert fingerprint(parse(SAMPLE.replace(old, new))) != fingerprint(parse(SAMPLE))


def test_names_hints_and_locations_do_not_count():
    graph = parse(SAMPLE.replace("graph main", "graph other")
                  .replace("subtract(%0, %1)", "subtract(%0, %1)  // a.py:3 (sub)"))
    for v in graph.inputs:
        v.hint = "weights"
    assert fingerprint(graph) == fingerprint(parse(SAMPLE))


def test_listing_order_and_dead_code_do_not_count():
    graph = parse(SAMPLE)
    a, b, c, d, e, f = graph.ops
    assert fingerprint(dataclasses.replace(graph, ops=(e, b, a, d, c, f))) == fingerprint(graph)
    dead = parse(SAMPLE.replace("  return %8, %10", "  %11 = f32[4] negate(%4)\n  return %8, %10"))
    assert fingerprint(dead) == fingerprint(graph)


def test_side_effects_count_and_so_does_their_order():
    def graph(*targets: str) -> Graph:
        calls = "".join(f"  custom_call(%0) {{target={t}, has_side_effect=true}}\n"
                        for t in targets)
        return parse(f"graph g(%0: f32[]) {{\n{calls}  return %0\n}}\n")

    assert len({fingerprint(graph(*t)) for t in ("", "a", "b", "ab", "ba")}) == 5


def test_an_array_of_equal_elements_is_the_splat():
    def graph(value: np.ndarray) -> Graph:
        g = parse("graph g() {\n  %0 = f32[3] constant() {value=f32[3]<1.0, 2.0, 3.0>}\n"
                  "  return %0\n}\n")
        return dataclasses.replace(g, ops=(dataclasses.replace(g.ops[0], value=value),))

    splat = fingerprint(graph(np.broadcast_to(np.float32(2), (3,))))
    assert fingerprint(graph(np.full(3, 2, np.float32))) == splat
    assert fingerprint(graph(np.array([2, 2, 3], np.float32))) != splat
    strided = np.array([1, 9, 2, 9, 3, 9], np.float32)[::2]
    plain = np.array([1, 2, 3], np.float32)
    assert fingerprint(graph(strided)) == fingerprint(graph(plain))


def test_captured_values_count_by_position():
    text = ("graph g(%0: f32[], %1: f32[], %2: s32[]) {\n  %3 = f32[] case(%2)\n"
            "    branches() {\n      return %0\n    }\n    branches() {\n      return %1\n    }\n"
            "  return %3\n}\n")
    swapped = text.replace("return %1", "return %0")
    assert fingerprint(parse(text)) != fingerprint(parse(swapped))


@pytest.mark.sampled(2)
@pytest.mark.parametrize("name", thinned(["block_bf16", "scan", "index", "random", "constants"], 4))
def test_tracing_again_gives_the_same(name):
    fun, args = PROGRAMS[name]
    first = fingerprint(import_module(lower(fun, *args)).graph)
    jax.clear_caches()
    fun, args = programs()[name]
    assert fingerprint(import_module(lower(fun, *args)).graph) == first


def test_all_programs_differ():
    prints = {fingerprint(import_module(lower(f, *a)).graph) for f, a in PROGRAMS.values()}
    assert len(prints) == len(PROGRAMS)


def test_precision_and_constants_of_jax_programs_count():
    def of(fun):
        return fingerprint(import_module(lower(fun, X)).graph)

    assert of(lambda x: jnp.dot(x, x.T)) != of(lambda x: jnp.dot(x, x.T, precision="highest"))
    assert of(lambda x: x + X) != of(lambda x: x + (X + np.float32(1e-7)))
    assert of(lambda x: x + X) == of(lambda y: y + X.copy())


def test_another_process_agrees(tmp_path):
    """Other hash seed, no JAX, only the text."""
    fun, args = PROGRAMS["block_bf16"]
    graph = import_module(lower(fun, *args)).graph
    (tmp_path / "graph.txt").write_text(to_text(graph))
    code = ("import sys; from jaxmono.hlo.parse import parse; "
            "from jaxmono.hlo.fingerprint import fingerprint; "
            "sys.stdout.write(fingerprint(parse(open(sys.argv[1]).read())))")
    out = subprocess.run([sys.executable, "-c", code, str(tmp_path / "graph.txt")], check=True,
                         capture_output=True, text=True,
                         env={**os.environ, "PYTHONHASHSEED": "7"})
    assert out.stdout == fingerprint(graph)
