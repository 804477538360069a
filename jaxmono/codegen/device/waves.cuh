// Sines and cosines of f32: right to 1.6 units in the last place wherever they are (CUDA's, and so XLA's, to 2).
//
//   x  --less the nearest multiple of pi / 2-->  |rest| <= pi / 4, quarters of a turn  --polynomials-->  y
//
// The multiple is taken off in three parts (Cody and Waite) where x is near, |x| < 105615, and as bits of
// 4 / pi times x where it is far (Payne and Hanek). A vector's lanes are computed side by side: one branch
// asks whether any of them is far, where CUDA's functions, one by one, have one each. Of a sine
// and a cosine of the same the compiler finds that they have all but their last selects and signs in common.
// An element that is near takes some 24 instructions, and no conversion.
#pragma once
#include "jaxmono/kernel.cuh"
#include "jaxmono/types.cuh"

namespace jaxmono {

constexpr float FAR_TURN = 105615.0f, LARGEST = 3.40282347e38f;

struct Turn {
  float rest;         // of x, in radians
  uint32_t quarters;  // of a turn that were taken off, modulo 4
};

JM_DEVICE Turn near_turn(float x) {
  constexpr float MAGIC = 12582912.0f;  // 1.5 * 2^23: the sum's last bits are the nearest integer
  const float biased = fmaf(x, 0.636619747f, MAGIC), turns = biased - MAGIC;
  float rest = fmaf(turns, -1.57079601f, x);
  rest = fmaf(turns, -3.13916473e-7f, rest);
  return Turn{fmaf(turns, -5.39030253e-15f, rest), bitcast<uint32_t>(biased)};
}

// 32 bits of 4 / pi from each eighth on. As in Arm's optimized routines.
JM_CONSTANT uint32_t BITS_OF_4_OVER_PI[24] = {
    0x000000a2, 0x0000a2f9, 0x00a2f983, 0xa2f9836e, 0xf9836e4e, 0x836e4e44, 0x6e4e4415, 0x4e441529,
    0x441529fc, 0x1529fc27, 0x29fc2757, 0xfc2757d1, 0x2757d1f5, 0x57d1f534, 0xd1f534dd, 0xf534ddc0,
    0x34ddc0db, 0xddc0db62, 0xc0db6295, 0xdb629599, 0x6295993c, 0x95993c43, 0x993c4390, 0x3c439041};

// Of a finite x of at least 2.
JM_DEVICE Turn far_turn(float x) {
  const uint32_t bits = bitcast<uint32_t>(x), whole = ((bits & 0x7fffff) | 0x800000) << (bits >> 23 & 7);
  const uint32_t* const part = BITS_OF_4_OVER_PI + (bits >> 26 & 15);
  uint64_t turns = static_cast<uint64_t>(whole * part[0]) << 32;  // what are whole turns is lost
  turns += static_cast<uint64_t>(whole) * part[4] + (static_cast<uint64_t>(whole) * part[8] >> 32);
  const uint64_t quarters = turns + (1ull << 61) >> 62;
  const auto left = static_cast<int64_t>(turns - (quarters << 62));
  const auto rest = static_cast<float>(static_cast<double>(left) * 0x1.921fb54442d18p-62);  // pi / 2^63
  const auto q = static_cast<uint32_t>(quarters);
  return bits >> 31 ? Turn{-rest, -q} : Turn{rest, q};
}

JM_DEVICE float sine_of(const Turn& t) {
  const float z = t.rest * t.rest;
  float s = fmaf(-1.95152959e-4f, z, 8.33216087e-3f), c = fmaf(2.44331571e-5f, z, -1.38873162e-3f);
  s = fmaf(s, z, -1.66666546e-1f), c = fmaf(c, z, 4.16666456e-2f);
  c = fmaf(c, z, -0.5f);
  s = copysignf(fmaf(s, z * t.rest, t.rest), t.rest);  // of -0, too
  const float y = t.quarters & 1 ? fmaf(c, z, 1.0f) : s;
  return bitcast<float>(bitcast<uint32_t>(y) ^ (t.quarters << 30 & 0x80000000u));
}

// N sines, or cosines: sines a quarter of a turn later.
template <bool COSINE, int N>
JM_DEVICE void waves(float (&y)[N], const float (&x)[N]) {
  Turn t[N];
  bool far = false;
#pragma unroll
  for (int i = 0; i < N; ++i) {
    t[i] = near_turn(x[i]);  // NaN of infinity and NaN
    far |= fabsf(x[i]) >= FAR_TURN;
  }
  if (far) {
    float left[N];
#pragma unroll
    for (int i = 0; i < N; ++i) left[i] = x[i];
#pragma unroll 1
    for (int done = 0; done < N; ++done) {  // in turn: the text of one, whatever N
      const float one = left[0];
      const Turn of = fabsf(one) >= FAR_TURN && fabsf(one) <= LARGEST ? far_turn(one) : t[0];
#pragma unroll
      for (int i = 0; i + 1 < N; ++i) left[i] = left[i + 1], t[i] = t[i + 1];
      t[N - 1] = of;
    }
  }
#pragma unroll
  for (int i = 0; i < N; ++i) y[i] = sine_of(Turn{t[i].rest, t[i].quarters + COSINE});
}

template <bool COSINE>
JM_DEVICE float wave(float x) {
  const float one[1] = {x};
  float y[1];
  waves<COSINE>(y, one);
  return y[0];
}

}  // namespace jaxmono
