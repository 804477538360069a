// How floats are represented: tests, neighbours, rounding to fewer bits. See numeric.cuh for the list.
#pragma once
#include "jaxmono/order.cuh"
#include "jaxmono/types.cuh"

namespace jaxmono {

template <class T>
constexpr int MANTISSA = is_same<T, double>   ? 52
                         : is_same<T, float>  ? 23
                         : is_same<T, f16>    ? 10
                         : is_same<T, f8e5m2> ? 2
                         : is_same<T, f8e4m3> ? 3
                                              : 7;
template <class T>
constexpr Bits<T> INFINITY_BITS = static_cast<Bits<T>>(
    static_cast<Bits<T>>(~SIGN_BIT<T>) >> MANTISSA<T> << MANTISSA<T>);
// The largest magnitude that is a number, infinity included; of f8e4m3 only one is none.
template <class T>
constexpr Bits<T> LAST_NUMBER = INFINITY_BITS<T>;
template <>
inline constexpr uint8_t LAST_NUMBER<f8e4m3> = 0x7e;

template <class T>
JM_DEVICE Bits<T> magnitude_bits(T x) {
  return static_cast<Bits<T>>(bitcast<Bits<T>>(x) & static_cast<Bits<T>>(~SIGN_BIT<T>));
}
template <class T>
JM_DEVICE bool op_is_finite(T x) {
  if constexpr (is_same<T, f8e4m3>) return magnitude_bits(x) <= LAST_NUMBER<T>;
  else if constexpr (is_float<T>) return magnitude_bits(x) < INFINITY_BITS<T>;
  else return true;
}
template <class T>
JM_DEVICE bool op_is_inf(T x) {
  return !is_same<T, f8e4m3> && magnitude_bits(x) == INFINITY_BITS<T>;
}
template <class T>
JM_DEVICE bool op_is_pos_inf(T x) {
  return !is_same<T, f8e4m3> && bitcast<Bits<T>>(x) == INFINITY_BITS<T>;
}
template <class T>
JM_DEVICE bool op_is_neg_inf(T x) {
  return op_is_inf(x) && (bitcast<Bits<T>>(x) & SIGN_BIT<T>) != 0;
}

template <class T>
JM_DEVICE T op_next_after(T a, T b) {
  const Bits<T> x = bitcast<Bits<T>>(a), y = bitcast<Bits<T>>(b);
  if (magnitude_bits(a) > LAST_NUMBER<T>) return a;
  if (magnitude_bits(b) > LAST_NUMBER<T>) return b;
  if (op_compare_eq(a, b)) return b;
  if (magnitude_bits(a) == 0) return bitcast<T>(static_cast<Bits<T>>((y & SIGN_BIT<T>) | 1));
  const bool outwards = op_compare_lt(a, b) == ((x & SIGN_BIT<T>) == 0);
  return bitcast<T>(static_cast<Bits<T>>(outwards ? x + 1 : x - 1));
}

// Rounds to a format of fewer bits, nearest even. Of fewer exponents: what is too small becomes zero, too
// large infinite.
template <class T>
JM_DEVICE T op_reduce_precision(T x, int exponent_bits, int mantissa_bits) {
  if constexpr (sizeof(T) == 1) {
    return convert<T>(op_reduce_precision(convert<float>(x), exponent_bits, mantissa_bits));
  } else {
#if __CUDA_ARCH__ >= 900
    // In an instruction, of 20: epilogues round what convolutions read.
    if constexpr (is_same<T, float>)
      if (exponent_bits == 8 && mantissa_bits == 10) return bitcast<T>(to_tf32(x));
#endif
    if (!op_is_finite(x)) return x;
    constexpr int EXPONENT = static_cast<int>(sizeof(T)) * 8 - 1 - MANTISSA<T>;
    Bits<T> bits = bitcast<Bits<T>>(x);
    const Bits<T> sign = static_cast<Bits<T>>(bits & SIGN_BIT<T>);
    const int drop = MANTISSA<T> - mantissa_bits;
    if (drop > 0) {
      const Bits<T> last = static_cast<Bits<T>>(static_cast<Bits<T>>(1) << drop);
      bits = static_cast<Bits<T>>(bits + (last >> 1) - 1 + (bits >> drop & 1));
      bits = static_cast<Bits<T>>(bits & ~(last - 1));
    }
    if (exponent_bits >= EXPONENT) return bitcast<T>(bits);
    const int bias = (1 << (exponent_bits - 1)) - 1;
    const int exponent =
        static_cast<int>((bits & static_cast<Bits<T>>(~SIGN_BIT<T>)) >> MANTISSA<T>) -
        ((1 << (EXPONENT - 1)) - 1);
    if (exponent > bias) return bitcast<T>(static_cast<Bits<T>>(sign | INFINITY_BITS<T>));
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
