"""The random generator of `jax.random`: found by what it computes, one op until it is generated."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from thinned import crossed

from jaxmono.hlo import ops
from jaxmono.hlo.importer import import_module
from jaxmono.hlo.interp import evaluate
from jaxmono.hlo.ir import Graph
from jaxmono.hlo.parse import parse
from jaxmono.hlo.passes import simplify
from jaxmono.hlo.print import to_text
from jaxmono.hlo.verify import verify

KEY = np.asarray([0x12345678, 0xFEDCBA98], np.uint32)


def graph_of(fn: Callable[..., Any], *args: Any, platform: str = "cpu") -> Graph:
    lowered = jax.jit(fn).trace(*args).lower(lowering_platforms=(platform,))
    return import_module(lowered.compiler_ir("stablehlo")).graph


def kinds(graph: Graph) -> list[str]:
    return [o.kind for o in graph.ops if isinstance(o, ops.Elementwise)
            and o.kind in ops.QUATERNARY]


def drop(key: Any, x: Any) -> Any:
    return jnp.where(jax.random.bernoulli(key, 0.9, x.shape), x / 0.9, 0)


def split(key: Any) -> Any:
    return jax.random.split(key, 3), jax.random.fold_in(key, 7)


PROGRAMS: dict[str, tuple[Callable[..., Any], tuple[Any, ...]]] = {
    "bits": (lambda k: jax.random.bits(k, (5, 33)), (KEY,)),
    "bytes": (lambda k: jax.random.bits(k, (64,), "uint8"), (KEY,)),
    "integers": (lambda k: jax.random.randint(k, (9,), -5, 1000), (KEY,)),
    "keys": (split, (KEY,)),
    "several keys": (jax.vmap(lambda k: jax.random.uniform(k, (7,))), (np.stack([KEY, KEY + 1]),)),
    "a mask": (drop, (KEY, np.ones((4, 100), np.float32))),
    "a token": (lambda k, x: jax.random.categorical(k, x), (KEY, np.ones((3, 50), np.float32))),
    "a key in the program": (lambda x: drop(jax.random.key(3), x), (np.ones(40, np.float32),)),
    "nothing": (lambda k: jax.random.bits(k, (0, 3)), (KEY,)),
}


@crossed(("name", PROGRAMS), ("platform", ["cpu", "cuda"]))
def test_a_program_has_one_op_for_it(name: str, platform: str) -> None:
    """A loop on CPUs, straight ops elsewhere: the same graph, and the bits that JAX gives."""
    fn, args = PROGRAMS[name]
    graph = graph_of(fn, *args, platform=platform)
    assert any(isinstance(o, ops.Threefry2x32) for o in graph.ops)
    assert not any(isinstance(o, ops.While) for o in graph.ops)
    verify(graph)
    assert to_text(parse(to_text(graph))) == to_text(graph)
    simple = simplify(graph)
    verify(simple)
    assert not any(isinstance(o, ops.Threefry2x32) for o in simple.ops)
    assert to_text(parse(to_text(simple))) == to_text(simple)
    want = jax.tree.leaves(jax.jit(fn)(*args))
    for g in (graph, simple):
        for a, b in zip(evaluate(g, args), want, strict=True):
            np.testing.assert_array_equal(a, b)


def test_bits_of_both_words_are_one_op() -> None:
    for fn, found in ((lambda k: jax.random.bits(k, (8,)), ["threefry2x32_xor"]),
                      (jax.random.split, ["threefry2x32_0", "threefry2x32_1"])):
        assert kinds(simplify(graph_of(fn, KEY))) == found


def threefry2x32(key0: Any, key1: Any, count0: Any, count1: Any, rounds: int = 20) -> Any:
    """Written out, with as many rounds as asked for."""
    keys = (key0, key1, key0 ^ key1 ^ jnp.uint32(0x1BD11BDA))
    x0, x1 = count0 + key0, count1 + key1
    for i in range(rounds // 4):
        for r in ((13, 15, 26, 6), (17, 29, 16, 24))[i % 2]:
            x0 = x0 + x1
            x1 = x0 ^ ((x1 << jnp.uint32(r)) | (x1 >> jnp.uint32(32 - r)))
        x0, x1 = x0 + keys[(i + 1) % 3], x1 + keys[(i + 2) % 3] + jnp.uint32(i + 1)
    return x0, x1


@pytest.mark.parametrize(("rounds", "found"), [(20, 1), (12, 0)])
def test_a_name_is_not_enough(rounds: int, found: int) -> None:
    """A user's function of that name is inlined unless it computes the same."""
    def named(*words: Any) -> Any:
        return threefry2x32(*words, rounds=rounds)

    named.__name__ = "threefry2x32"
    counts = np.arange(24, dtype=np.uint32).reshape(2, 12)
    args = (KEY[0], KEY[1], counts, counts + 5)
    graph = graph_of(jax.jit(named), *args)
    assert sum(isinstance(o, ops.Threefry2x32) for o in graph.ops) == found
    for a, b in zip(evaluate(simplify(graph), args), named(*args), strict=True):
        np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize("change", ["a word", "a loop without end", "another rank"])
def test_odd_functions_of_that_name(change: str) -> None:
    """Values that differ at one word only, too; nothing raises, and nobody waits."""
    def named(key0: Any, key1: Any, count0: Any, count1: Any) -> Any:
        if change == "a loop without end":
            return jax.lax.fori_loop(0, 10**9, lambda _, x: (x[0] + x[1], x[0]), (count0, count1))
        if change == "another rank":
            row = jnp.broadcast_to(key0, (100,)) + jnp.uint32(1)
            return count0 + jnp.broadcast_to(row[:, None], (100, 100)), count1
        x0, x1 = threefry2x32(key0, key1, count0, count1)
        return jnp.where(count0 == 7, 0, x0), x1

    named.__name__ = "threefry2x32"
    counts = np.zeros((100, 100), np.uint32)
    graph = graph_of(jax.jit(named), KEY[0], KEY[1], counts, counts)
    assert not any(isinstance(o, ops.Threefry2x32) for o in graph.ops)


def test_what_mixes_counts_is_inlined() -> None:
    """Alike for counts that are equal, and for no others: the samples differ."""
    def named(key0: Any, key1: Any, count0: Any, count1: Any) -> Any:
        return threefry2x32(key0, key1, jnp.sort(count0), count1)

    named.__name__ = "threefry2x32"
    counts = np.arange(8, dtype=np.uint32)
    graph = graph_of(jax.jit(named), KEY[0], KEY[1], counts, counts)
    assert not any(isinstance(o, ops.Threefry2x32) for o in graph.ops)
