// One output tile of a contraction in ordinary arithmetic: exact f32, f64 and integer dots.
#pragma once
#include "jaxmono/platform.cuh"
#include "jaxmono/warp.cuh"

namespace jaxmono {

// Acc: accumulator type, into which the loaders convert. Each thread owns TM x TN elements.
template <class Acc, int BM_, int BN_, int BK_, int THREADS>
struct SimtGemm {
  static constexpr int BM = BM_, BN = BN_, BK = BK_;
  static constexpr int COLS = BN < THREADS ? BN : THREADS;  // threads across a row of the tile
  static constexpr int ROWS = THREADS / COLS;
  static constexpr int TM = (BM + ROWS - 1) / ROWS, TN = BN / COLS;
  static_assert(TN * COLS == BN && ROWS * COLS == THREADS, "threads must divide the tile's rows");
  static constexpr int PITCH_A = BM + 1, PITCH_B = BN + 1, PITCH = BN + 1;
  static constexpr int OPERANDS = BK * (PITCH_A + PITCH_B);
  static constexpr int SHARED_BYTES =
      (OPERANDS > BM * PITCH ? OPERANDS : BM * PITCH) * int(sizeof(Acc));

  JM_DEVICE static Acc* sums(unsigned char* smem) { return reinterpret_cast<Acc*>(smem); }

  // load_a(m, k) and load_b(k, n) return one element each, zero outside the operand.
  // A_K_FAST / B_K_FAST: which index neighbouring threads should share memory pieces along.
  template <bool A_K_FAST, bool B_K_FAST, class LoadA, class LoadB>
  JM_DEVICE static void run(unsigned char* smem, int row0, int col0, int k0, int tiles,
                            const LoadA& load_a, const LoadB& load_b) {
    Acc* a = reinterpret_cast<Acc*>(smem);
    Acc* b = a + BK * PITCH_A;
    Acc acc[TM][TN];
    const int tx = thread_id() % COLS, ty = thread_id() / COLS;
#pragma unroll
    for (int i = 0; i < TM; ++i)
#pragma unroll
      for (int j = 0; j < TN; ++j) acc[i][j] = Acc(0);
    for (int t = 0; t < tiles; ++t) {
      syncthreads();
      for (int i = thread_id(); i < BM * BK; i += THREADS) {
        const int m = A_K_FAST ? i / BK : i % BM, k = A_K_FAST ? i % BK : i / BM;
        a[k * PITCH_A + m] = load_a(row0 + m, k0 + t * BK + k);
      }
      for (int i = thread_id(); i < BN * BK; i += THREADS) {
        const int n = B_K_FAST ? i / BK : i % BN, k = B_K_FAST ? i % BK : i / BN;
        b[k * PITCH_B + n] = load_b(k0 + t * BK + k, col0 + n);
      }
      syncthreads();
      for (int k = 0; k < BK; ++k)
#pragma unroll
        for (int i = 0; i < TM; ++i) {
          const int m = ty + i * ROWS;
          if (BM % ROWS != 0 && m >= BM) continue;
          const Acc x = a[k * PITCH_A + m];
#pragma unroll
          for (int j = 0; j < TN; ++j) acc[i][j] += x * b[k * PITCH_B + tx + j * COLS];
        }
    }
    syncthreads();
    Acc* out = sums(smem);
#pragma unroll
    for (int i = 0; i < TM; ++i)
#pragma unroll
      for (int j = 0; j < TN; ++j)
        if (BM % ROWS == 0 || ty + i * ROWS < BM)
          out[(ty + i * ROWS) * PITCH + tx + j * COLS] = acc[i][j];
    syncthreads();
  }

  template <int VEC>
  JM_DEVICE static void read(Acc (&out)[VEC], unsigned char* smem, int r, int c) {
#pragma unroll
    for (int e = 0; e < VEC; ++e) out[e] = sums(smem)[r * PITCH + c + e];
  }
};

}  // namespace jaxmono
