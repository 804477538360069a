// Elementary functions for values that are rounded to bf16 or f16 afterwards (2^-9, 2^-12): relative
// error below 2^-16 wherever the result is a normal f32 (erfc beyond 4, where it is below 2^-25: 2^-13).
// op_bf16_gelu is for bf16 alone: 2^-14 (2^-11 beyond 3.5). NaN stays NaN, infinities give the exact
// limits (gelu of -inf is JAX's NaN). What is subnormal may be 0, but not in op_narrowed_exponential, a
// quotient and a reciprocal: those are also for f32 values that are rounded some products later.
#pragma once
#include "jaxmono/platform.cuh"
#include "jaxmono/types.cuh"

namespace jaxmono {

#ifdef JAXMONO_EMULATE
JM_DEVICE float fast_exp2(float x) { return exp2f(x); }
JM_DEVICE float fast_exp2_subnormal(float x) { return exp2f(x); }
JM_DEVICE float fast_reciprocal(float x) { return 1.0f / x; }
JM_DEVICE float fast_reciprocal_ftz(float x) { return 1.0f / x; }
JM_DEVICE float fast_log2(float x) { return log2f(x); }
JM_DEVICE float fast_divide(float x, float y) { return x / y; }
#else
JM_DEVICE float fast_exp2(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));  // what is subnormal is 0: 3 instructions less
  return y;
}
JM_DEVICE float fast_exp2_subnormal(float x) {
  float y;
  asm("ex2.approx.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}
JM_DEVICE float fast_reciprocal(float x) {
  float y;
  asm("rcp.approx.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}
// What is subnormal is 0: RCP alone, without the 4 instructions around it that scale.
JM_DEVICE float fast_reciprocal_ftz(float x) {
  float y;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
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
#endif

constexpr float LOG2_E = 1.4426950408889634f, LN_2 = 0.69314718055994531f;

JM_DEVICE float op_narrow_divide(float x, float y) { return fast_divide(x, y); }
JM_DEVICE float op_narrow_reciprocal(float x) { return fast_reciprocal(x); }

JM_DEVICE float op_narrow_exponential(float x) { return fast_exp2(x * LOG2_E); }
JM_DEVICE float op_narrowed_exponential(float x) { return fast_exp2_subnormal(x * LOG2_E); }

JM_DEVICE float op_narrow_logistic(float x) {
  return fast_reciprocal_ftz(1.0f + fast_exp2(x * -LOG2_E));
}

// max(x, 0) + log(1 + t) of t = exp(-|x|): t times a minimax fit of log(1 + t) / t on [0, 1],
// exact at both ends.
JM_DEVICE float op_narrow_softplus(float x) {
  const float t = fast_exp2(fabsf(x) * -LOG2_E);
  float q = -0.024074747f;
  q = fmaf(q, t, 0.10212944f);
  q = fmaf(q, t, -0.21129941f);
  q = fmaf(q, t, 0.32590248f);
  q = fmaf(q, t, -0.49951057f);
  q = fmaf(q, t, 1.0f);
  return fmaf(q, t, fmaxf(x, 0.0f));
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
  const float far = fmaf(-2.0f, fast_reciprocal_ftz(1.0f + fast_exp2(x * (2.0f * LOG2_E))), 1.0f);
  return s < 0.0625f ? x * p : far;
}

// (1 + tanh(x)) / 2, the factor of gelu's approximation.
JM_DEVICE float op_narrow_tanh_gate(float x) {
  return fast_reciprocal_ftz(1.0f + fast_exp2(x * (-2.0f * LOG2_E)));
}

// log2(erfc(a)) / a for a >= 0, so that erfc(0) is 1: -a log2(e) and a minimax fit of
// log2(exp(a^2) erfc(a)) on [0, 9.3], eight times as good below 4 as beyond. It falls without end:
// from 10.1 on erfc is 0.
JM_DEVICE float log2_erfc_slope(float a) {
  float p = -4.9895903e-8f;
  p = fmaf(p, a, 2.5164286e-6f);
  p = fmaf(p, a, -5.5712593e-5f);
  p = fmaf(p, a, 7.1773806e-4f);
  p = fmaf(p, a, -6.0373754e-3f);
  p = fmaf(p, a, 3.5492897e-2f);
  p = fmaf(p, a, -1.5406647e-1f);
  p = fmaf(p, a, 5.2640361e-1f - LOG2_E);
  return fmaf(p, a, -1.6281891f);
}

// One special function; erfc(-a) = 2 - erfc(a).
JM_DEVICE float op_narrow_erfc(float x) {
  const float a = fabsf(x), y = fast_exp2(log2_erfc_slope(a) * a);
  return x < 0.0f ? 2.0f - y : y;
}

// From the half of an erfc of |x|. It is 0 at -inf: NaN, as in JAX.
JM_DEVICE float gelu_of_half(float x, float y) { return x * (x < 0.0f ? y : 1.0f - y); }

// x / 2 erfc(-scale x) for scale > 0: the half is the exponent's.
JM_DEVICE float op_narrow_gelu(float x, float scale) {
  const float a = fabsf(x * scale);
  return gelu_of_half(x, fast_exp2(fmaf(log2_erfc_slope(a), a, -1.0f)));
}

// The same from one product less, minimax on [0, 9.3]: erfc is right to 2^-14.4 below 3.5 (where it is
// 2^-20) and to 2^-11.4 beyond, for gelu alone: its tail is next to nothing, a user's erfc is not.
// The scale (2^-8 to 2^8, a literal) is folded into the coefficients, so that the clamp takes the
// place of its product. There has to be one, as the last coefficient is positive: at 10.5, erfc is
// 2^-163, and y 0.
JM_DEVICE float op_bf16_gelu(float x, float scale) {
  constexpr float LOG2_ERFC[] = {-1.627304f,    -9.1984379e-1f, -1.4912561e-1f, 3.2180943e-2f,
                                 -4.824975e-3f, 4.6357693e-4f,  -2.533895e-5f,  5.9481437e-7f};
  float c[8], power = scale;
#pragma unroll
  for (int i = 0; i < 8; ++i, power *= scale) c[i] = LOG2_ERFC[i] * power;
  const float a = fminf(fabsf(x), 10.5f / scale);
  float p = c[7];
#pragma unroll
  for (int i = 6; i >= 0; --i) p = fmaf(p, a, c[i]);
  return gelu_of_half(x, fast_exp2(fmaf(p, a, -1.0f)));
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
