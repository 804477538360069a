// Elementary functions for values that are rounded to bf16 or f16 afterwards (2^-9, 2^-12): relative
// error below 2^-16 wherever the result is a normal f32 (erfc beyond 4, where it is below 2^-25: 2^-13).
// Those with bf16 in their names are for bf16 alone, those with f16 for either; what they keep is said
// there. NaN stays NaN, infinities give the exact limits (gelu of -inf is JAX's NaN). What is subnormal
// may be 0, but not in op_narrowed_exponential, a quotient and a reciprocal: those are also for f32
// values that are rounded some products later.
//
// fast_divide and fast_sqrt are also those of f32 itself.
//
// A special function takes a warp 8 cycles of its quarter of an SM, a product one.
// scripts/fit_functions.py makes the coefficients of reciprocal_of_sum, op_bf16_softplus and gelu_of.
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
JM_DEVICE float fast_log2_subnormal(float x) { return log2f(x); }
JM_DEVICE float fast_divide(float x, float y) { return x / y; }
JM_DEVICE float fast_sqrt(float x) { return sqrtf(x); }
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
JM_DEVICE float fast_log2_subnormal(float x) {
  float y;
  asm("lg2.approx.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}
// Right to 2 units in the last place over the whole range, and without a slow path, which the division
// proper takes for tiny and huge operands (XLA divides so on a GPU, too).
JM_DEVICE float fast_divide(float x, float y) {
  float z;
  asm("div.full.f32 %0, %1, %2;" : "=f"(z) : "f"(x), "f"(y));
  return z;
}
JM_DEVICE float fast_sqrt(float x) {
  float y;
  asm("sqrt.approx.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}
#endif

constexpr float LOG2_E = 1.4426950408889634f, LN_2 = 0.69314718055994531f;

JM_DEVICE float op_narrow_divide(float x, float y) { return fast_divide(x, y); }
JM_DEVICE float op_narrow_reciprocal(float x) { return fast_reciprocal(x); }

JM_DEVICE float op_narrow_exponential(float x) { return fast_exp2(x * LOG2_E); }
JM_DEVICE float op_narrowed_exponential(float x) { return fast_exp2_subnormal(x * LOG2_E); }

// C[0] + C[1] x + ..., a product and a sum each.
template <int N>
JM_DEVICE float polynomial(const float (&C)[N], float x) {
  float p = C[N - 1];
#pragma unroll
  for (int i = N - 2; i >= 0; --i) p = fmaf(p, x, C[i]);
  return p;
}

// 1 / (1 + t) on [0, 1], right at 1: to 2^-11.5 for bf16, 2^-16.7 for f16.
template <bool BF16>
JM_DEVICE float reciprocal_of_sum(float t) {
  if constexpr (BF16) {
    constexpr float C[] = {0.99967552f, -0.98384833f, 0.8603286f, -0.52293616f, 0.14678037f};
    return polynomial(C, t);
  } else {
    constexpr float C[] = {0.99999062f, -0.99908914f, 0.98484514f, -0.90045225f,
                           0.66235197f, -0.31751556f, 0.069869156f};
    return polynomial(C, t);
  }
}

// 1 / (1 + exp(-scale x)): |[scale x > 0] - t / (1 + t)| of t = exp(-|scale x|).
template <bool BF16>
JM_DEVICE float logistic_of(float x, float scale) {
  const float t = fast_exp2(fabsf(x) * (fabsf(scale) * -LOG2_E));
  const float positive = (scale > 0.0f ? x > 0.0f : x < 0.0f) ? 1.0f : 0.0f;
  return fabsf(fmaf(-t, reciprocal_of_sum<BF16>(t), positive));
}
JM_DEVICE float op_bf16_logistic(float x, float scale) { return logistic_of<true>(x, scale); }
JM_DEVICE float op_f16_logistic(float x, float scale) { return logistic_of<false>(x, scale); }
JM_DEVICE float op_narrow_logistic(float x) { return op_f16_logistic(x, 1.0f); }

// The hardware's alone, with an absolute error of 2^-22 near 1: of a bf16 next to 1 that is 2^-14 of the
// logarithm, of what is not rounded yet less than rounding it would change.
JM_DEVICE float op_bf16_log(float x) { return fast_log2_subnormal(x) * LN_2; }

// max(x, 0) + log(1 + t) of t = exp(-|x|): t times a minimax fit of log(1 + t) / t on [0, 1], to 2^-14
// for bf16; the one for f16 is exact at both ends.
template <int N>
JM_DEVICE float softplus_of(float x, const float (&C)[N]) {
  const float t = fast_exp2(fabsf(x) * -LOG2_E);
  return fmaf(polynomial(C, t), t, fmaxf(x, 0.0f));
}
JM_DEVICE float op_bf16_softplus(float x) {
  constexpr float C[] = {0.99994327f, -0.49697775f, 0.30630073f, -0.15742692f, 0.041347162f};
  return softplus_of(x, C);
}
JM_DEVICE float op_f16_softplus(float x) {
  constexpr float C[] = {1.0f, -0.49951057f, 0.32590248f, -0.21129941f, 0.10212944f, -0.024074747f};
  return softplus_of(x, C);
}

// 1 + x has no digits of a small x left: the Taylor series there.
JM_DEVICE float log_near_one(float x) {
  return x * fmaf(x, fmaf(x, fmaf(x, -0.25f, 0.33333333f), -0.5f), 1.0f);
}
JM_DEVICE float op_narrow_log_plus_one(float x) {
  return fabsf(x) < 0.0625f ? log_near_one(x) : fast_log2(1.0f + x) * LN_2;
}
// Likewise the hardware's logarithm of what is near 1, which has an absolute error of 2^-22.
JM_DEVICE float op_narrow_log(float x) {
  const float beyond = x - 1.0f;
  return fabsf(beyond) < 0.0625f ? log_near_one(beyond) : fast_log2_subnormal(x) * LN_2;
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

// x / 2 erfc(-scale x) for scale of 2^-16 to 2^16: x |[x > 0] - 2^p(a)| of a = |scale x|. p, as C[0] a +
// C[1] a^2 + ... - 1, is a minimax fit of log2 of the half of erfc(a), for what gelu makes of it: far out,
// where that is next to nothing, it is less exact. Beyond 6 sigma (2^-27; sigma: sqrt(2) a is 1) it goes
// its own way, faster to 0 in the end: the last coefficient is negative. The scale is folded into the
// coefficients. gelu of -inf is -inf * 0.
template <int N>
JM_DEVICE float gelu_of(float x, float scale, const float (&C)[N]) {
  float c[N], power = scale;
#pragma unroll
  for (int i = 0; i < N; ++i, power *= scale) c[i] = C[i] * power;
  const float a = fabsf(x), half = fast_exp2(fmaf(polynomial(c, a), a, -1.0f));
  return x * fabsf((x > 0.0f ? 1.0f : 0.0f) - half);
}

// To 2^-12.4 up to 4 sigma, 2^-8.4 up to 6.
JM_DEVICE float op_bf16_gelu(float x, float scale) {
  constexpr float C[] = {-1.6247117f, -0.93136407f, -0.13245524f, 0.021478462f, -0.0015326706f};
  return gelu_of(x, scale, C);
}

// To 2^-17.5 up to 4 sigma, 2^-14 up to 6.
JM_DEVICE float op_f16_gelu(float x, float scale) {
  constexpr float C[] = {-1.6280435f, -0.91721105f, -0.15215897f, 0.033658954f,
                         -0.0051093413f, 4.6124814e-4f, -1.8262497e-5f};
  return gelu_of(x, scale, C);
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
