// Floats as integers, as XLA has it: what is out of range is the nearest there is, NaN is 0. Up to 32 bits
// that is what the hardware's conversion does, in one instruction.
//
//   truncated<To>(x)   towards zero
//   nearest<To>(x)     to the nearest, half to even; x: float, To: 32 bits at most
#pragma once
#include "jaxmono/elements.cuh"

namespace jaxmono {

// By comparisons: of doubles, and to 64 bits.
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

#ifdef JAXMONO_EMULATE
template <class To, class From>
JM_DEVICE To truncated(From x) {
  return saturating<To>(x);
}
template <class To>
JM_DEVICE To nearest(float x) {
  return saturating<To>(nearbyintf(x));
}
#else
#define JM_TO_INTEGER(mode)                                                               \
  if constexpr (is_signed<To> && sizeof(To) == 1)                                         \
    asm("cvt." mode ".s8.f32 %0, %1;" : "=r"(y) : "f"(x));                                \
  else if constexpr (is_signed<To> && sizeof(To) == 2)                                    \
    asm("cvt." mode ".s16.f32 %0, %1;" : "=r"(y) : "f"(x));                               \
  else if constexpr (is_signed<To>) asm("cvt." mode ".s32.f32 %0, %1;" : "=r"(y) : "f"(x)); \
  else if constexpr (sizeof(To) == 1) asm("cvt." mode ".u8.f32 %0, %1;" : "=r"(y) : "f"(x)); \
  else if constexpr (sizeof(To) == 2) asm("cvt." mode ".u16.f32 %0, %1;" : "=r"(y) : "f"(x)); \
  else asm("cvt." mode ".u32.f32 %0, %1;" : "=r"(y) : "f"(x));

template <class To, class From>
JM_DEVICE To truncated(From x) {
  if constexpr (is_same<From, float> && sizeof(To) <= 4) {
    int32_t y;
    JM_TO_INTEGER("rzi")
    return static_cast<To>(y);
  } else {
    return saturating<To>(x);
  }
}
template <class To>
JM_DEVICE To nearest(float x) {
  static_assert(sizeof(To) <= 4, "64 bits by comparisons");
  int32_t y;
  JM_TO_INTEGER("rni")
  return static_cast<To>(y);
}
#undef JM_TO_INTEGER
#endif

}  // namespace jaxmono
