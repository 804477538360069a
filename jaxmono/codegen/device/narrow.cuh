// Elementary functions for values that are rounded to bf16 or f16 afterwards (2^-9, 2^-12): relative
// error below 2^-16 wherever the result is a normal f32 (erfc beyond 4, where it is below 2^-25: 2^-13).
// NaN stays NaN, infinities give the exact limits.
#pragma once
#include "jaxmono/platform.cuh"
#include "jaxmono/types.cuh"

namespace jaxmono {

#ifdef JAXMONO_EMULATE
JM_DEVICE float fast_exp2(float x) { return exp2f(x); }
JM_DEVICE float fast_reciprocal(float x) { return 1.0f / x; }
JM_DEVICE float fast_log2(float x) { return log2f(x); }
JM_DEVICE float fast_divide(float x, float y) { return x / y; }
JM_DEVICE float min_nan(float x, float y) { return x != x ? x : fminf(x, y); }
#else
JM_DEVICE float fast_exp2(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));  // what is subnormal is 0: 3 instructions less
  return y;
}
JM_DEVICE float fast_reciprocal(float x) {
  float y;
  asm("rcp.approx.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}
JM_DEVICE float fast_log2(float x) {
  float y;
  asm("lg2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}
// Right to 2 units in the last place over the whole range, and without a slow path, which the division
// proper takes for tiny and huge operands (XLA divides so on a GPU, too).
JM_DEVICE float fast_divide(float x, float y) {
  float z;
  asm("div.full.f32 %0, %1, %2;" : "=f"(z) : "f"(x), "f"(y));
  return z;
}
// NaN if one of them is.
JM_DEVICE float min_nan(float x, float y) {
  float z;
  asm("min.NaN.f32 %0, %1, %2;" : "=f"(z) : "f"(x), "f"(y));
  return z;
}
#endif

constexpr float LOG2_E = 1.4426950408889634f, LN_2 = 0.69314718055994531f;

JM_DEVICE float op_narrow_divide(float x, float y) { return fast_divide(x, y); }
JM_DEVICE float op_narrow_reciprocal(float x) { return fast_reciprocal(x); }

JM_DEVICE float op_narrow_exponential(float x) { return fast_exp2(x * LOG2_E); }

JM_DEVICE float op_narrow_logistic(float x) {
  return fast_reciprocal(1.0f + fast_exp2(x * -LOG2_E));
}

// 1 + x has no digits of a small x left: the Taylor series there.
JM_DEVICE float op_narrow_log_plus_one(float x) {
  const float near = x * fmaf(x, fmaf(x, fmaf(x, -0.25f, 0.33333333f), -0.5f), 1.0f);
  return fabsf(x) < 0.0625f ? near : fast_log2(1.0f + x) * LN_2;
}

// Likewise 1 - 2 / (1 + exp(2x)).
JM_DEVICE float op_narrow_tanh(float x) {
  const float s = x * x;
  float p = 0.021869488f;
  p = fmaf(p, s, -0.053968254f);
  p = fmaf(p, s, 0.13333333f);
  p = fmaf(p, s, -0.33333333f);
  p = fmaf(p, s, 1.0f);
  const float far = fmaf(-2.0f, fast_reciprocal(1.0f + fast_exp2(x * (2.0f * LOG2_E))), 1.0f);
  return s < 0.0625f ? x * p : far;
}

// log2(erfc(a)) for a >= 0 as a polynomial without a constant, so that erfc(0) is 1: -a^2 log2(e) and a
// minimax fit of log2(exp(a^2) erfc(a)) on [0, 9.3], eight times as good below 4 as beyond. From 10.5
// on the result is 0. One special function and 9 products; erfc(-a) = 2 - erfc(a).
JM_DEVICE float op_narrow_erfc(float x) {
  const float a = min_nan(fabsf(x), 10.5f);
  float p = -4.9895903e-8f;
  p = fmaf(p, a, 2.5164286e-6f);
  p = fmaf(p, a, -5.5712593e-5f);
  p = fmaf(p, a, 7.1773806e-4f);
  p = fmaf(p, a, -6.0373754e-3f);
  p = fmaf(p, a, 3.5492897e-2f);
  p = fmaf(p, a, -1.5406647e-1f);
  p = fmaf(p, a, 5.2640361e-1f - LOG2_E);
  p = fmaf(p, a, -1.6281891f);
  const float y = fast_exp2(p * a);
  return x < 0.0f ? 2.0f - y : y;
}

// 1 - erfc has no digits left near zero: the Taylor series there.
JM_DEVICE float op_narrow_erf(float x) {
  const float s = x * x;
  float p = 0.0052239776f;
  p = fmaf(p, s, -0.026866171f);
  p = fmaf(p, s, 0.11283792f);
  p = fmaf(p, s, -0.37612639f);
  p = fmaf(p, s, 1.1283792f);
  return s < 0.25f ? x * p : 1.0f - op_narrow_erfc(x);
}

}  // namespace jaxmono
