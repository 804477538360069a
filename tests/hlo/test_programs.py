"""The random programs and the comparison that property tests rest on are themselves sound."""

from __future__ import annotations

import collections

import jax
import numpy as np
import pytest
from programs import ALL_OPS, Mismatch, compare, random_program, reference

F32 = np.float32


def test_reproducible_by_seed_and_printable() -> None:
    a, b = random_program(7), random_program(7)
    assert str(a) == str(b) != str(random_program(8))
    for x, y in zip(a.args, b.args, strict=True):
        np.testing.assert_array_equal(x, y)
    scope: dict[str, object] = {}
    exec(compile(str(a), "printed", "exec"), scope)
    assert callable(scope["program"])
    assert "random_program(7)" in str(a)


def test_every_step_occurs_and_traces() -> None:
    seen: collections.Counter[str] = collections.Counter()
    zero, special = 0, 0
    for seed in range(200):
        program = random_program(seed)
        seen.update(program.ops)
        zero += any(0 in a.shape for a in program.args)
        special += any(a.dtype.kind == "f" and not np.isfinite(a).all() for a in program.args)
    assert set(seen) == set(ALL_OPS)
    assert zero >= 1 and special >= 15


@pytest.mark.sampled(7)
@pytest.mark.parametrize("op", ALL_OPS)
def test_each_step_alone(op: str) -> None:
    made = 0
    for seed in range(12):
        try:
            program = random_program(seed, ops=(op,), steps=2)
        except ValueError as e:
            assert "applies" in str(e)
            continue
        made += 1
        jax.eval_shape(program.fun, *program.args)
    assert made


def test_dtypes_are_kept_to() -> None:
    program = random_program(3, dtypes=("bf16",))
    assert "bfloat16" in {a.dtype.name for a in program.args}
    # Masks, indices, and the f32 in which layer_norm computes.
    assert {a.dtype.name for a in program.args} <= {"bfloat16", "int32", "bool", "float32"}
    with pytest.raises(ValueError, match="unknown"):
        random_program(0, dtypes=("f31",))
    with pytest.raises(ValueError, match="unknown"):
        random_program(0, ops=("addd",))


def test_check_finds_small_and_large_errors() -> None:
    program = random_program(11, dtypes=("f32",), ops=("matmul", "softmax", "unary"), steps=4)
    ref = reference(program)
    program.check(ref.rounded, ref)
    for scale in (1e-2, 1e2):
        bad = [np.asarray(x) for x in ref.rounded]
        bad[0] = bad[0].copy()
        bad[0].reshape(-1)[-1] += F32(scale)
        with pytest.raises(Mismatch, match=r"def program"):
            program.check(bad, ref)


def same(actual: np.ndarray, expected: np.ndarray, truth: np.ndarray | None = None) -> None:
    truth = expected.astype(np.float64) if truth is None else truth
    compare([actual], [expected], [truth])


def test_compare_dtype_shape_and_integers() -> None:
    same(np.arange(3), np.arange(3))
    for bad in (np.arange(4), np.arange(3).astype(F32), np.array([0, 1, 3])):
        with pytest.raises(Mismatch):
            same(bad, np.arange(3))
    with pytest.raises(Mismatch, match="1 outputs"):
        compare([np.arange(3)], [], [])


def test_compare_positions_of_nan_and_infinity() -> None:
    good = np.array([1, np.nan, np.inf, -np.inf] * 10, F32)
    same(good, good)
    for i, x in ((0, np.nan), (1, 0), (1, np.inf), (2, -np.inf), (3, np.nan), (2, 3e38)):
        bad = good.copy()
        bad[i] = x
        with pytest.raises(Mismatch, match="differ"):
            same(bad, good)


def test_compare_tolerance_is_relative_and_absolute_together() -> None:
    truth = np.linspace(-4, 4, 101)
    good = truth.astype(F32)
    same(good + F32(1e-6), good, truth)
    with pytest.raises(Mismatch):
        same(good + F32(1e-3), good, truth)
    # Where XLA itself is far from the truth, the program is badly conditioned.
    same(good + F32(1e-3), good + F32(5e-4), truth)


def test_compare_ill_conditioned_elements() -> None:
    # XLA overflowed f16 where the truth just fits: either is right there, but only there.
    truth = np.full(100, 65000.0)
    expected = truth.astype(np.float16)
    expected[0] = np.inf
    actual = truth.astype(np.float16)
    same(actual, expected, truth)
    expected[:50] = np.inf
    with pytest.raises(Mismatch, match="ill-conditioned"):
        same(actual, expected, truth)
