"""What is computed of a concatenation: its parts are read where an element lies, and only there."""

from __future__ import annotations

import ctypes
import mmap
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import harness
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from harness import DEVICE, check, compile_graph, run_program
from harness_graphs import data
from jax import lax
from models import graph_of

from jaxmono.codegen import Program
from jaxmono.codegen.generate import emit
from jaxmono.codegen.target import cuda_target
from jaxmono.fusion import make_plan
from jaxmono.fusion.plan import Device, LoopForm, Plan

F32, BF16, S32 = jnp.float32, jnp.bfloat16, jnp.int32
X = Any


def largest(*xs: X, axis: int = -1) -> X:
    """A pool behind joined branches, as in Inception."""
    y = jnp.concatenate(xs, axis)
    return lax.reduce_window(y, jnp.asarray(-jnp.inf, y.dtype), lax.max, (1, 3, 3, 1),
                             (1, 2, 2, 1), "VALID")


def mean(*xs: X, axis: int = -1) -> X:
    return lax.reduce_window(jnp.concatenate(xs, axis), jnp.asarray(0, xs[0].dtype), lax.add,
                             (1, 3, 3, 1), (1, 1, 1, 1), "SAME") * 2


def one_by_one(*xs: X, axis: int = -1) -> X:
    return jnp.concatenate(xs, axis) * 3 + 1


def half_computed(*xs: X, axis: int = -1) -> X:
    return largest(xs[0], jnp.maximum(xs[1], 0) * 2, *xs[2:], axis=axis)


def planned(fn: Any, shapes: list[tuple[int, ...]], dtype: Any, device: Device = DEVICE,
            **kw: Any) -> Plan:
    args = [jax.ShapeDtypeStruct(s, dtype) for s in shapes]
    return make_plan(graph_of(lambda *xs: fn(*xs, **kw), *args), device)


def images(*columns: int) -> list[tuple[int, ...]]:
    return [(2, 7, 9, c) for c in columns]


@pytest.mark.parametrize(("fn", "shapes", "dtype", "axis"), [
    (largest, images(16, 24, 8), BF16, -1),
    (largest, images(8, 8), F32, -1),
    (largest, images(5, 3, 1), BF16, -1),
    (largest, [(2, 3, 9, 8), (2, 1, 9, 8), (2, 5, 9, 8)], F32, 1),
    (half_computed, images(8, 16, 8), BF16, -1),
    (mean, images(16, 8, 8, 24), BF16, -1),
    (mean, images(6, 7), F32, -1),
    (mean, [(2, 7, 4, 8), (2, 7, 6, 8)], F32, 2),
    (one_by_one, images(4, 12, 8), S32, -1),
    (one_by_one, [(3, 8), (1, 8), (2, 8)], F32, 0),
])
def test_the_elements(fn: Any, shapes: list[tuple[int, ...]], dtype: Any, axis: int) -> None:
    plan = planned(fn, shapes, dtype, axis=axis)
    check(plan.graph, [data(v, i) for i, v in enumerate(plan.graph.inputs)], plan=plan)


@pytest.mark.parametrize("fn", [largest, mean])
def test_a_load_for_each_tap_and_no_branch(fn: Any) -> None:
    plan = planned(fn, [(32, 8, 8, c) for c in (320, 384, 384, 192)], BF16, Device())
    (sig,) = plan.sigs
    assert isinstance(sig.form, LoopForm)
    source = emit(plan, cuda_target("sm_90a"), Device(), "k").source
    body = source[source.index("_loop_concat"):source.index('extern "C"')]
    assert "else" not in body and len(re.findall(r"\bpart0 = ", body)) == 1
    assert len(re.findall(r"load_ro<float, 8>\(", body)) == 9
    assert not re.search(r"load\w*<[^>]*>\(p\d", body)


def fenced(nbytes: int) -> np.ndarray[Any, Any]:
    """A `buffer` in front of which nothing may be read: who does is killed."""
    page = mmap.PAGESIZE
    space = mmap.mmap(-1, 2 * page + -(-nbytes // page) * page + (1 << 20))
    raw = np.frombuffer(space, np.uint8)
    protect = ctypes.CDLL(None, use_errno=True).mprotect
    assert protect(ctypes.c_void_p(raw.ctypes.data), ctypes.c_size_t(page), 0) == 0
    raw[page:] = 0xFF
    return raw[page:page + nbytes]


def run_fenced(path: Path) -> None:
    """In a process of its own: runs a Program whose inputs each begin behind such a fence."""
    program = Program.from_bytes(path.read_bytes())
    harness.buffer = fenced
    found = run_program(program, [np.ones(t.dims, t.dtype.numpy) for t in program.inputs])
    assert all((x == 1).all() for x in found)
    sys.stdout.write("ran\n")


def test_nothing_in_front_of_a_part_is_read(tmp_path: Path) -> None:
    """Nine taps of three parts were taken for a stencil of 27 loads, all asked for ahead: those of
    the parts in which an element does not lie, too."""
    plan = planned(largest, images(16, 24, 8), BF16)
    program = compile_graph(plan.graph, plan=plan)
    path = tmp_path / "program"
    path.write_bytes(program.to_bytes())
    code = f"import test_joined, pathlib; test_joined.run_fenced(pathlib.Path({str(path)!r}))"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=False, timeout=120,
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(Path(__file__).parent), *sys.path])})
    assert (done.returncode, done.stdout) == (0, "ran\n"), done.stderr
