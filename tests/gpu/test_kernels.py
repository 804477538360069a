"""What a launched kernel promises on a GPU: the same bits every time, beside any other work."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from small_models import bert_data, jitted, opt_data

import jaxmono
from benchmarks.data import Data, copied
from examples.models import bert, opt

CASES: dict[str, Callable[[], Data]] = {
    "bert": lambda: bert_data(2, length=32, config=bert.tiny()),
    # Sizes at which dots are split over k, and their parts meet in global memory.
    "bert, wide": lambda: bert_data(
        1, length=128, config=bert.BertConfig(layers=2)),
    "opt": lambda: opt_data(length=64, config=opt.tiny()),
}


def bits(tree: Any) -> list[bytes]:
    return [np.asarray(x).tobytes() for x in jax.tree.leaves(jax.device_get(tree))]


def layers(n: int) -> Data:
    return bert_data(1, length=64, config=bert.BertConfig(
        vocabulary=64, hidden=128, heads=4, intermediate=256, positions=64, layers=n))


@pytest.mark.parametrize("name", list(CASES))
def test_every_call_gives_the_same_bits(name: str) -> None:
    case = CASES[name]()
    step = jitted(case)
    outs = [step(case.states[0], copied(case.carry), *case.inputs[0]) for _ in range(60)]
    assert {tuple(bits(out)) for out in outs} == {tuple(bits(outs[0]))}


def test_a_kernel_from_the_disk_gives_the_same_bits(
        tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JAXMONO_CACHE_DIR", str(tmp_path))
    case = CASES["bert"]()
    args = case.arguments()
    cold, warm = (jitted(case).lower(*args).compile() for _ in range(2))
    assert not cold.explain().cached and warm.explain().cached
    assert bits(cold(*args)) == bits(warm(*args))


def test_code_does_not_grow_with_depth() -> None:
    told = {}
    for n in (2, 8):
        case = layers(n)
        compiled = jitted(case).lower(*case.arguments()).compile()
        told[n] = (compiled.explain(), len(compiled.as_text("cuda").split("plan:")[0]))
    few, many = told[2][0], told[8][0]
    assert many.kernels == few.kernels == 1
    # Every layer has as many stages as every other, and executes barriers between them all.
    assert (many.stages - few.stages) % 6 == 0
    assert many.barriers == many.stages - 1 < many.barriers_before_merging
    assert told[8][1] < 1.6 * told[2][1]


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_what_is_not_finite_stays_in_its_row(bad: float) -> None:
    case = bert_data(3, length=32, config=replace(bert.tiny(), vocabulary=99))
    ids, mask = case.inputs[0]
    ids = jnp.where(ids == 5, 6, ids).at[1, 7].set(5)
    leaves, tree = jax.tree.flatten(case.states[0])
    tables = [i for i, a in enumerate(leaves) if a.shape == (99, 64)]
    assert len(tables) == 1
    clean = jitted(case)(case.states[0], (), ids, mask)[0]
    leaves[tables[0]] = leaves[tables[0]].at[5].set(bad)
    got = jitted(case)(jax.tree.unflatten(tree, leaves), (), ids, mask)[0]
    assert np.isnan(np.asarray(got[1], np.float32)).all()
    assert bits([got[0], got[2]]) == bits([clean[0], clean[2]])


def test_two_kernels_in_turn_and_in_threads() -> None:
    """Each loaded kernel has its own barrier state, whoever runs between its launches."""
    cases = [CASES["bert"](), layers(2)]
    steps = [jitted(case) for case in cases]
    first = [bits(s(c.states[0], (), *c.inputs[0])) for s, c in zip(steps, cases, strict=True)]
    wrong: list[int] = []

    def call(which: int, times: int) -> None:
        case = cases[which]
        outs = [steps[which](case.states[0], (), *case.inputs[0]) for _ in range(times)]
        wrong.extend(i for i, out in enumerate(outs) if bits(out) != first[which])

    for _ in range(20):
        call(0, 1)
        call(1, 1)
    threads = [threading.Thread(target=call, args=(n % 2, 50)) for n in range(4)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert not wrong


def test_xla_runs_between_two_kernels() -> None:
    x = jax.random.normal(jax.random.key(0), (64, 128))

    def f(x: jax.Array) -> jax.Array:
        y = jnp.sort(jnp.tile(jnp.tanh(x) * 2, 40), axis=1)[:, ::40]
        return jax.nn.softmax(y @ y.T, axis=-1)

    compiled = jaxmono.jit(f).lower(x).compile()
    assert compiled.explain().kernels == 2
    np.testing.assert_allclose(compiled(x), jax.jit(f)(x), rtol=2e-2, atol=1e-5)


@pytest.mark.parametrize("transform", ["scan", "vmap", "grad", "cond"])
def test_inside_transformed_programs(transform: str) -> None:
    w = jax.random.normal(jax.random.key(1), (64, 64)) / 8
    x = jax.random.normal(jax.random.key(2), (16, 64))

    def program(layer: Callable[..., jax.Array]) -> Callable[[jax.Array], Any]:
        return {
            "scan": lambda x: lax.scan(lambda c, _: (layer(c, w), c.sum()), x, length=5),
            "vmap": jax.vmap(lambda row: layer(row[None], w)),
            "grad": jax.grad(lambda x: layer(layer(x, w), w).sum()),
            "cond": lambda x: lax.cond(x[0, 0] > 0, lambda: layer(x, w), lambda: layer(-x, w)),
        }[transform]

    def layer(x: jax.Array, w: jax.Array) -> jax.Array:
        y = jnp.tanh(jnp.matmul(x, w, precision="highest"))
        return y * lax.rsqrt(jnp.mean(y * y, -1, keepdims=True) + 0.1)

    wanted = jax.jit(program(layer))(x)
    found = jax.jit(program(jaxmono.jit(layer)))(x)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-4), found, wanted)


def test_outputs_that_are_inputs_and_empty_arrays() -> None:
    def f(x: jax.Array, y: jax.Array) -> Any:
        return x, x + 1, y[:0], jnp.sum(y[:0], 0), x

    args = (jnp.arange(6.0).reshape(2, 3), jnp.ones((4, 2)))
    jax.tree.map(np.testing.assert_array_equal, jaxmono.jit(f)(*args), jax.jit(f)(*args))
