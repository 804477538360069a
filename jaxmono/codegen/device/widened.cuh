// Pairs of bytes as pairs of 16-bit floats: weights that are stored as bytes, on their way to products.
//
//   uint32_t widened_pair<To, From>(uint32_t x)      of the bytes 0 and 2 of x
//   uint32_t widened_odd<To, From>(uint32_t x)       of the bytes 1 and 3
//   uint32_t widened_near<To, From>(uint32_t x)      of the bytes 0 and 1
//
// To: bf16 or f16. From: int8_t, uint8_t, f8e4m3, f8e5m2; all of their values are values of To. Integers
// become the digits of a float that is large enough to have none behind the point, from which what is too
// much is subtracted: three or two instructions a pair. (The conversions of the GPU take a byte at a time, a
// quarter as many in a clock.)
#pragma once
#include "jaxmono/elements.cuh"
#include "jaxmono/f8.cuh"
#include "jaxmono/ptx.cuh"

namespace jaxmono {

// x - y of two pairs.
#ifdef JAXMONO_EMULATE
template <class T>
JM_DEVICE uint32_t pair_difference(uint32_t x, uint32_t y) {
  const auto low = [](uint32_t z) { return static_cast<uint16_t>(z); };
  if constexpr (is_same<T, bf16>)
    return floats_to_bf16x2(bf16_to_float(low(x)) - bf16_to_float(low(y)),
                            bf16_to_float(low(x >> 16)) - bf16_to_float(low(y >> 16)));
  else
    return floats_to_f16x2(f16_to_float(low(x)) - f16_to_float(low(y)),
                           f16_to_float(low(x >> 16)) - f16_to_float(low(y >> 16)));
}
#else
template <class T>
JM_DEVICE uint32_t pair_difference(uint32_t x, uint32_t y) {
  uint32_t out;
  if constexpr (is_same<T, bf16>) asm("sub.bf16x2 %0, %1, %2;" : "=r"(out) : "r"(x), "r"(y));
  else asm("sub.f16x2 %0, %1, %2;" : "=r"(out) : "r"(x), "r"(y));
  return out;
}
#endif

// Of integers: x has one in the low byte of each half, anything in the high one.
template <class To, class From>
JM_DEVICE uint32_t widened_halves(uint32_t x) {
  if constexpr (is_same<To, f16>) {  // 1024 and more: ulps of 1
    if constexpr (is_signed<From>) return pair_difference<f16>((x & 0x00ff00ffu) ^ 0x64806480u, 0x64806480u);
    else return pair_difference<f16>((x & 0x00ff00ffu) | 0x64006400u, 0x64006400u);
  } else {  // 128 to 255, with the highest bit of the byte as that of the exponent: 256 instead of 128
    const uint32_t digits = (x & 0x007f007fu) | 0x43004300u, high = (x & 0x00800080u) | 0x43004300u;
    if constexpr (is_signed<From>) return pair_difference<bf16>(digits, high);
    // digits - 128 + 128, as digits - 0; digits - 128 where the bit is not set
    else return pair_difference<bf16>(digits, high - (high >> 7 & 0x00010001u) * 0x4380u);
  }
}

template <class To, class From>
JM_DEVICE uint32_t widened_near(uint32_t x) {
  if constexpr (!is_f8<From>) {
    return widened_halves<To, From>(byte_permute(x, 0, 0x4140));
  } else {
    const uint32_t two = f8x2_to_f16x2<From>(static_cast<uint16_t>(x));
    if constexpr (is_same<To, f16>) return two;
    return floats_to_bf16x2(f16_to_float(static_cast<uint16_t>(two)),
                            f16_to_float(static_cast<uint16_t>(two >> 16)));
  }
}
template <class To, class From>
JM_DEVICE uint32_t widened_pair(uint32_t x) {
  if constexpr (is_f8<From>) return widened_near<To, From>(byte_permute(x, 0, 0x4420));
  else return widened_halves<To, From>(x);
}
template <class To, class From>
JM_DEVICE uint32_t widened_odd(uint32_t x) {
  if constexpr (is_f8<From>) return widened_near<To, From>(byte_permute(x, 0, 0x4431));
  else return widened_halves<To, From>(x >> 8);
}

}  // namespace jaxmono
