// ldmatrix and mma.sync for a whole warp at once. Fragment layouts are those of the PTX ISA.
//
// A product accumulates in f32, k by k, with fused multiply-adds where the host has them; the GPU
// has its own order, so results agree to rounding.
#pragma once
#include "emulate/ptx.h"

namespace jaxmono::emulate {

template <int N>
static void ldmatrix(void* const* args) {
  const unsigned char* rows[8 * N];
  for (int i = 0; i < 8 * N; ++i)
    rows[i] = static_cast<const unsigned char*>(static_cast<const Ldmatrix*>(args[i])->row);
  for (int lane = 0; lane < 32; ++lane) {
    uint32_t* out = static_cast<const Ldmatrix*>(args[lane])->out;
    for (int m = 0; m < N; ++m) memcpy(&out[m], rows[8 * m + lane / 4] + lane % 4 * 4, 4);
  }
}

template <int N>
static void ldmatrix_trans(void* const* args) {
  const uint16_t* rows[8 * N];
  for (int i = 0; i < 8 * N; ++i)
    rows[i] = static_cast<const uint16_t*>(static_cast<const Ldmatrix*>(args[i])->row);
  for (int lane = 0; lane < 32; ++lane) {
    uint32_t* out = static_cast<const Ldmatrix*>(args[lane])->out;
    for (int m = 0; m < N; ++m) {
      const int r = 8 * m + lane % 4 * 2, c = lane / 4;
      out[m] = static_cast<uint32_t>(rows[r][c]) | static_cast<uint32_t>(rows[r + 1][c]) << 16;
    }
  }
}

void ldmatrix_x4(void* const* args) { ldmatrix<4>(args); }
void ldmatrix_x2(void* const* args) { ldmatrix<2>(args); }
void ldmatrix_x4_trans(void* const* args) { ldmatrix_trans<4>(args); }
void ldmatrix_x2_trans(void* const* args) { ldmatrix_trans<2>(args); }

typedef float Row __attribute__((vector_size(32)));  // 8 columns

// One 16 x 8 tile: d += a b, a in rows of K, b in rows of 8.
template <int K>
static inline void product(Row* __restrict__ d, const float* __restrict__ a,
                           const Row* __restrict__ b) {
  for (int r = 0; r < 16; r += 4) {  // four chains, so that no product waits for the one before
    Row d0 = d[r], d1 = d[r + 1], d2 = d[r + 2], d3 = d[r + 3];
    for (int k = 0; k < K; ++k) {
      d0 += a[r * K + k] * b[k];
      d1 += a[(r + 1) * K + k] * b[k];
      d2 += a[(r + 2) * K + k] * b[k];
      d3 += a[(r + 3) * K + k] * b[k];
    }
    d[r] = d0, d[r + 1] = d1, d[r + 2] = d2, d[r + 3] = d3;
  }
}

// How 32-bit fragment registers hold elements: E of them each, the lower k first.
struct Bf16 {
  static constexpr int E = 2;
  static void expand(float* out, uint32_t x) {
    out[0] = bits_float(x << 16);
    out[1] = bits_float(x & 0xffff0000u);
  }
};
struct F16 {
  static constexpr int E = 2;
  static void expand(float* out, uint32_t x) {
    out[0] = f16_to_float(static_cast<uint16_t>(x));
    out[1] = f16_to_float(static_cast<uint16_t>(x >> 16));
  }
};
struct Tf32 {
  static constexpr int E = 1;
  // The hardware ignores the low 13 bits.
  static void expand(float* out, uint32_t x) { out[0] = bits_float(x & 0xffffe000u); }
};

template <int FORMAT>
struct Byte {
  static constexpr int E = 4;
  static void expand(float* out, uint32_t x) {
    for (int i = 0; i < 4; ++i) {
      const uint8_t code = static_cast<uint8_t>(x >> 8 * i);
      out[i] = FORMAT == MMA_E4M3   ? f8e4m3_to_float(code)
               : FORMAT == MMA_E5M2 ? f8e5m2_to_float(code)
               : FORMAT == MMA_S8   ? static_cast<float>(static_cast<int8_t>(code))
                                    : static_cast<float>(code);
    }
  }
};

constexpr int MAX_MT = 16, MAX_NT = 64;

// INTEGERS: products are exact in f32 over one step of k (32 * 255 * 255 < 2^24), and are added to the
// sums as integers, which wrap.
template <class TA, class TB = TA, bool INTEGERS = false>
static void mma(void* const* args) {
  constexpr int E = TA::E, K = 8 * E;
  const Mma* lanes[32];
  for (int l = 0; l < 32; ++l) lanes[l] = static_cast<const Mma*>(args[l]);
  const int mt = lanes[0]->mt, nt = lanes[0]->nt;
  if (mt > MAX_MT || nt > MAX_NT)
    fail("mma_tiles of %d x %d tiles: at most %d x %d", mt, nt, MAX_MT, MAX_NT);
  alignas(64) float a[MAX_MT][16 * K], d[16 * 8] = {};
  alignas(64) float b[MAX_NT][K * 8];
  for (int l = 0; l < 32; ++l) {
    const int g = l / 4, t = l % 4;
    const uint32_t* f = lanes[l]->a;
    for (int i = 0; i < mt; ++i, f += 4) {
      TA::expand(&a[i][g * K + t * E], f[0]);
      TA::expand(&a[i][(g + 8) * K + t * E], f[1]);
      TA::expand(&a[i][g * K + (t + 4) * E], f[2]);
      TA::expand(&a[i][(g + 8) * K + (t + 4) * E], f[3]);
    }
    f = lanes[l]->b;
    for (int j = 0; j < nt; ++j, f += 2)
      for (int h = 0; h < 2; ++h) {
        float x[E];
        TB::expand(x, f[h]);
        for (int e = 0; e < E; ++e) b[j][((t + 4 * h) * E + e) * 8 + g] = x[e];
      }
  }
  for (int i = 0; i < mt; ++i)
    for (int j = 0; j < nt; ++j) {
      const int at = (i * nt + j) * 4;
      const auto sums = [&](int l) { return static_cast<uint32_t*>(lanes[l]->d) + at; };
      const auto place = [&](int l, int half) { return &d[(l / 4 + 8 * half) * 8 + l % 4 * 2]; };
      if constexpr (INTEGERS) memset(d, 0, sizeof d);
      else
        for (int l = 0; l < 32; ++l)
          for (int h = 0; h < 2; ++h) memcpy(place(l, h), sums(l) + 2 * h, 8);
      product<K>(reinterpret_cast<Row*>(d), a[i], reinterpret_cast<const Row*>(b[j]));
      for (int l = 0; l < 32; ++l)
        for (int h = 0; h < 2; ++h) {
          if constexpr (INTEGERS)
            for (int e = 0; e < 2; ++e)
              sums(l)[2 * h + e] += static_cast<uint32_t>(static_cast<int32_t>(place(l, h)[e]));
          else memcpy(sums(l) + 2 * h, place(l, h), 8);
        }
    }
}

void mma_bf16(void* const* args) { mma<Bf16>(args); }
void mma_f16(void* const* args) { mma<F16>(args); }
void mma_tf32(void* const* args) { mma<Tf32>(args); }

void mma_bytes(void* const* args) {
  const Mma& first = *static_cast<const Mma*>(args[0]);
  using S8 = Byte<MMA_S8>;
  using U8 = Byte<MMA_U8>;
  using E4M3 = Byte<MMA_E4M3>;
  using E5M2 = Byte<MMA_E5M2>;
  switch (first.a_format * 4 + first.b_format) {
    case MMA_S8 * 4 + MMA_S8: return mma<S8, S8, true>(args);
    case MMA_S8 * 4 + MMA_U8: return mma<S8, U8, true>(args);
    case MMA_U8 * 4 + MMA_S8: return mma<U8, S8, true>(args);
    case MMA_U8 * 4 + MMA_U8: return mma<U8, U8, true>(args);
    case MMA_E4M3 * 4 + MMA_E4M3: return mma<E4M3, E4M3>(args);
    case MMA_E4M3 * 4 + MMA_E5M2: return mma<E4M3, E5M2>(args);
    case MMA_E5M2 * 4 + MMA_E4M3: return mma<E5M2, E4M3>(args);
    case MMA_E5M2 * 4 + MMA_E5M2: return mma<E5M2, E5M2>(args);
    default: fail("mma of operand formats %d and %d", first.a_format, first.b_format);
  }
}

}  // namespace jaxmono::emulate
