"""Results that are joined of arrays which are computed of the same (joined_parts.py)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import models
import pytest
from checked import checked, kinds

from jaxmono.fusion import joined_parts, loop_chains
from jaxmono.fusion.plan import LoopForm, Place

X = Any
SHAPE = (8, 16)
F32, BF16 = jnp.float32, jnp.bfloat16


@pytest.fixture(autouse=True)
def _small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(joined_parts, "_ELEMENTS", 128)
    monkeypatch.setattr(loop_chains, "MIN_BYTES", 256)


def spec(*shape: int, dtype: Any = F32) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(shape, dtype)


ONE, TWO = spec(*SHAPE), [spec(*SHAPE)] * 2


def mixed(a: X, b: X) -> list[X]:
    """Three parts, each of which needs both."""
    s, d = jnp.cos(a) + b, a - jnp.sin(b)
    return [s * a, d * b + s, s * d]


def lattice(f: X) -> X:
    """Of neighbours: rolls are joins of slices."""
    ways = ((0, 0), (1, 0), (0, 1), (-1, 0))
    f = [jnp.roll(x, way, (0, 1)) for x, way in zip(f, ways, strict=True)]
    mass = f[0] + f[1] + f[2] + f[3]
    return jnp.stack([x - (x - mass * (i + 1)) / 2 for i, x in enumerate(f)])


@pytest.mark.parametrize("dtype", [F32, BF16])
@pytest.mark.parametrize("fn", [
    lambda a, b: jnp.stack(mixed(a, b)), lambda a, b: jnp.concatenate(mixed(a, b)),
    lambda a, b: jnp.stack([mixed(a, b)[0], mixed(a, b)[2], a])],
    ids=["stack", "concatenate", "one of them as it came"])
def test_one_loop_writes_each_part_where_it_lies(fn: Callable[..., X], dtype: Any) -> None:
    plan = checked(fn, *[spec(*SHAPE, dtype=dtype)] * 2)
    assert kinds(plan) == [["loop"]]
    (group,) = plan.groups
    assert isinstance(group.sig.form, LoopForm) and len(group.sig.form.stores) == 3
    assert not [b for b in plan.buffers if b.place is Place.SCRATCH]


def test_neighbours() -> None:
    assert kinds(checked(lattice, spec(4, *SHAPE))) == [["loop"]]


def taken(fn: Callable[..., X], *args: jax.ShapeDtypeStruct) -> bool:
    """Whether a program has such results; it is planned, and computes what it should."""
    graph = models.graph_of(fn, *args)
    checked(fn, *args)
    return joined_parts.joined_parts(graph) is not graph


def test_a_part_that_is_returned_as_well() -> None:
    def fn(a: X, b: X) -> X:
        parts = mixed(a, b)
        return jnp.stack(parts), parts[1], parts[0].sum()

    assert taken(fn, *TWO)


def test_a_part_of_what_another_group_reads() -> None:
    def fn(a: X, b: X) -> X:
        q = jnp.cos(a) * b
        return jnp.concatenate([a * q + b, a + q, b * q]), q @ b.T, q

    assert taken(fn, *TWO)


def test_a_step_behind_one_that_is_returned() -> None:
    """The second one alone: the first is read by it."""
    assert taken(lambda f: ((y := lattice(f)), lattice(y)), spec(4, *SHAPE))


def test_two_such_results() -> None:
    def fn(a: X, b: X) -> X:
        return jnp.stack(mixed(a, b)), jnp.stack(mixed(b, a))

    assert taken(fn, *TWO)


def test_in_place_of_an_input_it_stays_a_join() -> None:
    graph = models.graph_of(lambda a, b: jnp.concatenate(mixed(a, b)), ONE, ONE)
    assert joined_parts.joined_parts(graph) is not graph
    assert joined_parts.joined_parts(graph, {0}) is graph


LEFT: dict[str, tuple[Callable[..., X], tuple[Any, ...]]] = {
    "of different arrays": (lambda a, b: jnp.stack([jnp.cos(a), jnp.sin(b)]), (ONE, ONE)),
    "joined along rows": (lambda a, b: jnp.concatenate(mixed(a, b), 1), (ONE, ONE)),
    "of other sizes": (lambda a, b: jnp.concatenate([*mixed(a, b), a[:2] + 1]), (ONE, ONE)),
    "behind a product": (lambda a, b: jnp.stack(mixed(a @ b.T @ a, b)), (ONE, ONE)),
    "behind a sum": (lambda a, b: jnp.stack([x * b.max() for x in mixed(a, b)]), (ONE, ONE)),
    "read again": (lambda a, b: ((y := jnp.stack(mixed(a, b))), y.sum((1, 2))), (ONE, ONE)),
    "a step behind a step": (lambda f: lattice(lattice(f))[:, :4], (spec(4, *SHAPE),)),
    "returned twice": (lambda a, b: ((y := jnp.stack(mixed(a, b))), y), (ONE, ONE)),
    "with numbers in common": (lambda a, b, s, t: jnp.stack([x * s + t for x in (a, b)]),
                               (ONE, ONE, spec(), spec())),
    "waiting for each other": (lambda a, b: (
        (q := jnp.cos(a) * b), (t := (b * jnp.sin(q @ b.T).sum()).max()),
        jnp.concatenate([a * q + b, a * t + q, b * t + q]), q @ b.T), (ONE, ONE)),
    "reshaped": (lambda a, b: jnp.stack(mixed(a, b))[None], (ONE, ONE)),
    "not of elements": (lambda a, b: jnp.stack([*mixed(a, b), a @ b.T @ a]), (ONE, ONE)),
    "few elements": (lambda a, b: jnp.stack(mixed(a, b)), (spec(4, 8), spec(4, 8))),
    "parts that begin anywhere": (lambda a, b: jnp.stack(mixed(a, b)),
                                  (spec(33, 13), spec(33, 13))),
    "too many": (lambda a, b: jnp.stack([x * i for i in range(6) for x in mixed(a, b)]),
                 (ONE, ONE)),
}


@pytest.mark.parametrize("name", LEFT)
def test_others_are_joined_as_they_were(name: str) -> None:
    fn, args = LEFT[name]
    graph = models.graph_of(fn, *args)
    assert joined_parts.joined_parts(graph) is graph
    checked(fn, *args)
