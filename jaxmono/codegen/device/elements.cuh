// Element types, what they are, and the conversions of bf16 and f16.
#pragma once
#include "jaxmono/platform.cuh"

namespace jaxmono {

// Aggregates, so that tables of them are initialised from their bits.
struct bf16 {
  uint16_t bits;
};
struct f16 {
  uint16_t bits;
};
struct f8e4m3 {  // float8_e4m3fn: no infinities, one NaN of each sign
  static constexpr int MMA = 2;           // emulate::MMA_E4M3
  uint8_t bits;
};
struct f8e5m2 {
  static constexpr int MMA = 3;
  uint8_t bits;
};

template <class A, class B>
constexpr bool is_same = false;
template <class A>
constexpr bool is_same<A, A> = true;

// Two neighbours of an operand of wgmma, which reads bytes as it reads 16-bit elements, but for the
// products. A, B: the types of the left and the right operand of these.
template <class A, class B>
struct F8Pair {
  uint8_t bits[2];
};

template <bool FIRST, class A, class B>
struct ConditionalOf {
  using type = A;
};
template <class A, class B>
struct ConditionalOf<false, A, B> {
  using type = B;
};
template <bool FIRST, class A, class B>
using Conditional = typename ConditionalOf<FIRST, A, B>::type;

// An argument that a generic lambda knows when it is compiled.
template <bool X>
struct Bool {
  static constexpr bool value = X;
};

template <class T>
constexpr bool is_f8 = is_same<T, f8e4m3> || is_same<T, f8e5m2>;
template <class T>
constexpr bool is_narrow = is_same<T, bf16> || is_same<T, f16> || is_f8<T>;
template <class T>
constexpr bool is_wide_float = is_same<T, float> || is_same<T, double>;
template <class T>
constexpr bool is_float = is_narrow<T> || is_wide_float<T>;
template <class T>
constexpr bool is_bool = is_same<T, bool>;
template <class T>
constexpr bool is_integer = !is_float<T> && !is_bool<T>;

template <int BYTES>
struct BitsOf;
template <>
struct BitsOf<1> {
  using type = uint8_t;
};
template <>
struct BitsOf<2> {
  using type = uint16_t;
};
template <>
struct BitsOf<4> {
  using type = uint32_t;
};
template <>
struct BitsOf<8> {
  using type = uint64_t;
};

// Unsigned integer of the same size as T.
template <class T>
using Bits = typename BitsOf<sizeof(T)>::type;

template <class T>
constexpr bool is_signed = is_integer<T> && static_cast<T>(-1) < static_cast<T>(0);
template <>
inline constexpr bool is_signed<bf16> = false;
template <>
inline constexpr bool is_signed<f16> = false;
template <>
inline constexpr bool is_signed<f8e4m3> = false;
template <>
inline constexpr bool is_signed<f8e5m2> = false;

template <class To, class From>
JM_DEVICE To bitcast(From x) {
  static_assert(sizeof(To) == sizeof(From), "bitcast keeps the size");
  To out;
  memcpy(&out, &x, sizeof(To));
  return out;
}

template <class T>
constexpr Bits<T> SIGN_BIT = static_cast<Bits<T>>(static_cast<Bits<T>>(1) << (8 * sizeof(T) - 1));

// Least and greatest value of an integer type.
template <class T>
constexpr T LEAST = is_signed<T> ? static_cast<T>(SIGN_BIT<T>) : static_cast<T>(0);
template <class T>
constexpr T GREATEST = static_cast<T>(~static_cast<Bits<T>>(LEAST<T>));

#ifndef JAXMONO_EMULATE

JM_DEVICE float bf16_to_float(uint16_t x) { return __uint_as_float(static_cast<uint32_t>(x) << 16); }
// Two values as neighbours in memory. Packed conversions run at full rate; those of one value are
// four times slower.
JM_DEVICE uint32_t floats_to_bf16x2(float first, float second) {
  uint32_t out;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(out) : "f"(second), "f"(first));
  return out;
}
JM_DEVICE uint32_t floats_to_f16x2(float first, float second) {
  uint32_t out;
  asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(out) : "f"(second), "f"(first));
  return out;
}
JM_DEVICE uint16_t float_to_bf16(float x) {
  return static_cast<uint16_t>(floats_to_bf16x2(x, 0.0f));
}
JM_DEVICE float f16_to_float(uint16_t x) {
  float out;
  asm("cvt.f32.f16 %0, %1;" : "=f"(out) : "h"(x));
  return out;
}
JM_DEVICE uint16_t float_to_f16(float x) {
  return static_cast<uint16_t>(floats_to_f16x2(x, 0.0f));
}
JM_DEVICE uint16_t double_to_f16(double x) {
  uint16_t out;
  asm("cvt.rn.f16.f64 %0, %1;" : "=h"(out) : "d"(x));
  return out;
}

#else

JM_DEVICE float bf16_to_float(uint16_t x) { return emulate::bf16_to_float(x); }
JM_DEVICE uint16_t float_to_bf16(float x) { return emulate::float_to_bf16(x); }
JM_DEVICE float f16_to_float(uint16_t x) { return emulate::f16_to_float(x); }
JM_DEVICE uint16_t float_to_f16(float x) { return emulate::float_to_f16(x); }
JM_DEVICE uint32_t floats_to_bf16x2(float first, float second) {
  return float_to_bf16(first) | static_cast<uint32_t>(float_to_bf16(second)) << 16;
}
JM_DEVICE uint32_t floats_to_f16x2(float first, float second) {
  return float_to_f16(first) | static_cast<uint32_t>(float_to_f16(second)) << 16;
}
JM_DEVICE uint16_t double_to_f16(double x) { return emulate::double_to_f16(x); }

#endif

}  // namespace jaxmono
