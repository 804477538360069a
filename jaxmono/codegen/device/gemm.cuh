// One output tile of a contraction, by one block: tensor cores, cp.async multistage (gemm_ring.cuh).
#pragma once
#include "jaxmono/gemm_ring.cuh"
#include "jaxmono/mma.cuh"
#include "jaxmono/vec.cuh"
#include "jaxmono/warp.cuh"

namespace jaxmono {

// T: bf16, f16, float (tf32), int8_t, uint8_t, f8e4m3 or f8e5m2; TB: that of the right operand, of the
// same size. BM, BN, BK: tile. WARPS_M x WARPS_N warps share the tile; the others: as of GemmRing.
template <class T, int BM_, int BN_, int BK_, int STAGES_, int WARPS_M, int WARPS_N, int WARPS_K_,
          bool A_K_MAJOR, bool B_K_MAJOR, int PANEL = 0, class TB = T>
struct Gemm : GemmRing<T, TB, typename MmaTraits<T, TB>::Acc, BM_, BN_, BK_, STAGES_,
                       32 * WARPS_M * WARPS_N * WARPS_K_, WARPS_K_, A_K_MAJOR, B_K_MAJOR, PANEL> {
  using Ring = GemmRing<T, TB, typename MmaTraits<T, TB>::Acc, BM_, BN_, BK_, STAGES_,
                        32 * WARPS_M * WARPS_N * WARPS_K_, WARPS_K_, A_K_MAJOR, B_K_MAJOR, PANEL>;
  using typename Ring::Acc;
  using typename Ring::TileA;
  using typename Ring::TileB;
  using Ring::A_BYTES, Ring::BK, Ring::BM, Ring::BN, Ring::PARTIAL, Ring::PITCH, Ring::STAGES,
      Ring::STAGE_BYTES, Ring::WARPS_K;
  using Ring::ring, Ring::sums;
  static constexpr int MT = BM / WARPS_M / 16, NT = BN / WARPS_N / 8;
  static constexpr int KSTEP = MmaTraits<T, TB>::K;
  static_assert(MT * WARPS_M * 16 == BM && NT * WARPS_N * 8 == BN, "warps must divide the tile");
  static_assert(BK % (KSTEP * WARPS_K) == 0, "k warps must divide the k tile");

  // Runs `tiles` k tiles (after `prologue`) and leaves the partial sums in shared memory, all warps
  // arrived: element (r, c) is the sum over w of sums()[w * PARTIAL + r * PITCH + c].
  template <class LoadA, class LoadB>
  JM_DEVICE static void mainloop(unsigned char* smem, int row0, int col0, int k0, int tiles,
                                 const LoadA& load_a_piece, const LoadB& load_b_piece) {
    Acc acc[MT][NT][4];
#pragma unroll
    for (int i = 0; i < MT; ++i)
#pragma unroll
      for (int j = 0; j < NT; ++j)
#pragma unroll
        for (int e = 0; e < 4; ++e) acc[i][j][e] = Acc(0);

    const int warp = warp_id();
    const int row = warp % WARPS_M * (MT * 16);
    const int col = warp / WARPS_M % WARPS_N * (NT * 8);
    const int wk = warp / (WARPS_M * WARPS_N);

    constexpr int STEPS = BK / KSTEP / WARPS_K;
    Ring::template march<STEPS, Fragments<MT, NT>>(
        smem, row0, col0, k0, tiles, load_a_piece, load_b_piece,
        [&](Fragments<MT, NT>& into, int t, int s) {
          unsigned char* slot = ring(smem) + t % STAGES * STAGE_BYTES;
          const int k = (s * WARPS_K + wk) * KSTEP;
          load_fragments<T, TileA, A_K_MAJOR, TileB, B_K_MAJOR>(
              into, PANEL ? smem : slot, slot + A_BYTES, row, col, PANEL ? t * BK + k : k, k);
        },
        [&](const Fragments<MT, NT>& f) { multiply<T, TB>(acc, f); });
    // Nobody reads the ring any more, the sums may replace it.
    store_accumulators<PITCH, INTERLEAVED<T, B_K_MAJOR, NT>, EVEN_ODD<T, A_K_MAJOR>,
                       EVEN_ODD<T, B_K_MAJOR>>(sums(smem) + wk * PARTIAL, acc, row, col);
    syncthreads();
  }
};

}  // namespace jaxmono
