"""Element-wise device functions against NumPy, on corner cases and random values.

One kernel per element type computes every op on all pairs of values, in the emulator; NVRTC
compiles the same source, so that a function that only one of the two compilers takes shows here.
"""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest
import scipy.special
from emulated import emulate

from jaxmono.codegen import headers, nvrtc
from jaxmono.codegen.names import storage
from jaxmono.hlo import ops
from jaxmono.hlo.interp import elementwise
from jaxmono.hlo.types import DType

Array = np.ndarray[Any, Any]
FLOATS = (DType.F32, DType.F64, DType.BF16, DType.F16, DType.F8E4M3FN, DType.F8E5M2)
INTEGERS = (DType.S8, DType.S16, DType.S32, DType.S64, DType.U8, DType.U16, DType.U32, DType.U64)

BITS = {"and", "or", "xor", "shift_left", "shift_right_arithmetic", "shift_right_logical"}
ARITHMETIC = {"add", "divide", "maximum", "minimum", "multiply", "power", "remainder", "subtract"}
UNARY = {
    "float": sorted(ops.UNARY - {"count_leading_zeros", "not", "popcnt"}),
    "integer": ["abs", "count_leading_zeros", "negate", "not", "popcnt", "sign", "square"],
    "pred": ["not"],
}
BINARY = {
    "float": sorted(ops.BINARY - BITS - {"complex", "polygamma", "zeta"}),
    "integer": sorted(BITS | ARITHMETIC),
    "pred": ["add", "and", "maximum", "minimum", "multiply", "or", "subtract", "xor"],
}
COMPARE = ["eq", "ne", "lt", "le", "gt", "ge"]

# Units in the last place of the type that a function may be off; 1 where not named. f64 functions
# come from the host's C library or from series that are good to more than f32 needs.
ULPS = {"erf_inv": 8, "digamma": 8, "lgamma": 4, "bessel_i1e": 4, "acosh": 4, "asinh": 4,
        "atanh": 4, "tan": 4, "sinh": 4, "cosh": 4, "erfc": 16, "power": 2, "logistic": 3,
        "rsqrt": 2, "tanh": 3, "erf": 2, "cbrt": 2, "atan2": 2, "exponential_minus_one": 3,
        "log_plus_one": 2}
F64_ULPS = {"erf_inv": 1 << 8, "digamma": 1 << 10, "bessel_i1e": 1 << 6, "lgamma": 1 << 6,
            "erfc": 1 << 6}


# Where relative accuracy is asked of small results too.
PRECISE = {"bessel_i1e": scipy.special.i1e, "erf_inv": scipy.special.erfinv,
           "logistic": scipy.special.expit}


def group(dtype: DType) -> str:
    return "float" if dtype.is_float else "integer" if dtype.is_integer else "pred"


def values(dtype: DType) -> Array:
    """Corner cases, then random values of all magnitudes."""
    rng = np.random.default_rng(7)
    if dtype is DType.PRED:
        return np.array([False, True])
    if dtype.is_integer:
        info = np.iinfo(dtype.numpy)
        corners = [0, 1, 2, 3, 7, 8, 31, 32, 63, 64, info.max, info.max - 1, info.min, info.min + 1]
        if dtype.is_signed:
            corners += [-1, -2, -3, -7]
        drawn = rng.integers(info.min, info.max, 30, dtype=dtype.numpy, endpoint=True)
        return np.concatenate([np.array(corners, dtype.numpy), drawn])
    info = ml_dtypes.finfo(dtype.numpy)
    corners = [0.0, -0.0, 0.5, -0.5, 1.0, -1.0, 1.5, 2.5, -2.5, 2.0, 3.0, -3.0, 10.0, 0.999, -0.25,
               np.inf, -np.inf, np.nan, float(info.max), float(info.tiny), -float(info.tiny) / 4]
    drawn = rng.normal(size=24) * 10.0 ** rng.integers(-3, 3, 24)
    return np.concatenate([np.array(corners), drawn]).astype(dtype.numpy)


def source(dtype: DType) -> tuple[str, list[tuple[str, int]]]:
    """A kernel that writes one buffer per op, and the ops with their number of operands."""
    g, t = group(dtype), storage(dtype)
    kinds = [(k, 1) for k in UNARY[g]] + [(k, 2) for k in BINARY[g]]
    kinds += [(f"compare_{d}", 2) for d in COMPARE] + [("total_order", 1)]
    calls = [f"op_{k}({'a' if n == 1 else 'a, b'})" for k, n in kinds]
    lines = [f"static_cast<decltype({c})*>(p.buf[{i + 2}])[i] = {c};" for i, c in enumerate(calls)]
    body = "\n    ".join(lines)
    return f"""
#include "jaxmono/numeric.cuh"
using namespace jaxmono;
struct Params {{ void* buf[{len(kinds) + 2}]; }};
extern "C" __global__ void test_kernel(const __grid_constant__ Params p) {{
  const int n = COUNT, step = num_blocks() * num_threads();
  for (int i = block_id() * num_threads() + thread_id(); i < n * n; i += step) {{
    const {t} a = static_cast<const {t}*>(p.buf[0])[i / n];
    const {t} b = static_cast<const {t}*>(p.buf[1])[i % n];
    {body}
  }}
}}
#ifdef JAXMONO_EMULATE
JAXMONO_EMULATE_MAIN(test_kernel, Params, {len(kinds) + 2}, 32, 0)
#endif
""", kinds


def reference(kind: str, dtype: DType, a: Array, b: Array) -> Array:
    """The op in NumPy, rounded once to the result's type."""
    if kind.startswith("compare_"):
        return np.asarray(elementwise.COMPARE[kind[8:].upper()](a, b))
    if kind == "total_order":
        return elementwise.total_order_key(a) if dtype.is_float else a
    if kind == "next_after":
        return np.nextafter(a, b)
    args = (a,) if kind in UNARY[group(dtype)] else (a, b)
    if not dtype.is_float:
        f = elementwise.function(kind, dtype)
        assert f is not None
        return np.asarray(f(*args))
    wide = [x.astype(np.float64) for x in args]
    f = PRECISE.get(kind) or elementwise.SPECIAL.get(kind) or elementwise.function(kind, dtype)
    assert f is not None
    out = np.asarray(f(*wide))
    return out if out.dtype == np.bool_ else out.astype(dtype.numpy)


def ordinal(x: Array) -> Array:
    """Integers whose difference counts the representable numbers in between; -0 and 0 are equal."""
    bits = x.view(f"i{x.dtype.itemsize}").astype(object if x.dtype.itemsize == 8 else np.int64)
    least = -(2 ** (8 * x.dtype.itemsize - 1))
    return np.where(bits < 0, least - bits, bits)


def assert_close(kind: str, dtype: DType, got: Array, want: Array, a: Array, b: Array) -> None:
    if got.dtype.kind in "biu" and want.dtype.kind in "biu":
        bad = got != want
    else:
        limit = ULPS.get(kind, 1)
        if dtype is DType.F64:
            limit = max(limit, F64_ULPS.get(kind, 1))
        apart = np.abs(ordinal(got) - ordinal(want)) > limit
        # Where f64 overflows less early than the type itself both ways of rounding are right.
        bad = np.where(np.isnan(want), ~np.isnan(got), np.isnan(got) | apart).astype(bool)
        # Zeros of polynomials and of lgamma: an absolute bound.
        tiny = 4 * float(ml_dtypes.finfo(dtype.numpy).eps) if kind in ("lgamma", "digamma") else 0.0
        with np.errstate(all="ignore"):
            bad &= ~(np.abs(got.astype(np.float64) - want.astype(np.float64)) <= tiny)
    at = np.flatnonzero(bad)
    flat = [x.ravel() for x in (a, b, got, want)]
    shown = ["{}({!r}, {!r}) = {!r}, not {!r}".format(kind, *(x[i] for x in flat)) for i in at[:5]]
    assert not shown, f"{len(at)} of {bad.size}: " + "; ".join(shown)


@pytest.mark.sampled(4)
@pytest.mark.parametrize("dtype", (*FLOATS, *INTEGERS, DType.PRED), ids=lambda d: d.value)
def test_every_kind_agrees_with_numpy(dtype: DType) -> None:
    text, kinds = source(dtype)
    x = values(dtype)
    n = x.size
    a, b = (np.ascontiguousarray(v) for v in np.broadcast_arrays(x[:, None], x[None, :]))
    with np.errstate(all="ignore"):
        wants = [reference(kind, dtype, a, b) for kind, _ in kinds]
    outs = [np.zeros((n, n), w.dtype) for w in wants]
    emulate(text.replace("COUNT", str(n))).run([x, x, *outs])
    for (kind, _), got, want in zip(kinds, outs, wants, strict=True):
        assert_close(kind, dtype, got, want, a, b)


@pytest.mark.sampled(17)
@pytest.mark.parametrize(
    ("dtype", "arch"), [*((t, "sm_90a") for t in (
        DType.F32, DType.F64, DType.BF16, DType.S8, DType.U64, DType.PRED, DType.F8E4M3FN)),
        (DType.F8E5M2, "sm_80")],
    ids=str)
def test_every_kind_compiles_with_nvrtc(dtype: DType, arch: str) -> None:
    text, _ = source(dtype)
    binary = nvrtc.compile_cuda(headers.bundle(text.replace("COUNT", "8")), arch)
    assert binary.cubin.startswith(b"\x7fELF")


ALL = (*FLOATS, *INTEGERS, DType.PRED)


def test_convert_between_all_types() -> None:
    pairs = [(s, t) for s in ALL for t in ALL]
    lines = "\n    ".join(
        f"if (i < {values(s).size}) static_cast<{storage(t)}*>(p.buf[{2 * k + 1}])[i] = "
        f"convert<{storage(t)}>(static_cast<const {storage(s)}*>(p.buf[{2 * k}])[i]);"
        for k, (s, t) in enumerate(pairs))
    kernel = emulate(f"""
#include "jaxmono/types.cuh"
using namespace jaxmono;
struct Params {{ void* buf[{2 * len(pairs)}]; }};
extern "C" __global__ void test_kernel(const __grid_constant__ Params p) {{
  const int i = thread_id();
    {lines}
}}
JAXMONO_EMULATE_MAIN(test_kernel, Params, {2 * len(pairs)}, 64, 0)
""")
    buffers: list[Array] = []
    wants: list[Array] = []
    for s, t in pairs:
        x = values(s)
        buffers += [x, np.zeros(x.size, t.numpy)]
        with np.errstate(all="ignore"):
            if t is DType.PRED:
                want = x != 0
            elif s.is_float and t.is_integer:
                want = elementwise._float_to_integer(x.astype(np.float64), t)
            elif t is DType.BF16 and s is not t:
                want = x.astype(np.float32).astype(t.numpy)
            else:
                want = x.astype(t.numpy)
        wants.append(np.asarray(want))
    kernel.run(buffers, blocks=1)
    for (s, t), got, want in zip(pairs, buffers[1::2], wants, strict=True):
        same = (got == want) | ((got != got) & (want != want))
        assert same.all(), (s, t, values(s)[~same], got[~same], want[~same])


def test_all_16_bit_floats_round_trip_and_round_to_even() -> None:
    kernel = emulate("""
#include "jaxmono/types.cuh"
using namespace jaxmono;
struct Params { void* buf[6]; };
extern "C" __global__ void test_kernel(const __grid_constant__ Params p) {
  for (int i = thread_id(); i < 65536; i += num_threads()) {
    const uint16_t bits = static_cast<uint16_t>(i);
    static_cast<float*>(p.buf[0])[i] = to_float(bf16{bits});
    static_cast<float*>(p.buf[1])[i] = to_float(f16{bits});
    static_cast<bf16*>(p.buf[2])[i] = from_float<bf16>(to_float(bf16{bits}));
    static_cast<f16*>(p.buf[3])[i] = from_float<f16>(to_float(f16{bits}));
    const float* x = static_cast<const float*>(p.buf[4]);
    static_cast<f16*>(p.buf[5])[i] = from_float<f16>(x[i]);
  }
}
JAXMONO_EMULATE_MAIN(test_kernel, Params, 6, 32, 0)
""")
    bits = np.arange(65536, dtype=np.uint16)
    rng = np.random.default_rng(0)
    # Neighbourhoods of f16 values: halves between them are the ties.
    x = (np.nan_to_num(bits.view(np.float16).astype(np.float32), posinf=7e4, neginf=-7e4)
         * (1 + rng.integers(-4, 5, 65536) * np.float32(2.0 ** -12))).astype(np.float32)
    outs = [np.zeros(65536, np.float32), np.zeros(65536, np.float32),
            np.zeros(65536, ml_dtypes.bfloat16), np.zeros(65536, np.float16)]
    narrowed = np.zeros(65536, np.float16)
    kernel.run([*outs, x, narrowed], blocks=1)
    for out, want in ((outs[0], bits.view(ml_dtypes.bfloat16)), (outs[1], bits.view(np.float16)),
                      (outs[2], bits.view(ml_dtypes.bfloat16)), (outs[3], bits.view(np.float16))):
        np.testing.assert_array_equal(out.astype(np.float32), want.astype(np.float32))
    with np.errstate(all="ignore"):
        np.testing.assert_array_equal(narrowed, x.astype(np.float16))


@pytest.mark.parametrize(("exponent", "mantissa"), [(5, 10), (8, 7), (4, 3), (8, 23), (8, 10)])
def test_reduce_precision(exponent: int, mantissa: int) -> None:
    import jax.lax

    kernel = emulate(f"""
#include "jaxmono/numeric.cuh"
using namespace jaxmono;
struct Params {{ void* buf[2]; }};
extern "C" __global__ void test_kernel(const __grid_constant__ Params p) {{
  const int i = thread_id();
  static_cast<float*>(p.buf[1])[i] =
      op_reduce_precision(static_cast<const float*>(p.buf[0])[i], {exponent}, {mantissa});
}}
JAXMONO_EMULATE_MAIN(test_kernel, Params, 2, 256, 0)
""")
    rng = np.random.default_rng(1)
    x = (rng.normal(size=256) * 10.0 ** rng.integers(-42, 38, 256)).astype(np.float32)
    x[:8] = [0, -0.0, np.inf, -np.inf, np.nan, 65520, 65519, 3e-8]
    out = np.zeros(256, np.float32)
    kernel.run([x, out], blocks=1)
    # Of fewer exponents XLA's CPU code treats subnormal inputs as zeros.
    want = np.asarray(jax.lax.reduce_precision(x, exponent, mantissa))
    normal = (np.abs(x) >= np.finfo(np.float32).tiny) | (x == 0) | ~np.isfinite(x) | (exponent == 8)
    np.testing.assert_array_equal(out[normal], want[normal])


def test_clamp_and_select() -> None:
    kernel = emulate("""
#include "jaxmono/numeric.cuh"
using namespace jaxmono;
struct Params { void* buf[2]; };
extern "C" __global__ void test_kernel(const __grid_constant__ Params p) {
  const float x = static_cast<const float*>(p.buf[0])[thread_id()];
  float* out = static_cast<float*>(p.buf[1]);
  out[thread_id()] = op_clamp(-1.0f, x, 1.0f);
  out[32 + thread_id()] = op_select(x > 0.0f, x, 7.0f);
}
JAXMONO_EMULATE_MAIN(test_kernel, Params, 2, 32, 0)
""")
    x = np.linspace(-2, 2, 32, dtype=np.float32)
    x[3] = np.nan
    out = np.zeros(64, np.float32)
    kernel.run([x, out], blocks=1)
    np.testing.assert_array_equal(out[:32], np.minimum(np.maximum(x, -1), 1))
    np.testing.assert_array_equal(out[32:], np.where(x > 0, x, np.float32(7)))


def test_zeta_and_polygamma() -> None:
    kernel = emulate("""
#include "jaxmono/numeric.cuh"
using namespace jaxmono;
struct Params { void* buf[4]; };
extern "C" __global__ void test_kernel(const __grid_constant__ Params p) {
  const int i = thread_id();
  const double a = static_cast<const double*>(p.buf[0])[i];
  const double b = static_cast<const double*>(p.buf[1])[i];
  static_cast<double*>(p.buf[2])[i] = op_zeta(a, b);
  static_cast<float*>(p.buf[3])[i] =
      op_polygamma(static_cast<float>(i % 5), static_cast<float>(b));
}
JAXMONO_EMULATE_MAIN(test_kernel, Params, 4, 64, 0)
""")
    rng = np.random.default_rng(5)
    s, q = 1 + 6 * rng.random(64), 0.1 + 9 * rng.random(64)
    s[:3], q[:3] = (0.5, 1.0, 3.0), (2.0, 2.0, -2.0)
    z, g = np.zeros(64), np.zeros(64, np.float32)
    kernel.run([s, q, z, g], blocks=1)
    assert np.isnan(z[0]) and np.isinf(z[1]) and np.isinf(z[2])
    np.testing.assert_allclose(z[3:], scipy.special.zeta(s[3:], q[3:]), rtol=1e-12)
    order = np.arange(64) % 5
    want = scipy.special.polygamma(order, q.astype(np.float32).astype(np.float64))
    np.testing.assert_allclose(g[3:], want[3:], rtol=1e-5)
