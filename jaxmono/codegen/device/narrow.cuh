// Elementary functions for values that are rounded to bf16 or f16 afterwards (2^-9, 2^-12): relative
// error below 2^-16 wherever the result is a normal f32. NaN stays NaN, infinities give the exact
// limits.
#pragma once
#include "jaxmono/platform.cuh"
#include "jaxmono/types.cuh"

namespace jaxmono {

#ifdef JAXMONO_EMULATE
JM_DEVICE float fast_exp2(float x) { return exp2f(x); }
JM_DEVICE float fast_reciprocal(float x) { return 1.0f / x; }
#else
JM_DEVICE float fast_exp2(float x) {
  float y;
  asm("ex2.approx.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}
JM_DEVICE float fast_reciprocal(float x) {
  float y;
  asm("rcp.approx.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}
#endif

constexpr float LOG2_E = 1.4426950408889634f;

JM_DEVICE float op_narrow_exponential(float x) { return fast_exp2(x * LOG2_E); }

JM_DEVICE float op_narrow_logistic(float x) {
  return fast_reciprocal(1.0f + fast_exp2(x * -LOG2_E));
}

// erfc(x) = t exp(-x^2 + P(t)), t = 1 / (1 + x / 2), for x >= 0 (Press et al., Numerical Recipes,
// section 6.2: fractional error below 1.2e-7 everywhere); erfc(-x) = 2 - erfc(x).
JM_DEVICE float op_narrow_erfc(float x) {
  const float a = fabsf(x), t = fast_reciprocal(fmaf(0.5f, a, 1.0f));
  float p = 0.17087277f;
  p = fmaf(p, t, -0.82215223f);
  p = fmaf(p, t, 1.48851587f);
  p = fmaf(p, t, -1.13520398f);
  p = fmaf(p, t, 0.27886807f);
  p = fmaf(p, t, -0.18628806f);
  p = fmaf(p, t, 0.09678418f);
  p = fmaf(p, t, 0.37409196f);
  p = fmaf(p, t, 1.00002368f);
  p = fmaf(p, t, -1.26551223f);
  const float y = t * fast_exp2(fmaf(-a, a, p) * LOG2_E);
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
