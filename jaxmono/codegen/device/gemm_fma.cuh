// One output tile of f32 in ordinary multiply-adds, for products that have to be exact (gemm_ring.cuh).
//
// A thread has TM x TN sums, a warp four threads along m (y) and eight along n (x). Operands come from shared
// memory 16 bytes at a time, four k of a row, or four rows or columns of a k, as they lie there: of 8 x 8 sums
// 16 loads feed 256 multiply-adds.
//
//   [m][k]   rows  y + 4 i                 [k][m]   rows  4 y + i % 4 + i / 4 * 16
//   [n][k]   cols  x + 8 j                 [k][n]   cols  4 x + j % 4 + j / 4 * 32
//
// Lanes l and l ^ 1 have the same rows, l and l ^ 2 the same columns: then sixteen lanes are served at once,
// and not eight, who alone would take as long as the products.
#pragma once
#include "jaxmono/gemm_ring.cuh"
#include "jaxmono/vec.cuh"
#include "jaxmono/warp.cuh"

namespace jaxmono {

// Parameters as of Gemm; the left operand is never a panel.
template <int BM_, int BN_, int BK_, int STAGES_, int WARPS_M, int WARPS_N, int WARPS_K_, bool A_K_MAJOR,
          bool B_K_MAJOR>
struct GemmFma : GemmRing<float, float, float, BM_, BN_, BK_, STAGES_, 32 * WARPS_M * WARPS_N * WARPS_K_,
                          WARPS_K_, A_K_MAJOR, B_K_MAJOR, 0> {
  using Ring = GemmRing<float, float, float, BM_, BN_, BK_, STAGES_, 32 * WARPS_M * WARPS_N * WARPS_K_,
                        WARPS_K_, A_K_MAJOR, B_K_MAJOR, 0>;
  using typename Ring::TileA;
  using typename Ring::TileB;
  using Ring::A_BYTES, Ring::BK, Ring::BM, Ring::BN, Ring::PARTIAL, Ring::PITCH, Ring::STAGES,
      Ring::STAGE_BYTES, Ring::WARPS_K;
  using Ring::ring, Ring::sums;
  static constexpr int TM = BM / WARPS_M / 4, TN = BN / WARPS_N / 8;
  static_assert(TM * WARPS_M * 4 == BM && TN * WARPS_N * 8 == BN && TM % 4 == 0 && TN % 4 == 0, "");
  static_assert(BK % (4 * WARPS_K) == 0, "k warps must divide the k tile");

  struct Fragments {
    Vec<float, 4> a[TM], b[TN];  // four k of each row or column, or TM / 4 and TN / 4 fours of each k
  };

  // of: element i of the thread's in step k of four.
  JM_DEVICE static float a_of(const Fragments& f, int i, int k) {
    return A_K_MAJOR ? f.a[i].x[k] : f.a[k * (TM / 4) + i / 4].x[i % 4];
  }
  JM_DEVICE static float b_of(const Fragments& f, int j, int k) {
    return B_K_MAJOR ? f.b[j].x[k] : f.b[k * (TN / 4) + j / 4].x[j % 4];
  }
  JM_DEVICE static int row_of(int lane, int i) {
    const int y = lane >> 1 & 1 | lane >> 3 & 2;
    return A_K_MAJOR ? y + 4 * i : 4 * y + i % 4 + i / 4 * 16;
  }
  JM_DEVICE static int col_of(int lane, int j) {
    const int x = lane & 1 | lane >> 1 & 6;
    return B_K_MAJOR ? x + 8 * j : 4 * x + j % 4 + j / 4 * 32;
  }

  // As Gemm's.
  template <class LoadA, class LoadB>
  JM_DEVICE static void mainloop(unsigned char* smem, int row0, int col0, int k0, int tiles,
                                 const LoadA& load_a_piece, const LoadB& load_b_piece) {
    float acc[TM][TN];
#pragma unroll
    for (int i = 0; i < TM; ++i)
#pragma unroll
      for (int j = 0; j < TN; ++j) acc[i][j] = 0.0f;
    const int warp = warp_id(), lane = lane_id();
    const int row = warp % WARPS_M * (TM * 4) + row_of(lane, 0);
    const int col = warp / WARPS_M % WARPS_N * (TN * 8) + col_of(lane, 0);
    const int wk = warp / (WARPS_M * WARPS_N);

    Ring::template march<BK / 4 / WARPS_K, Fragments, TM * TN <= 64 ? 2 : 1>(
        smem, row0, col0, k0, tiles, load_a_piece, load_b_piece,
        [&](Fragments& into, int t, int s) {
          unsigned char* const slot = ring(smem) + t % STAGES * STAGE_BYTES;
          const int k = (s * WARPS_K + wk) * 4;
#pragma unroll
          for (int i = 0; i < TM; ++i)
            into.a[i] = load<float, 4>(
                A_K_MAJOR ? TileA::at(slot, row + 4 * i, k)
                          : TileA::at(slot, k + i / (TM / 4), row + i % (TM / 4) * 16));
#pragma unroll
          for (int j = 0; j < TN; ++j)
            into.b[j] = load<float, 4>(
                B_K_MAJOR ? TileB::at(slot + A_BYTES, col + 8 * j, k)
                          : TileB::at(slot + A_BYTES, k + j / (TN / 4), col + j % (TN / 4) * 32));
        },
        [&](const Fragments& f) {
#pragma unroll
          for (int k = 0; k < 4; ++k)
#pragma unroll
            for (int i = 0; i < TM; ++i)
#pragma unroll
              for (int j = 0; j < TN; ++j) acc[i][j] += a_of(f, i, k) * b_of(f, j, k);
        });
    float* const to = sums(smem) + wk * PARTIAL + row * PITCH + col;
#pragma unroll
    for (int i = 0; i < TM; ++i)
#pragma unroll
      for (int j = 0; j < TN; ++j)
        to[row_of(0, i) * PITCH + col_of(0, j)] = acc[i][j];
    syncthreads();
  }
};

}  // namespace jaxmono
