// Elementary and special functions. See numeric.cuh for the list.
#pragma once
#include "jaxmono/special.cuh"
#include "jaxmono/types.cuh"
#include "jaxmono/waves.cuh"

namespace jaxmono {

#define JM_FUNCTION(NAME, F32, F64)                                                       \
  template <class T>                                                                      \
  JM_DEVICE T op_##NAME(T x) {                                                            \
    if constexpr (is_narrow<T>) return convert<T>(op_##NAME(convert<float>(x)));          \
    else if constexpr (is_same<T, float>) return F32(x);                                  \
    else return F64(x);                                                                   \
  }
JM_FUNCTION(acos, acosf, acos)
JM_FUNCTION(acosh, acoshf, acosh)
JM_FUNCTION(asin, asinf, asin)
JM_FUNCTION(asinh, asinhf, asinh)
JM_FUNCTION(atan, atanf, atan)
JM_FUNCTION(atanh, atanhf, atanh)
JM_FUNCTION(bessel_i1e, special::bessel_i1e, special::bessel_i1e)
JM_FUNCTION(cbrt, cbrtf, cbrt)
JM_FUNCTION(ceil, ceilf, ceil)
JM_FUNCTION(cosh, coshf, cosh)
JM_FUNCTION(cosine, wave<true>, cos)
JM_FUNCTION(digamma, special::digamma, special::digamma)
JM_FUNCTION(erf, erff, erf)
JM_FUNCTION(erf_inv, special::erf_inv, special::erf_inv)
JM_FUNCTION(erfc, erfcf, erfc)
JM_FUNCTION(exponential, expf, exp)
JM_FUNCTION(exponential_minus_one, expm1f, expm1)
JM_FUNCTION(floor, floorf, floor)
JM_FUNCTION(lgamma, special::log_gamma, special::log_gamma)
JM_FUNCTION(log, logf, log)
JM_FUNCTION(log_plus_one, log1pf, log1p)
JM_FUNCTION(logistic, special::logistic, special::logistic)
JM_FUNCTION(round_nearest_afz, roundf, round)
JM_FUNCTION(round_nearest_even, rintf, rint)
JM_FUNCTION(rsqrt, special::inverse_sqrt, special::inverse_sqrt)
JM_FUNCTION(sine, wave<false>, sin)
JM_FUNCTION(sinh, sinhf, sinh)
JM_FUNCTION(sqrt, fast_sqrt, sqrt)
JM_FUNCTION(tan, tanf, tan)
JM_FUNCTION(tanh, tanhf, tanh)
#undef JM_FUNCTION

#define JM_FUNCTION2(NAME, F32, F64)                                                      \
  template <class T>                                                                      \
  JM_DEVICE T op_##NAME(T a, T b) {                                                       \
    if constexpr (is_narrow<T>)                                                           \
      return convert<T>(op_##NAME(convert<float>(a), convert<float>(b)));                 \
    else if constexpr (is_same<T, float>) return F32(a, b);                               \
    else return F64(a, b);                                                                \
  }
JM_FUNCTION2(atan2, atan2f, atan2)
JM_FUNCTION2(polygamma, special::polygamma, special::polygamma)
JM_FUNCTION2(zeta, special::zeta, special::zeta)
#undef JM_FUNCTION2

}  // namespace jaxmono
