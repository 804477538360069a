"""The planner's parts by themselves: memory, loops, bijections, index algebra."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from jaxmono.fusion.bijection import injective
from jaxmono.fusion.indexing import Index, IndexMap, Var, delinearize, linearize
from jaxmono.fusion.memory import ALIGNMENT, Interval, assign
from jaxmono.fusion.plan import Loop, LoopForm, Sig, Stage
from jaxmono.fusion.points import evaluate_index, grid, offsets
from jaxmono.fusion.roll import find_loops
from jaxmono.hlo.ir import Graph

# ---- memory ------------------------------------------------------------------------------------

intervals = st.lists(st.builds(lambda size, a, n: Interval(size, a, a + n),
                               st.integers(1, 5000), st.integers(0, 12), st.integers(0, 5)),
                     max_size=24)


@given(intervals)
def test_live_values_never_share_bytes(rows: list[Interval]) -> None:
    at, total = assign(rows)
    for i, a in enumerate(rows):
        assert at[i] % ALIGNMENT == 0
        assert at[i] + a.size <= total
        for j, b in enumerate(rows[:i]):
            if a.first <= b.last and b.first <= a.last:
                assert at[i] + a.size <= at[j] or at[j] + b.size <= at[i]


def test_memory_is_reused_along_a_chain() -> None:
    # a value written in stage i and read in stage i + 1, of 1 KiB: two suffice
    chain = [Interval(1024, i, i + 1) for i in range(20)]
    assert assign(chain)[1] == 2048


def test_the_reader_and_the_next_writer_of_one_stage_do_not_meet() -> None:
    at, _ = assign([Interval(100, 0, 1), Interval(100, 1, 2)])
    assert at[0] != at[1]


# ---- loops -------------------------------------------------------------------------------------


def stages(text: str) -> list[Stage]:
    from jaxmono.fusion.plan import Group

    body = Graph((), (), ())
    return [Stage((Group(i, Sig(body, LoopForm((), ()), c, c), (), ()),))
            for i, c in enumerate(text)]


def test_loops_are_found() -> None:
    assert find_loops(stages("abcbcbcd")) == (Loop(1, 2, 3),)
    assert find_loops(stages("aaaa")) == (Loop(0, 1, 4),)
    assert find_loops(stages("abcd")) == ()
    assert find_loops(stages("aababab")) == (Loop(0, 1, 2), Loop(2, 2, 2)) or \
        find_loops(stages("aababab")) == (Loop(1, 2, 3),)
    assert find_loops(stages("xyxyzzz")) == (Loop(0, 2, 2), Loop(4, 1, 3))


# ---- bijections and indices --------------------------------------------------------------------


@st.composite
def views(draw: st.DrawFn) -> tuple[IndexMap, tuple[int, ...], tuple[Var, ...]]:
    """A chain of reshapes and transposes as an index map over a domain, a bijection."""
    shape = tuple(draw(st.lists(st.sampled_from([1, 2, 3, 4, 6, 8]), min_size=1, max_size=4)))
    domain = tuple(Var(f"v{i}", n) for i, n in enumerate(shape))
    index: IndexMap = tuple(Index.of(v) for v in domain)
    for _ in range(draw(st.integers(0, 4))):
        if draw(st.booleans()):
            p = draw(st.permutations(range(len(shape))))
            index, shape = tuple(index[i] for i in p), tuple(shape[i] for i in p)
        else:
            size = int(np.prod(shape))
            new: list[int] = []
            while size > 1 and len(new) < 3:
                f = draw(st.sampled_from([f for f in range(2, size + 1) if size % f == 0]))
                new.append(f)
                size //= f
            new.append(size)
            index = delinearize(linearize(index, shape), new)
            shape = tuple(new)
    return index, shape, domain


@given(views())
@settings(max_examples=150, deadline=None)
def test_views_are_proven_bijections(
        view: tuple[IndexMap, tuple[int, ...], tuple[Var, ...]]) -> None:
    index, shape, domain = view
    flat = offsets(index, shape, domain, {})
    assert sorted(flat) == list(range(int(np.prod(shape))))
    assert injective(index, shape, domain) is True


def test_collisions_are_seen() -> None:
    a, b = Var("a", 4), Var("b", 6)
    x, y = Index.of(a), Index.of(b)
    assert injective((x, y // 2), (4, 6), (a, b)) is False
    assert injective((x + y,), (9,), (a, b)) is False
    assert injective((x * 6 + y,), (24,), (a, b)) is True
    assert injective((x,), (4,), (a, b)) is False


def test_pixels_of_a_patch_lie_in_a_row() -> None:
    # columns of 16 x 3 pixels and channels: (k / 3) % 16 * 3 + k % 3 is one remainder
    k = Var("k", 768)
    _, column, channel = delinearize(Index.of(k), (16, 16, 3))
    assert column * 3 + channel == Index.of(k) % 48



@given(st.lists(st.tuples(st.integers(1, 12), st.integers(-24, 48)), min_size=1, max_size=3),
       st.integers(-30, 30), st.integers(1, 16), st.integers(1, 16))
@settings(max_examples=200, deadline=None)
def test_index_algebra_agrees_with_numbers(terms: list[tuple[int, int]], const: int, d: int,
                                           e: int) -> None:
    over = tuple(Var(f"v{i}", n) for i, (n, _) in enumerate(terms))
    x = Index((), const)
    number = np.asarray(const)
    points = grid(over)
    for v, (_, c) in zip(over, terms, strict=True):
        x = x + Index.of(v) * c
        number = number + points[v] * c
    for symbolic, expected in (
            (x // d, number // d), (x % d, number % d), (x // d // e, number // d // e),
            (x // d % e, number // d % e), (x // d * d + x % d, number),
            ((x // d % e * d + x % d) * 2, (number // d % e * d + number % d) * 2),
            ((x % d) * e + x // d, number % d * e + number // d)):
        got = np.broadcast_to(evaluate_index(symbolic, points, {}), number.shape)
        np.testing.assert_array_equal(got, expected)
        low, high = symbolic.bounds
        assert low <= expected.min()
        assert expected.max() <= high
