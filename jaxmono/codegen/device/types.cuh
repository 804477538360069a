// Element types and conversions with XLA's semantics.
//
//   bf16, f16             two bytes; values are computed in float
//   to_float(x)           any element type to float
//   from_float<T>(f)      float to any element type: `convert`
//   convert<To>(x)        float -> integer truncates, saturates, NaN gives 0; -> bool is x != 0;
//                         integers wrap; -> bf16 / f16 rounds to nearest even, NaN stays NaN
//   bitcast<To>(x)        same bits, same size
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

template <class A, class B>
constexpr bool is_same = false;
template <class A>
constexpr bool is_same<A, A> = true;

template <class T>
constexpr bool is_narrow = is_same<T, bf16> || is_same<T, f16>;
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

template <class To, class From>
JM_DEVICE To saturating(From x) {
  // The first power of two above To's range is exact in From.
  constexpr int digits = 8 * sizeof(To) - (is_signed<To> ? 1 : 0);
  constexpr From limit = static_cast<From>(1ull << (digits - 1)) * 2;
  if (x != x) return 0;
  if (x >= limit) return GREATEST<To>;
  if (x <= (is_signed<To> ? -limit : static_cast<From>(0))) return LEAST<To>;
  return static_cast<To>(x);
}

template <class To, class From>
JM_DEVICE To convert(From x) {
  if constexpr (is_same<To, From>) {
    return x;
  } else if constexpr (is_same<From, bf16>) {
    return convert<To>(bf16_to_float(x.bits));
  } else if constexpr (is_same<From, f16>) {
    return convert<To>(f16_to_float(x.bits));
  } else if constexpr (is_same<To, bf16>) {
    return bf16{float_to_bf16(static_cast<float>(x))};  // f64 goes through f32, as in XLA
  } else if constexpr (is_same<To, f16>) {
    if constexpr (is_same<From, double>) return f16{double_to_f16(x)};
    else return f16{float_to_f16(static_cast<float>(x))};
  } else if constexpr (is_bool<To>) {
    return x != static_cast<From>(0);
  } else if constexpr (is_wide_float<From> && is_integer<To>) {
    return saturating<To>(x);
  } else {
    return static_cast<To>(x);
  }
}

template <class T>
JM_DEVICE float to_float(T x) {
  return convert<float>(x);
}
template <class T>
JM_DEVICE T from_float(float x) {
  return convert<T>(x);
}

}  // namespace jaxmono
