// Threefry-2x32 with 20 rounds, the generator of jax.random: Salmon et al., "Parallel Random Numbers:
// As Easy as 1, 2, 3" (SC 2011), section 3.3.
#pragma once
#include "jaxmono/platform.cuh"
#include "jaxmono/types.cuh"
#include "jaxmono/vec.cuh"

namespace jaxmono {

struct Threefry {
  uint32_t x0, x1;
};

JM_DEVICE void threefry_round(Threefry& c, int r) {
  c.x0 += c.x1;
  c.x1 = (c.x1 << r | c.x1 >> (32 - r)) ^ c.x0;
}

// Four rounds and a part of the key; a, b: which. Unrolled: an element is 75 instructions, by count,
// and in a loop over the five a third more.
template <int I>
JM_DEVICE void threefry_rounds(Threefry& c, uint32_t a, uint32_t b) {
  constexpr int R[2][4] = {{13, 15, 26, 6}, {17, 29, 16, 24}};
#pragma unroll
  for (int i = 0; i < 4; ++i) threefry_round(c, R[I & 1][i]);
  c.x0 += a;
  c.x1 += b + (I + 1);
}

JM_DEVICE Threefry threefry2x32(uint32_t k0, uint32_t k1, uint32_t n0, uint32_t n1) {
  const uint32_t k2 = k0 ^ k1 ^ 0x1BD11BDAu;
  Threefry c = {n0 + k0, n1 + k1};
  threefry_rounds<0>(c, k1, k2);
  threefry_rounds<1>(c, k2, k0);
  threefry_rounds<2>(c, k0, k1);
  threefry_rounds<3>(c, k1, k2);
  threefry_rounds<4>(c, k2, k0);
  return c;
}

JM_DEVICE uint32_t op_threefry2x32_0(uint32_t k0, uint32_t k1, uint32_t n0, uint32_t n1) {
  return threefry2x32(k0, k1, n0, n1).x0;
}

JM_DEVICE uint32_t op_threefry2x32_1(uint32_t k0, uint32_t k1, uint32_t n0, uint32_t n1) {
  return threefry2x32(k0, k1, n0, n1).x1;
}

JM_DEVICE uint32_t op_threefry2x32_xor(uint32_t k0, uint32_t k1, uint32_t n0, uint32_t n1) {
  const Threefry c = threefry2x32(k0, k1, n0, n1);
  return c.x0 ^ c.x1;
}

#define JM_LIFT(name)                                                                     \
  template <class... A>                                                                   \
  JM_DEVICE auto v_##name(const A&... a) {                                                \
    Vec<uint32_t, Lanes<A...>::value> r;                                                  \
    JM_UNROLL for (int i = 0; i < Lanes<A...>::value; ++i) r.x[i] = op_##name(at(a, i)...); \
    return r;                                                                             \
  }

JM_LIFT(threefry2x32_0) JM_LIFT(threefry2x32_1) JM_LIFT(threefry2x32_xor)

#undef JM_LIFT

}  // namespace jaxmono
