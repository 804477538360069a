// Blocks that share k: each leaves its sums in global memory, and the last one to come adds them up,
// in the order of the shares whichever block that is. Nobody waits.
#pragma once
#include "jaxmono/sync.cuh"
#include "jaxmono/vec.cuh"

namespace jaxmono {

// G: the Gemv whose sums are exchanged.
template <class G, int SPLIT>
struct LastBlock {
  static_assert((SPLIT & (SPLIT - 1)) == 0, "the count is never reset and wraps at a power of two");
  static constexpr int TILE = G::BM * G::BN, FLOATS = SPLIT * TILE;

  // True in all threads of the block that finds the others' sums in `parts`.
  JM_DEVICE static bool arrive(unsigned char* smem, float* parts, int split, uint32_t* arrivals) {
    for (int i = thread_id(); i < TILE; i += G::THREADS) {
      float sum[1];
      G::template read<1>(sum, smem, i / G::BN, i % G::BN);
      store<float>(parts + split * TILE + i, sum[0]);
    }
    uint32_t* const last = reinterpret_cast<uint32_t*>(smem);  // scratch
    syncthreads();  // all sums are written: they precede the release below
    if (thread_id() == 0) *last = atom_add_acq_rel_gpu(arrivals, 1u) % SPLIT == SPLIT - 1;
    syncthreads();
    return *last != 0;
  }

  template <int VEC>
  JM_DEVICE static void read(float (&out)[VEC], const float* parts, int r, int c) {
    Vec<float, VEC> part[SPLIT];
#pragma unroll
    for (int s = 0; s < SPLIT; ++s)
      part[s] = load<float, VEC>(parts + s * TILE + r * G::BN + c);
#pragma unroll
    for (int e = 0; e < VEC; ++e) out[e] = part[0].x[e];
#pragma unroll
    for (int s = 1; s < SPLIT; ++s)
#pragma unroll
      for (int e = 0; e < VEC; ++e) out[e] += part[s].x[e];
  }
};

}  // namespace jaxmono
