// Weights that are stored as bytes (int8_t, uint8_t, f8e4m3, f8e5m2) in the types that are multiplied, all of
// which have every value of a byte: nothing is rounded, and NaN stays NaN.
//
//   void bytes_to_floats<W>(float (&)[16], const uint32_t (&)[4])   16 neighbours
//   uint32_t pair_of_word<T, W>(uint32_t x, int h)                  bytes 2 h and 2 h + 1 as two bf16 or f16
//   uint32_t pair_of_words<T, W>(uint32_t a, uint32_t b, int c)     byte c of each, likewise
//   uint32_t pair_of_second_bytes<T, W>(uint32_t x, int c)          bytes c and c + 2, likewise
//
// Integers: a byte u below the exponent of 2^23 is the f32 2^23 + u, from which a subtraction takes the rest:
// two instructions an element and one for the four signs (x ^ 128 is x + 128), where the conversion
// instruction has a quarter of their rate. f16 has 10 bits for that, 1024 + u. bf16 has 7, so the eighth goes
// into another number: 128 + (u & 127) less 128 + (u & 128) is what two's complement means by u.
// 8-bit floats become f16, two in an instruction; f32 and bf16 are made of that.
#pragma once
#include "jaxmono/f8.cuh"
#include "jaxmono/ptx.cuh"
#include "jaxmono/types.cuh"

namespace jaxmono {

#ifdef JAXMONO_EMULATE
JM_DEVICE uint32_t and_xor(uint32_t x, uint32_t mask, uint32_t y) { return (x & mask) ^ y; }
JM_DEVICE uint32_t f16x2_plus(uint32_t x, uint32_t y) {
  const auto sum = [](uint32_t a, uint32_t b) {
    return f16_to_float(static_cast<uint16_t>(a)) + f16_to_float(static_cast<uint16_t>(b));
  };
  return floats_to_f16x2(sum(x, y), sum(x >> 16, y >> 16));
}
JM_DEVICE uint32_t bf16x2_minus(uint32_t x, uint32_t y) {
  const auto rest = [](uint32_t a, uint32_t b) { return bitcast<float>(a) - bitcast<float>(b); };
  return floats_to_bf16x2(rest(x << 16, y << 16), rest(x & 0xffff0000u, y & 0xffff0000u));
}
#else
// Of two constants the compiler makes two instructions.
JM_DEVICE uint32_t and_xor(uint32_t x, uint32_t mask, uint32_t y) {
  uint32_t out;
  asm("lop3.b32 %0, %1, %2, %3, 0x6a;" : "=r"(out) : "r"(x), "r"(mask), "r"(y));
  return out;
}
JM_DEVICE uint32_t f16x2_plus(uint32_t x, uint32_t y) {
  uint32_t out;
  asm("add.rn.f16x2 %0, %1, %2;" : "=r"(out) : "r"(x), "r"(y));
  return out;
}
// Before sm_90 there is no difference but that of a product: y times -1.
JM_DEVICE uint32_t bf16x2_minus(uint32_t x, uint32_t y) {
  uint32_t out;
  asm("fma.rn.bf16x2 %0, %1, %2, %3;" : "=r"(out) : "r"(y), "r"(0xbf80bf80u), "r"(x));
  return out;
}
#endif

// Two products, rounded as T: what is missing to a product in an addition of -0.
template <class T>
JM_DEVICE uint32_t pairs_product(uint32_t x, uint32_t y) {
#ifdef JAXMONO_EMULATE
  const auto one = [](uint32_t a, uint32_t b) {
    return bitcast<uint16_t>(convert<T>(convert<float>(bitcast<T>(static_cast<uint16_t>(a))) *
                                        convert<float>(bitcast<T>(static_cast<uint16_t>(b)))));
  };
  return one(x, y) | static_cast<uint32_t>(one(x >> 16, y >> 16)) << 16;
#else
  uint32_t out;
  if constexpr (is_same<T, bf16>)
    asm("fma.rn.bf16x2 %0, %1, %2, %3;" : "=r"(out) : "r"(x), "r"(y), "r"(0x80008000u));
  else asm("mul.rn.f16x2 %0, %1, %2;" : "=r"(out) : "r"(x), "r"(y));
  return out;
#endif
}
// The 16 bits of T twice.
template <class T>
JM_DEVICE uint32_t twice(float x) {
  return bitcast<uint16_t>(convert<T>(x)) * 0x10001u;
}

template <class W>
JM_DEVICE void bytes_to_floats(float (&out)[16], const uint32_t (&x)[4]) {
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    if constexpr (is_f8<W>) {
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        const uint32_t pair = f8x2_to_f16x2<W>(static_cast<uint16_t>(x[i] >> 16 * h));
        out[4 * i + 2 * h] = f16_to_float(static_cast<uint16_t>(pair));
        out[4 * i + 2 * h + 1] = f16_to_float(static_cast<uint16_t>(pair >> 16));
      }
    } else {
      const uint32_t u = is_signed<W> ? x[i] ^ 0x80808080u : x[i];
      constexpr float FIRST = is_signed<W> ? 8388608.0f + 128.0f : 8388608.0f;
#pragma unroll
      for (uint32_t e = 0; e < 4; ++e)
        out[4 * i + e] = bitcast<float>(byte_permute(u, 0x4b000000u, 0x7440u + e)) - FIRST;
    }
  }
}

// Integers in bytes 0 and 2; what bytes 1 and 3 are does not matter.
template <class T, class W>
JM_DEVICE uint32_t spread_to_pair(uint32_t x) {
  if constexpr (is_same<T, bf16>) {
    const uint32_t low = and_xor(x, 0x007f007fu, 0x43004300u);    // 128 + (u & 127)
    const uint32_t high = and_xor(x, 0x00800080u, 0x43004300u);   // 128 + (u & 128)
    if constexpr (is_signed<W>) return bf16x2_minus(low, high);
    else return bf16x2_minus(high, bf16x2_minus(0x43804380u, low));  // 256
  } else {  // a sign turned is 128 more
    return is_signed<W> ? f16x2_plus(and_xor(x, 0x00ff00ffu, 0x64806480u), 0xe480e480u)
                        : f16x2_plus(and_xor(x, 0x00ff00ffu, 0x64006400u), 0xe400e400u);
  }
}

template <class T, class W>
JM_DEVICE uint32_t f8_to_pair(uint16_t x) {
  const uint32_t pair = f8x2_to_f16x2<W>(x);
  if constexpr (is_same<T, f16>) {
    return pair;
  } else {
    const uint32_t low = bitcast<uint32_t>(f16_to_float(static_cast<uint16_t>(pair)));
    const uint32_t high = bitcast<uint32_t>(f16_to_float(static_cast<uint16_t>(pair >> 16)));
    return byte_permute(low, high, 0x7632u);
  }
}

template <class T, class W>
JM_DEVICE uint32_t pair_of_word(uint32_t x, int h) {
  if constexpr (is_f8<W>) return f8_to_pair<T, W>(static_cast<uint16_t>(x >> 16 * h));
  else return spread_to_pair<T, W>(byte_permute(x, 0, 0x4140u + 0x0202u * static_cast<uint32_t>(h)));
}

template <class T, class W>
JM_DEVICE uint32_t pair_of_words(uint32_t a, uint32_t b, int c) {
  const uint32_t at = static_cast<uint32_t>(c);
  if constexpr (is_f8<W>) {  // of two neighbouring columns at a time
    const uint32_t both = byte_permute(a, b, 0x5140u + 0x1111u * (at & ~1u));
    return f8_to_pair<T, W>(static_cast<uint16_t>(both >> 16 * (at & 1u)));
  } else {
    return spread_to_pair<T, W>(byte_permute(a, b, 0x0400u + 0x0101u * at));
  }
}

template <class T, class W>
JM_DEVICE uint32_t pair_of_second_bytes(uint32_t x, int c) {
  if constexpr (is_f8<W>) {
    const uint32_t two = byte_permute(x, 0, 0x4420u + 0x0011u * static_cast<uint32_t>(c));
    return f8_to_pair<T, W>(static_cast<uint16_t>(two));
  } else {
    return spread_to_pair<T, W>(x >> 8 * c);
  }
}

}  // namespace jaxmono
