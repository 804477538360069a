// Integers of 4 bits, two in a byte, the first in its low half. Memory alone has them: in registers they are
// int8_t or uint8_t, here T.
//
//   FourBits<T>            in place of const T*: `+ offset` counts elements
//   load, load_ro          as of any pointer; neighbours begin at a multiple of their number
//   cp_async_stream_16     32 of them
//   void four_bits_to_floats<T>(float (&)[32], const uint32_t (&)[4])
//   uint32_t pair_of_fours<X, T>(uint32_t x)      elements 0 and 4 of a word as two bf16 or f16
//   Words in_order_of_fours(const Words&)         what they are multiplied with, four words
//
// An integer u below the exponent of 2^23 is the f32 2^23 + u, and one that lies 4 i bits further up is
// 2^(23 - 4 i) + u below that one's: no shift brings it down. With a word and its upper half as they are, an
// element takes an `and or` and a subtraction; one instruction turns the signs of eight (x ^ 8 is x + 8).
#pragma once
#include "jaxmono/bytes.cuh"
#include "jaxmono/ptx.cuh"
#include "jaxmono/vec.cuh"

namespace jaxmono {

template <class T>
struct FourBitsAt {
  const uint8_t* bytes;
  long long at;
  JM_DEVICE const uint8_t* address() const { return bytes + (at >> 1); }
  template <class I>
  JM_DEVICE FourBitsAt operator+(I more) const {
    return {bytes, at + static_cast<long long>(more)};
  }
  template <class I>
  JM_DEVICE FourBitsAt operator-(I less) const {
    return {bytes, at - static_cast<long long>(less)};
  }
};
template <class T>
struct FourBits {
  using Element = T;
  const uint8_t* bytes;
  JM_DEVICE explicit FourBits(const T* p) : bytes(reinterpret_cast<const uint8_t*>(p)) {}
  template <class I>
  JM_DEVICE FourBitsAt<T> operator+(I at) const {
    return {bytes, static_cast<long long>(at)};
  }
};

template <class T>
constexpr bool is_four_bits = false;
template <class T>
constexpr bool is_four_bits<FourBits<T>> = true;

// Bits 4 i to 4 i + 3 of x.
template <class T>
JM_DEVICE T four_bits_of(uint32_t x, int i) {
  const uint32_t top = x << (28 - 4 * i);
  if constexpr (is_signed<T>) return static_cast<T>(static_cast<int32_t>(top) >> 28);
  else return static_cast<T>(top >> 28);
}

template <class T, int N>
JM_DEVICE Vec<T, N> four_bits_from(const Raw<uint8_t, N / 2>& raw) {
  Vec<T, N> out;
#pragma unroll
  for (int i = 0; i < N; ++i) out.x[i] = four_bits_of<T>(raw.v.x[i / 2], i % 2);
  return out;
}

template <class To, int N, class T>
JM_DEVICE Vec<To, N> load(FourBitsAt<T> p) {
  Raw<uint8_t, N / 2> raw;
#pragma unroll
  for (int i = 0; i < Raw<uint8_t, N / 2>::BYTES / Raw<uint8_t, N / 2>::PIECE; ++i)
    raw.piece[i] = reinterpret_cast<const typename Raw<uint8_t, N / 2>::Piece*>(p.address())[i];
  return convert<To>(four_bits_from<T, N>(raw));
}
template <class To, class T>
JM_DEVICE To load(FourBitsAt<T> p) {
  return convert<To>(four_bits_of<T>(*p.address(), static_cast<int>(p.at & 1)));
}
template <class To, int N, class T>
JM_DEVICE Vec<To, N> load_ro(FourBitsAt<T> p) {
  Raw<uint8_t, N / 2> raw;
#pragma unroll
  for (int i = 0; i < Raw<uint8_t, N / 2>::BYTES / Raw<uint8_t, N / 2>::PIECE; ++i)
    raw.piece[i] = ld_nc(reinterpret_cast<const typename Raw<uint8_t, N / 2>::Piece*>(p.address()) + i);
  return convert<To>(four_bits_from<T, N>(raw));
}
template <class To, class T>
JM_DEVICE To load_ro(FourBitsAt<T> p) {
  return convert<To>(four_bits_of<T>(ld_nc(p.address()), static_cast<int>(p.at & 1)));
}

template <class T>
JM_DEVICE void prefetch_l1(FourBitsAt<T> p) {
  prefetch_l1(p.address());
}
template <class T>
JM_DEVICE void prefetch_l2(FourBitsAt<T> p) {
  prefetch_l2(p.address());
}
template <class T>
JM_DEVICE void cp_async_stream_16(void* smem, FourBitsAt<T> p, bool pred = true) {
  cp_async_stream_16(smem, p.address(), pred);
}
template <class T>
JM_DEVICE void cp_async_stream_16(void* smem, FourBits<T> p, bool pred = true) {
  cp_async_stream_16(smem, p.bytes, pred);
}

template <class T>
JM_DEVICE void four_bits_to_floats(float (&out)[32], const uint32_t (&x)[4]) {
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const uint32_t low = is_signed<T> ? x[i] ^ 0x88888888u : x[i], high = low >> 16;
#pragma unroll
    for (int e = 0; e < 8; ++e) {
      const uint32_t one = static_cast<uint32_t>(150 - 4 * (e % 4)) << 23;
      const uint32_t u = and_xor(e < 4 ? low : high, 0xfu << 4 * (e % 4), one);
      out[8 * i + e] = bitcast<float>(u) - (bitcast<float>(one) + (is_signed<T> ? 8.0f : 0.0f));
    }
  }
}

// What else is in x does not matter.
template <class X, class T>
JM_DEVICE uint32_t pair_of_fours(uint32_t x) {
  constexpr uint32_t TURNED = is_signed<T> ? 0x00080008u : 0;
  if constexpr (is_same<X, bf16>) {  // 128 + u, less 128, and 8 where a sign was turned
    const uint32_t u = and_xor(x, 0x000f000fu, 0x43004300u | TURNED);
    return bf16x2_minus(u, is_signed<T> ? 0x43084308u : 0x43004300u);
  } else {  // 1024 + u
    const uint32_t u = and_xor(x, 0x000f000fu, 0x64006400u | TURNED);
    return f16x2_plus(u, is_signed<T> ? 0xe408e408u : 0xe400e400u);
  }
}

// Eight neighbours of 16 bits in the order 0 4 1 5 2 6 3 7, in which pair_of_fours takes a word's elements.
template <class Words>
JM_DEVICE Words in_order_of_fours(const Words& x) {
  Words out;
  const uint32_t(&in)[4] = reinterpret_cast<const uint32_t(&)[4]>(x);
  uint32_t(&to)[4] = reinterpret_cast<uint32_t(&)[4]>(out);
#pragma unroll
  for (int i = 0; i < 4; ++i) to[i] = byte_permute(in[i / 2], in[2 + i / 2], i % 2 ? 0x7632u : 0x5410u);
  return out;
}

}  // namespace jaxmono
