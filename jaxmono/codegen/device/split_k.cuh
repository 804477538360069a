// Blocks that share one output tile, each with a share of k: partial tiles meet in global memory and
// every block finishes its share of the rows. The sum has a fixed order: results are deterministic.
#pragma once
#include "jaxmono/platform.cuh"
#include "jaxmono/ptx.cuh"
#include "jaxmono/sync.cuh"
#include "jaxmono/warp.cuh"

namespace jaxmono {

// G: the Gemm whose partial sums are exchanged. The SPLIT tasks of a tile are neighbours in the task
// order, so they run at the same time on any grid of at least SPLIT blocks: the wait always ends.
template <class G, int SPLIT>
struct SplitK {
  static constexpr int ROWS = (G::BM + SPLIT - 1) / SPLIT;  // rows that one block finishes
  static constexpr int TILE = G::BM * G::BN;                // floats of one partial tile
  static constexpr int FLOATS = SPLIT * TILE;               // workspace of one output tile
  static_assert(G::BN % 4 == 0, "rows move in 16-byte pieces");

  // Writes this block's partial tile and waits until all SPLIT are there. `arrivals` only grows: it
  // is a multiple of SPLIT between uses, so it needs no reset between stages and launches.
  JM_DEVICE static void exchange(unsigned char* smem, float* workspace, int split,
                                 unsigned* arrivals) {
    constexpr int QUADS = G::BN / 4;
    for (int i = thread_id(); i < G::BM * QUADS; i += G::THREADS) {
      const int r = i / QUADS, c = i % QUADS * 4;
      alignas(16) float sum[4];
      G::template read<4>(sum, smem, r, c);
      float* to = workspace + split * TILE + r * G::BN + c;
      st_global_16(to, *reinterpret_cast<const Quad*>(sum));
    }
    group_barrier<SPLIT>(arrivals);
  }

  // VEC consecutive elements of row r, summed over the splits in order.
  template <int VEC>
  JM_DEVICE static void read(float (&out)[VEC], const float* workspace, int r, int c) {
    const float* p = workspace + r * G::BN + c;
#pragma unroll
    for (int e = 0; e < VEC; ++e) out[e] = p[e];
#pragma unroll
    for (int s = 1; s < SPLIT; ++s)
#pragma unroll
      for (int e = 0; e < VEC; ++e) out[e] += p[s * TILE + e];
  }
};

}  // namespace jaxmono
