// bf16 and f16 in bit operations, without branches where a loop over them should be vectorised.
#pragma once
#include <stdint.h>
#include <string.h>

namespace jaxmono::emulate {

inline uint32_t float_bits(float x) {
  uint32_t out;
  memcpy(&out, &x, sizeof out);
  return out;
}
inline float bits_float(uint32_t x) {
  float out;
  memcpy(&out, &x, sizeof out);
  return out;
}

inline float bf16_to_float(uint16_t x) { return bits_float(static_cast<uint32_t>(x) << 16); }

inline uint16_t float_to_bf16(float x) {
  const uint32_t bits = float_bits(x);
  if ((bits & 0x7fffffffu) > 0x7f800000u) return 0x7fff;  // NaN, as cvt.rn gives it
  return static_cast<uint16_t>((bits + 0x7fffu + (bits >> 16 & 1)) >> 16);
}

inline float f16_to_float(uint16_t x) {
  // As if the exponent had 8 bits; the product moves it into place and makes subnormals right.
  const uint32_t magnitude = static_cast<uint32_t>(x & 0x7fff) << 13;
  uint32_t bits = float_bits(bits_float(magnitude) * 0x1p112f);
  if (magnitude >= 0x0f800000u) bits |= 0x7f800000u;  // infinity and NaN
  return bits_float(bits | static_cast<uint32_t>(x & 0x8000) << 16);
}

inline float f8e5m2_to_float(uint8_t x) { return f16_to_float(static_cast<uint16_t>(x << 8)); }
inline float f8e4m3_to_float(uint8_t x) {
  if ((x & 0x7f) == 0x7f) return bits_float(0x7fc00000u);
  const float magnitude = f16_to_float(static_cast<uint16_t>((x & 0x7f) << 7)) * 256.0f;
  return x & 0x80 ? -magnitude : magnitude;
}

inline uint16_t float_to_f16(float x) {
  const uint32_t bits = float_bits(x), magnitude = bits & 0x7fffffffu;
  const uint16_t sign = static_cast<uint16_t>(bits >> 16 & 0x8000);
  if (magnitude > 0x7f800000u) return 0x7fff;
  if (magnitude >= 0x477ff000u) return sign | 0x7c00;  // 65520 and above round to infinity
  if (magnitude < 0x38800000u) {
    // Subnormal: adding 2^-1 * 2^-13 lets the adder round at the last place, 2^-24.
    const float shifted = bits_float(magnitude) + 0.5f;
    return static_cast<uint16_t>(sign | (float_bits(shifted) - float_bits(0.5f)));
  }
  const uint32_t rounded = magnitude + 0xfffu + (magnitude >> 13 & 1);
  return static_cast<uint16_t>(sign | (rounded - 0x38000000u) >> 13);
}

inline uint16_t double_to_f16(double x) {
  // Through float rounded to odd: the second rounding then sees whether anything was lost.
  float f = static_cast<float>(x);
  const double back = f;
  if (back != x && x == x && back - back == 0) {
    uint32_t bits = float_bits(f);
    if ((back < 0 ? -back : back) > (x < 0 ? -x : x)) --bits;
    f = bits_float(bits | 1);
  }
  return float_to_f16(f);
}

}  // namespace jaxmono::emulate
