"""Real models on a GPU: one kernel each, as right as XLA, right every time."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from small_models import bert_data, chained, jitted, opt_data, relative_errors

import jaxmono
from benchmarks import data
from benchmarks.data import Data, copied
from benchmarks.errors import distance
from benchmarks.workloads import find
from examples.models import bert, minilm, opt

TINY = {
    "bert": lambda: bert_data(2, length=32, config=bert.tiny()),
    "bert, odd sizes": lambda: bert_data(3, length=13, config=bert.tiny()),
    "bert f32": lambda: bert_data(2, length=32, config=bert.tiny(), dtype="f32"),
    "opt": lambda: opt_data(length=32, config=opt.tiny()),
    "opt f16": lambda: opt_data(length=17, config=opt.tiny(), dtype="f16"),
}


@pytest.fixture(params=list(TINY))
def tiny(request: pytest.FixtureRequest) -> Data:
    return TINY[request.param]()


def explained(case: Data) -> Any:
    return jitted(case).lower(*case.arguments()).compile().explain()


def check_as_good_as_xla(case: Data, factor: float, floor: float = 0) -> None:
    ours, xla = relative_errors(case, jitted(case), jitted(case, "xla"))
    # 5e-4: an f32 dot of DEFAULT precision may be tf32, and which dots are is each one's choice.
    assert ours <= factor * xla + floor, (ours, xla)


def test_tiny_models_are_one_kernel_and_right(tiny: Data) -> None:
    told = explained(tiny)
    assert told.kernels == 1 and not told.refused, str(told)
    check_as_good_as_xla(tiny, factor=1.5, floor=5e-4)


@pytest.mark.parametrize("name", ["bert_base", "opt_decode"])
def test_full_models_are_one_kernel_without_spills_and_right(name: str) -> None:
    case = data.make(data.Case(find(name), 1, "bf16"))
    told = explained(case)
    assert told.kernels == 1 and not told.refused, str(told)
    assert not sum(k.spill_bytes or 0 for k in told.planned), str(told)
    check_as_good_as_xla(case, factor=1.1)


@pytest.mark.parametrize(("dtype", "bar"), [("f32", 0.9999), ("bf16", 0.999)])
def test_minilm_on_real_sentences(dtype: str, bar: float) -> None:
    try:
        case = data.make(data.Case(find("minilm"), 32, dtype))
    except minilm.NotInstalled as missing:
        pytest.skip(f"{missing}, and $MINILM_DIR does not say where the weights are")
    assert explained(case).kernels == 1
    step = jitted(case)
    for turn, (exact, _) in enumerate(data.reference(case, sets=len(case.inputs))):
        ours = np.asarray(step(*case.arguments(turn))[0], np.float64)
        assert np.min(np.sum(ours * np.asarray(exact, np.float64), axis=1)) >= bar


def test_hundreds_of_calls_agree_with_the_first() -> None:
    """A missing barrier or a wait that is not reset shows as a result that moves."""
    case = bert_data(1, length=128, config=bert.BertConfig(layers=3))
    step = jitted(case)
    first = [np.asarray(step(*case.arguments(i))[0]) for i in range(4)]
    outs = [(i % 4, step(*case.arguments(i))[0]) for i in range(400)]
    assert max(distance(out, first[i]) for i, out in outs) < 2e-2


def test_calls_inside_one_program_agree_with_calls_from_python() -> None:
    """XLA records several launches of a program into one command buffer and replays it."""
    case = TINY["bert"]()
    step = jitted(case)
    many = chained(step, len(case.inputs))
    stacked = tuple(jnp.stack(arrays) for arrays in zip(*case.inputs, strict=True))
    alone = [np.asarray(step(*case.arguments(i))[0]) for i in range(len(case.inputs))]
    for _ in range(5):
        together, _ = many(case.states[0], (), *stacked)
        for one, two in zip(alone, together, strict=True):
            assert distance(two, one) < 1e-2


def test_a_donated_cache_is_updated_in_place() -> None:
    case = opt_data(length=32, config=opt.tiny())
    step = jitted(case)
    cache = copied(case.carry)
    before = [leaf.unsafe_buffer_pointer() for leaf in jax.tree.leaves(cache)]
    _, after = step(case.states[0], cache, *case.inputs[0])
    assert [leaf.unsafe_buffer_pointer() for leaf in jax.tree.leaves(after)] == before
    assert all(leaf.is_deleted() for leaf in jax.tree.leaves(cache))


def test_a_cache_that_is_not_donated_is_left_alone() -> None:
    case = opt_data(length=32, config=opt.tiny())
    kept = jax.device_get(case.carry)
    _, after = jitted(case)(case.states[0], copied(case.carry), *case.inputs[0])
    again = jaxmono.jit(case.program.step)(*case.arguments())[1]
    jax.tree.map(np.testing.assert_array_equal, jax.device_get(case.carry), kept)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(
        np.asarray(a, np.float32), np.asarray(b, np.float32), atol=2e-2), after, again)

