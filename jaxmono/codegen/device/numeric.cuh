// One function per element-wise op of hlo/ops.py, named op_<kind>, with XLA's semantics. T is any
// element type for which StableHLO has the op; bf16 and f16 compute in float and round once.
//
//   floats     abs add subtract multiply divide remainder power atan2 negate sign square sqrt rsqrt cbrt
//              exponential exponential_minus_one log log_plus_one logistic sine cosine tan asin acos
//              atan sinh cosh tanh asinh acosh atanh erf erfc erf_inv lgamma digamma bessel_i1e zeta
//              polygamma floor ceil round_nearest_afz round_nearest_even is_finite is_inf is_pos_inf
//              is_neg_inf next_after reduce_precision(x, exponent_bits, mantissa_bits) real imag conj
//   integers   abs add subtract multiply divide remainder power negate sign square and or xor not
//              shift_left shift_right_arithmetic shift_right_logical popcnt count_leading_zeros
//   bool       add or maximum: or; multiply and minimum: and; xor subtract: xor; not
//   all        maximum minimum (NaN wins, -0 < +0) clamp(low, x, high) select(pred, a, b)
//              compare_eq _ne _lt _le _gt _ge -> bool; total_order(x) -> an integer that orders as
//              IEEE totalOrder does; total_order<bf16>(float) as a bf16 would
// Corner cases of integers: x / 0 = -1 (all ones), x % 0 = x, MIN / -1 = MIN, MIN % -1 = 0, shifts of
// at least the width give 0 or copies of the sign, sums and products wrap.
#pragma once
#include "jaxmono/special.cuh"
#include "jaxmono/types.cuh"

namespace jaxmono {

// Unsigned type in which arithmetic wraps without being promoted to int.
template <class T>
using Wrapping = typename BitsOf<(sizeof(T) < 4 ? 4 : sizeof(T))>::type;

// ---- arithmetic ----------------------------------------------------------------------------------

#define JM_ARITHMETIC(NAME, OP, BOOL)                                                         \
  template <class T>                                                                          \
  JM_DEVICE T op_##NAME(T a, T b) {                                                           \
    if constexpr (is_narrow<T>) return convert<T>(convert<float>(a) OP convert<float>(b));    \
    else if constexpr (is_wide_float<T>) return a OP b;                                       \
    else if constexpr (is_bool<T>) return a BOOL b;                                           \
    else return static_cast<T>(static_cast<Wrapping<T>>(a) OP static_cast<Wrapping<T>>(b));   \
  }
JM_ARITHMETIC(add, +, ||)
JM_ARITHMETIC(subtract, -, !=)
JM_ARITHMETIC(multiply, *, &&)
#undef JM_ARITHMETIC

template <class T>
JM_DEVICE T op_square(T x) {
  return op_multiply(x, x);
}

template <class T>
JM_DEVICE T op_negate(T x) {
  if constexpr (is_narrow<T>) return T{static_cast<uint16_t>(x.bits ^ SIGN_BIT<T>)};
  else if constexpr (is_wide_float<T>) return -x;
  else return static_cast<T>(0 - static_cast<Wrapping<T>>(x));
}

template <class T>
JM_DEVICE T op_abs(T x) {
  if constexpr (is_float<T>)
    return bitcast<T>(static_cast<Bits<T>>(bitcast<Bits<T>>(x) & ~SIGN_BIT<T>));
  else if constexpr (is_signed<T>) return x < 0 ? op_negate(x) : x;
  else return x;
}

template <class T>
JM_DEVICE T op_sign(T x) {
  if constexpr (is_narrow<T>) return convert<T>(op_sign(convert<float>(x)));
  else if constexpr (is_wide_float<T>) return x > 0 ? T(1) : x < 0 ? T(-1) : x;  // NaN and zeros stay
  else if constexpr (is_signed<T>) return static_cast<T>((x > 0) - (x < 0));
  else return static_cast<T>(x != 0);
}

template <class T>
JM_DEVICE T op_divide(T a, T b) {
  if constexpr (is_narrow<T>) {
    return convert<T>(convert<float>(a) / convert<float>(b));
  } else if constexpr (is_wide_float<T>) {
    return a / b;
  } else {
    if (b == 0) return static_cast<T>(-1);
    if constexpr (is_signed<T>)
      if (b == -1) return op_negate(a);
    return static_cast<T>(a / b);
  }
}

template <class T>
JM_DEVICE T op_remainder(T a, T b) {
  if constexpr (is_narrow<T>) {
    return convert<T>(fmodf(convert<float>(a), convert<float>(b)));
  } else if constexpr (is_same<T, float>) {
    return fmodf(a, b);
  } else if constexpr (is_same<T, double>) {
    return fmod(a, b);
  } else {
    if (b == 0) return a;
    if constexpr (is_signed<T>)
      if (b == -1) return 0;
    return static_cast<T>(a % b);
  }
}

template <class T>
JM_DEVICE T op_power(T a, T b) {
  if constexpr (is_narrow<T>) {
    return convert<T>(powf(convert<float>(a), convert<float>(b)));
  } else if constexpr (is_same<T, float>) {
    return powf(a, b);
  } else if constexpr (is_same<T, double>) {
    return pow(a, b);
  } else {
    if constexpr (is_signed<T>)
      if (b < 0) return a == 1 ? T(1) : a == -1 ? static_cast<T>(b & 1 ? -1 : 1) : T(0);
    Wrapping<T> base = static_cast<Wrapping<T>>(a), out = 1;
    for (Bits<T> n = static_cast<Bits<T>>(b); n != 0; n = static_cast<Bits<T>>(n >> 1)) {
      if (n & 1) out *= base;
      base *= base;
    }
    return static_cast<T>(out);
  }
}

// ---- bits ----------------------------------------------------------------------------------------

#define JM_BITWISE(NAME, OP)                                                              \
  template <class T>                                                                      \
  JM_DEVICE T op_##NAME(T a, T b) {                                                       \
    return static_cast<T>(a OP b);                                                        \
  }
JM_BITWISE(and, &)
JM_BITWISE(or, |)
JM_BITWISE(xor, ^)
#undef JM_BITWISE

template <class T>
JM_DEVICE T op_not(T x) {
  if constexpr (is_bool<T>) return !x;
  else return static_cast<T>(~x);
}

template <class T>
JM_DEVICE T op_shift_left(T x, T n) {
  const Bits<T> amount = static_cast<Bits<T>>(n);
  if (amount >= 8 * sizeof(T)) return 0;
  return static_cast<T>(static_cast<Wrapping<T>>(x) << amount);
}

template <class T>
JM_DEVICE T op_shift_right_logical(T x, T n) {
  const Bits<T> amount = static_cast<Bits<T>>(n);
  if (amount >= 8 * sizeof(T)) return 0;
  return static_cast<T>(static_cast<Bits<T>>(x) >> amount);
}

template <class T>
JM_DEVICE T op_shift_right_arithmetic(T x, T n) {
  const Bits<T> amount = static_cast<Bits<T>>(n), most = 8 * sizeof(T) - 1;
  const int shift = static_cast<int>(amount < most ? amount : most);
  const Bits<T> bits = static_cast<Bits<T>>(x);
  // For unsigned T too the top bit is copied.
  const Bits<T> flip = bits & SIGN_BIT<T> ? static_cast<Bits<T>>(~Bits<T>(0)) : Bits<T>(0);
  return static_cast<T>(static_cast<Bits<T>>(static_cast<Bits<T>>(bits ^ flip) >> shift) ^ flip);
}

template <class T>
JM_DEVICE T op_popcnt(T x) {
  const uint64_t bits = static_cast<uint64_t>(static_cast<Bits<T>>(x));
#ifdef JAXMONO_EMULATE
  return static_cast<T>(__builtin_popcountll(bits));
#else
  if constexpr (sizeof(T) <= 4) return static_cast<T>(__popc(static_cast<unsigned>(bits)));
  else return static_cast<T>(__popcll(bits));
#endif
}

template <class T>
JM_DEVICE T op_count_leading_zeros(T x) {
  const uint64_t bits = static_cast<uint64_t>(static_cast<Bits<T>>(x));
#ifdef JAXMONO_EMULATE
  const int zeros = bits == 0 ? 64 : __builtin_clzll(bits);
#else
  const int zeros = __clzll(static_cast<long long>(bits));
#endif
  return static_cast<T>(zeros - (64 - 8 * static_cast<int>(sizeof(T))));
}

// ---- order ---------------------------------------------------------------------------------------

template <class T>
JM_DEVICE T op_maximum(T a, T b) {
  if constexpr (is_narrow<T>) {
    return convert<T>(op_maximum(convert<float>(a), convert<float>(b)));
#ifndef JAXMONO_EMULATE
  } else if constexpr (is_same<T, float>) {
    float out;
    asm("max.NaN.f32 %0, %1, %2;" : "=f"(out) : "f"(a), "f"(b));
    return out;
#endif
  } else if constexpr (is_wide_float<T>) {
    if (a == b) return bitcast<Bits<T>>(a) & SIGN_BIT<T> ? b : a;
    return a != a || a > b ? a : b;
  } else {
    return a > b ? a : b;
  }
}

template <class T>
JM_DEVICE T op_minimum(T a, T b) {
  if constexpr (is_narrow<T>) {
    return convert<T>(op_minimum(convert<float>(a), convert<float>(b)));
#ifndef JAXMONO_EMULATE
  } else if constexpr (is_same<T, float>) {
    float out;
    asm("min.NaN.f32 %0, %1, %2;" : "=f"(out) : "f"(a), "f"(b));
    return out;
#endif
  } else if constexpr (is_wide_float<T>) {
    if (a == b) return bitcast<Bits<T>>(a) & SIGN_BIT<T> ? a : b;
    return a != a || a < b ? a : b;
  } else {
    return a < b ? a : b;
  }
}

template <class T>
JM_DEVICE T op_clamp(T low, T x, T high) {
  return op_minimum(op_maximum(low, x), high);
}

template <class T>
JM_DEVICE T op_select(bool pred, T on_true, T on_false) {
  return pred ? on_true : on_false;
}

#define JM_COMPARE(NAME, OP)                                                              \
  template <class T>                                                                      \
  JM_DEVICE bool op_compare_##NAME(T a, T b) {                                            \
    if constexpr (is_narrow<T>) return convert<float>(a) OP convert<float>(b);            \
    else return a OP b;                                                                   \
  }
JM_COMPARE(eq, ==)
JM_COMPARE(ne, !=)
JM_COMPARE(lt, <)
JM_COMPARE(le, <=)
JM_COMPARE(gt, >)
JM_COMPARE(ge, >=)
#undef JM_COMPARE

template <class As = void, class T>
JM_DEVICE auto op_total_order(T x) {
  if constexpr (!is_same<As, void> && !is_same<As, T>) {
    return op_total_order(convert<As>(x));
  } else if constexpr (is_float<T>) {
    // Negative numbers order backwards by their magnitude bits.
    const Bits<T> bits = bitcast<Bits<T>>(x);
    using Signed = decltype(signed_of(Bits<T>{}));
    return static_cast<Signed>(bits & SIGN_BIT<T> ? bits ^ static_cast<Bits<T>>(~SIGN_BIT<T>) : bits);
  } else {
    return x;
  }
}

// ---- functions -----------------------------------------------------------------------------------

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
JM_FUNCTION(cosine, cosf, cos)
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
JM_FUNCTION(sine, sinf, sin)
JM_FUNCTION(sinh, sinhf, sinh)
JM_FUNCTION(sqrt, sqrtf, sqrt)
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

// ---- forms of numbers ----------------------------------------------------------------------------

template <class T>
constexpr int MANTISSA = is_same<T, double> ? 52 : is_same<T, float> ? 23 : is_same<T, f16> ? 10 : 7;
template <class T>
constexpr Bits<T> INFINITY_BITS = static_cast<Bits<T>>(
    static_cast<Bits<T>>(~SIGN_BIT<T>) >> MANTISSA<T> << MANTISSA<T>);

template <class T>
JM_DEVICE Bits<T> magnitude_bits(T x) {
  return static_cast<Bits<T>>(bitcast<Bits<T>>(x) & static_cast<Bits<T>>(~SIGN_BIT<T>));
}
template <class T>
JM_DEVICE bool op_is_finite(T x) {
  if constexpr (is_float<T>) return magnitude_bits(x) < INFINITY_BITS<T>;
  else return true;
}
template <class T>
JM_DEVICE bool op_is_inf(T x) {
  return magnitude_bits(x) == INFINITY_BITS<T>;
}
template <class T>
JM_DEVICE bool op_is_pos_inf(T x) {
  return bitcast<Bits<T>>(x) == INFINITY_BITS<T>;
}
template <class T>
JM_DEVICE bool op_is_neg_inf(T x) {
  return bitcast<Bits<T>>(x) == static_cast<Bits<T>>(INFINITY_BITS<T> | SIGN_BIT<T>);
}

template <class T>
JM_DEVICE T op_next_after(T a, T b) {
  const Bits<T> x = bitcast<Bits<T>>(a), y = bitcast<Bits<T>>(b);
  if (magnitude_bits(a) > INFINITY_BITS<T>) return a;
  if (magnitude_bits(b) > INFINITY_BITS<T>) return b;
  if (op_compare_eq(a, b)) return b;
  if (magnitude_bits(a) == 0) return bitcast<T>(static_cast<Bits<T>>((y & SIGN_BIT<T>) | 1));
  const bool outwards = op_compare_lt(a, b) == ((x & SIGN_BIT<T>) == 0);
  return bitcast<T>(static_cast<Bits<T>>(outwards ? x + 1 : x - 1));
}

// Rounds to a format of fewer bits, nearest even; what is too small becomes zero, too large infinite.
template <class T>
JM_DEVICE T op_reduce_precision(T x, int exponent_bits, int mantissa_bits) {
  if constexpr (is_narrow<T>) {
    return convert<T>(op_reduce_precision(convert<float>(x), exponent_bits, mantissa_bits));
  } else {
    if (!op_is_finite(x)) return x;
    Bits<T> bits = bitcast<Bits<T>>(x);
    const Bits<T> sign = bits & SIGN_BIT<T>;
    const int drop = MANTISSA<T> - mantissa_bits;
    if (drop > 0) {
      const Bits<T> last = static_cast<Bits<T>>(1) << drop;
      bits += (last >> 1) - 1 + (bits >> drop & 1);
      bits &= ~(last - 1);
    }
    const int full_bias = is_same<T, double> ? 1023 : 127;
    const int bias = (1 << (exponent_bits - 1)) - 1;
    const int exponent =
        static_cast<int>((bits & static_cast<Bits<T>>(~SIGN_BIT<T>)) >> MANTISSA<T>) - full_bias;
    if (exponent > bias) return bitcast<T>(sign | INFINITY_BITS<T>);
    if (exponent <= -bias) return bitcast<T>(sign);
    return bitcast<T>(bits);
  }
}

// Real types are their own real part.
template <class T>
JM_DEVICE T op_real(T x) {
  return x;
}
template <class T>
JM_DEVICE T op_imag(T) {
  return convert<T>(0.0f);
}
template <class T>
JM_DEVICE T op_conj(T x) {
  return x;
}

}  // namespace jaxmono
