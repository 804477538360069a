// Conversions of 8-bit floats, with XLA's semantics: to nearest even in one step; what is too large
// becomes NaN in e4m3 (which has no infinity: above 464, the middle of 448 and what would follow) and
// infinite in e5m2 (from 61440 on, the middle of 57344 and 65536); NaN stays NaN, with its sign.
//
//   uint32_t f8x2_to_f16x2<T>(uint16_t)          two neighbours; every f8 value is one of f16
//   float f8_to_float(T)
//   uint16_t floats_to_f8x2<T>(float, float)     two neighbours
//   T float_to_f8<T>(float), T double_to_f8<T>(double)
//
// sm_89 and later convert pairs in one instruction, which saturates: what overflows is put right.
// T: f8e4m3 or f8e5m2.
#pragma once
#include "jaxmono/elements.cuh"

namespace jaxmono {

template <class T>
struct F8Format {  // f8e4m3
  static constexpr uint32_t NAN_CODE = 0x7f, TOO_LARGE = 0x7f;
  static constexpr int MANTISSA = 3, BIAS = 7;
  JM_DEVICE static bool fits(float magnitude) { return magnitude <= 464.0f; }
};
template <>
struct F8Format<f8e5m2> {
  static constexpr uint32_t NAN_CODE = 0x7e, TOO_LARGE = 0x7c;
  static constexpr int MANTISSA = 2, BIAS = 15;
  JM_DEVICE static bool fits(float magnitude) { return magnitude < 61440.0f; }
};

#if !defined(JAXMONO_EMULATE) && __CUDA_ARCH__ >= 890

template <class T>
JM_DEVICE uint32_t f8x2_to_f16x2(uint16_t x) {
  uint32_t out;
  if constexpr (F8Format<T>::MANTISSA == 3) asm("cvt.rn.f16x2.e4m3x2 %0, %1;" : "=r"(out) : "h"(x));
  else asm("cvt.rn.f16x2.e5m2x2 %0, %1;" : "=r"(out) : "h"(x));
  return out;
}

template <class T>
JM_DEVICE uint32_t f8_overflow(float x, uint32_t code) {
  using F = F8Format<T>;
  if (F::fits(fabsf(x))) return code;
  return (__float_as_uint(x) >> 24 & 0x80u) | (x != x ? F::NAN_CODE : F::TOO_LARGE);
}
template <class T>
JM_DEVICE uint16_t floats_to_f8x2(float first, float second) {
  uint16_t out;
  if constexpr (F8Format<T>::MANTISSA == 3)
    asm("cvt.rn.satfinite.e4m3x2.f32 %0, %1, %2;" : "=h"(out) : "f"(second), "f"(first));
  else
    asm("cvt.rn.satfinite.e5m2x2.f32 %0, %1, %2;" : "=h"(out) : "f"(second), "f"(first));
  return static_cast<uint16_t>(f8_overflow<T>(first, out & 0xffu) |
                               f8_overflow<T>(second, out >> 8 & 0xffu) << 8);
}

#else

#ifdef JAXMONO_EMULATE
JM_DEVICE uint32_t f16x2_times_256(uint32_t x) {
  return floats_to_f16x2(256.0f * f16_to_float(static_cast<uint16_t>(x)),
                         256.0f * f16_to_float(static_cast<uint16_t>(x >> 16)));
}
#else
JM_DEVICE uint32_t f16x2_times_256(uint32_t x) {
  uint32_t out;
  asm("mul.f16x2 %0, %1, %2;" : "=r"(out) : "r"(x), "r"(0x5c005c00u));
  return out;
}
#endif

// e5m2 is the upper half of f16. e4m3 has f16's exponent less 8, which a product adds, of subnormals
// too; its NaN, all ones, is the only magnitude that carries when 1 is added.
template <class T>
JM_DEVICE uint32_t f8x2_to_f16x2(uint16_t x) {
  const uint32_t apart = (x & 0xff00u) << 16 | (x & 0xffu) << 8;
  if constexpr (F8Format<T>::MANTISSA == 2) return apart;
  const uint32_t sign = apart & 0x80008000u, magnitude = apart >> 1 & 0x3f803f80u;
  const uint32_t nan = (magnitude + 0x00800080u) & 0x40004000u;
  return f16x2_times_256(magnitude) | sign | nan | (nan - (nan >> 5));
}

template <class T>
JM_DEVICE uint32_t float_to_f8_code(float x) {
  using F = F8Format<T>;
  const uint32_t bits = bitcast<uint32_t>(x), sign = bits >> 24 & 0x80u, magnitude = bits & 0x7fffffffu;
  if (magnitude > 0x7f800000u) return sign | F::NAN_CODE;
  if (!F::fits(bitcast<float>(magnitude))) return sign | F::TOO_LARGE;
  constexpr int DROP = 23 - F::MANTISSA;
  if (magnitude < static_cast<uint32_t>(128 - F::BIAS) << 23) {
    // Subnormal: beside this sum's other part, the adder rounds at the last place.
    constexpr uint32_t BESIDE = static_cast<uint32_t>(128 - F::BIAS + DROP) << 23;
    return sign | (bitcast<uint32_t>(bitcast<float>(magnitude) + bitcast<float>(BESIDE)) - BESIDE);
  }
  const uint32_t rounded = magnitude + (1u << (DROP - 1)) - 1 + (magnitude >> DROP & 1);
  return sign | (rounded - (static_cast<uint32_t>(127 - F::BIAS) << 23)) >> DROP;
}
template <class T>
JM_DEVICE uint16_t floats_to_f8x2(float first, float second) {
  return static_cast<uint16_t>(float_to_f8_code<T>(first) | float_to_f8_code<T>(second) << 8);
}

#endif

template <class T>
JM_DEVICE float f8_to_float(T x) {
  return f16_to_float(static_cast<uint16_t>(f8x2_to_f16x2<T>(x.bits)));
}
template <class T>
JM_DEVICE T float_to_f8(float x) {
  return T{static_cast<uint8_t>(floats_to_f8x2<T>(x, 0.0f))};
}
// Through float rounded to odd: the second rounding then sees whether anything was lost.
template <class T>
JM_DEVICE T double_to_f8(double x) {
  float f = static_cast<float>(x);
  const double back = f;
  if (back != x && x == x && back - back == 0) {
    uint32_t bits = bitcast<uint32_t>(f);
    if ((back < 0 ? -back : back) > (x < 0 ? -x : x)) --bits;
    f = bitcast<float>(bits | 1);
  }
  return float_to_f8<T>(f);
}

}  // namespace jaxmono
