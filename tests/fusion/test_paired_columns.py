"""Products of which one half gates the other: which are one stage (paired_columns.py)."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import models
import pytest
from checked import checked, kinds

from jaxmono.fusion import make_plan, paired_columns
from jaxmono.fusion.plan import Device, DotForm, Plan
from jaxmono.fusion.print import print_plan

M, K, F = 256, 32, 64
X = Any
HOPPER = Device()


@pytest.fixture(autouse=True)
def _small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(paired_columns, "MIN_SIZE", 0)
    monkeypatch.setattr(paired_columns, "_SEEN", 10)


def spec(*shape: int, dtype: Any = jnp.bfloat16) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(shape, dtype)


def pairs(p: Plan) -> list[int]:
    """Of every contraction, how many pairs of columns it has; 0: it has none."""
    return [f.pairs.size if f.pairs else 0 for g in p.groups
            if isinstance(f := g.sig.form, DotForm)]


def geglu(x: X, w: X, b: X) -> X:
    u, g = jnp.split(x @ w + b, 2, axis=-1)
    return u * jax.nn.gelu(g)


def swiglu(x: X, gate: X, up: X) -> X:
    return jax.nn.silu(x @ gate) * (x @ up)


def geglu_of_image(x: X, w: X) -> X:
    y = jax.lax.conv_general_dilated(x, w, (1,), "SAME", dimension_numbers=("NWC", "WIO", "NWC"))
    u, g = jnp.split(y, 2, axis=-1)
    return u * jax.nn.gelu(g)


X_W = spec(M, K), spec(K, 2 * F), spec(2 * F)
X_TWO = spec(M, K), spec(K, F), spec(K, F)


def test_halves_of_one_product() -> None:
    made = checked(geglu, *X_W)
    assert kinds(made) == [["dot"]] and pairs(made) == [F]
    assert "1 contractions are gated by their own columns before they are stored" in made.notes
    assert " of pairs of n\n" in print_plan(made)
    assert kinds(checked(geglu, *X_W, without=("gated",))) == [["dot"], ["loop"]]


def test_two_matrices_of_the_same_rows() -> None:
    made = checked(swiglu, *X_TWO)
    assert kinds(made) == [["dot"]] and pairs(made) == [F]
    assert kinds(checked(swiglu, *X_TWO, without=("gated",))) == [["dot", "dot"], ["loop"]]


def test_rows_of_several_dimensions_and_the_next_product() -> None:
    def fn(x: X, w: X, b: X, down: X) -> X:
        return geglu(x, w, b) @ down

    made = checked(fn, spec(4, M // 4, K), *X_W[1:], spec(F, K))
    assert kinds(made) == [["dot"], ["dot"]] and pairs(made) == [F, 0]


def test_what_a_backward_pass_reads_is_stored_beside_it() -> None:
    def fn(x: X, gate: X, up: X) -> tuple[X, X, X]:
        g, u = x @ gate, x @ up
        return jax.nn.silu(g) * u, g, u

    made = checked(fn, *X_TWO)
    assert kinds(made) == [["dot"]] and pairs(made) == [F]
    assert [len(g.results) for g in made.groups] == [3]


def test_a_norm_behind_them_reads_one() -> None:
    made = checked(lambda *a: (h := swiglu(*a)) / jnp.sum(jnp.abs(h), -1, keepdims=True), *X_TWO)
    assert kinds(made) == [["dot"], ["row"]] and pairs(made) == [F]


def test_three_matrices_of_which_two_meet() -> None:
    def fn(x: X, a: X, b: X, c: X) -> tuple[X, X]:
        return swiglu(x, a, b), jnp.sum((x @ c).astype(jnp.float32), 0)

    assert sorted(pairs(checked(fn, *X_TWO, spec(K, F)))) == [0, F]


def test_products_that_could_stay_on_chip_with_the_one_in_front() -> None:
    """Halves meet in a tile of the second one; without that a block would keep its rows."""
    rows = 16384
    for fn, *shapes in (
            (lambda x, d, w: geglu(x @ d, w, 0), (rows, K), (K, 64), (64, 256)),
            (lambda x, d, v, w: swiglu(jax.nn.relu(x @ d), v, w), (rows, K), (K, 64), (64, 128),
             (64, 128))):
        made = checked(fn, *(spec(*s) for s in shapes))
        assert kinds(made) == [["dot"], ["dot"]] and pairs(made) == [0, 128]


def test_halves_of_an_attention() -> None:
    """Its second product has rows that stay on chip: they are gated by a stage of their own."""
    def fn(q: X, k: X, v: X) -> X:
        y = jax.nn.softmax(q @ k.T, -1) @ v
        return y[:, :F] * jax.nn.gelu(y[:, F:])

    graph = models.graph_of(fn, spec(16384, 64), spec(128, 64), spec(128, 2 * F))
    made = make_plan(graph, HOPPER)
    assert kinds(made) == [["attention"], ["loop"]] and not any(pairs(made))


APART = {
    "few columns": (geglu, (spec(4 * M, K), spec(K, 96), spec(96))),
    "halves that never meet": (
        lambda x, w, b: (jnp.tanh((y := x @ w + b)[:, :F]), y[:, F:] + 1), X_W),
    "halves that turn": (lambda x, w, b: jnp.concatenate(
        [-(y := x @ w + b)[:, F:], y[:, :F]], -1), X_W),
    "windows of an image": (lambda x, w, b: geglu_of_image(x, w) * b,
                            (spec(4, 128, K), spec(3, K, 2 * F), spec(F))),
    "weights that are put together": (
        lambda x, v, w: (y := x @ jnp.concatenate([v, w], 1))[:, :F] * y[:, F:],
        (spec(M, K), spec(K, F - 16), spec(K, F + 16))),
    "weights of two dimensions that are not neighbours": (
        lambda x, w, b: (y := jnp.einsum("mij,inj->mn", x, w) + b)[:, :F] * y[:, F:],
        (spec(M, 4, 16), spec(4, 2 * F, 16), spec(2 * F))),
    "few rows": (geglu, (spec(M - 1, K), *X_W[1:])),
    "halves of no whole pieces": (geglu, (spec(M, K), spec(K, 2 * F + 8), spec(2 * F + 8))),
    "f32": (geglu, tuple(spec(*s.shape, dtype=jnp.float32) for s in X_W)),
    "much that is summed": (geglu, (spec(M, 2064), spec(2064, 2 * F), spec(2 * F))),
    "the whole product is read, too": (
        lambda x, w, b: (geglu(x, w, b), jnp.sum(x @ w + b, axis=0)), X_W),
    "a part of it": (lambda x, w, b: (y := x @ w + b)[:, :F] * y[:, F:2 * F] + y[:, 1:F + 1], X_W),
    "weights that are computed": (lambda x, w, b: geglu(x, jnp.cumsum(w, 0), b), X_W),
    "matrices of other sizes": (lambda x, v, w: jax.nn.silu(x @ v) * (x @ w)[:, :F],
                                (spec(M, K), spec(K, F), spec(K, 2 * F))),
    "matrices that lie differently": (lambda x, v, w: jax.nn.silu(x @ v) * (x @ w.T),
                                      (spec(M, K), spec(K, F), spec(F, K))),
}


@pytest.mark.parametrize("case", APART)
def test_others_stay_apart(case: str) -> None:
    fn, args = APART[case]
    assert not any(pairs(checked(fn, *args)))


def test_a_refusal_says_why() -> None:
    told = [n for n in checked(geglu, *APART["much that is summed"][1]).notes if "halves" in n]
    assert len(told) == 1 and "products of 2064 summed elements" in told[0]
    assert not any("halves" in n for n in checked(geglu, *APART["few rows"][1]).notes)


def test_gpus_without_wgmma_have_no_such_tiles() -> None:
    assert not any(pairs(checked(geglu, *X_W, device=Device(wgmma=False))))


@pytest.mark.parametrize(("m", "n", "k", "pays"), [
    (8192, 2560, 320, True), (2048, 5120, 640, True), (512, 16384, 2048, True),
    (512, 10240, 1280, False), (4096, 28672, 4096, False)])
def test_measured_choices(m: int, n: int, k: int, pays: bool,
                          monkeypatch: pytest.MonkeyPatch) -> None:
    """512x5120x1280 takes 1.03 as long as pairs: three rounds of 128 columns, not two of 160."""
    monkeypatch.undo()
    graph = models.graph_of(lambda x, w: x @ w, spec(m, k), spec(k, n))
    assert (paired_columns.why_apart(graph.ops[-1], n, HOPPER) == "") is pays
