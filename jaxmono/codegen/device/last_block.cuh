// Blocks that share k: each leaves its sums in global memory, and the last one to come adds them up,
// in the order of the shares whichever block that is. Nobody waits.
#pragma once
#include "jaxmono/opaque.cuh"
#include "jaxmono/split_k.cuh"
#include "jaxmono/sync.cuh"

namespace jaxmono {

// True in all threads of the block that comes last of SPLIT and finds in global memory what the others
// wrote there before. flag: shared memory that nobody uses.
template <int SPLIT>
JM_DEVICE bool last_to_arrive(uint32_t* flag, uint32_t* arrivals) {
  static_assert((SPLIT & (SPLIT - 1)) == 0, "the count is never reset and wraps at a power of two");
  syncthreads();  // all warps have written: that precedes the release below
  if (fresh(thread_id()) == 0) *flag = atom_add_acq_rel_gpu(arrivals, 1u) % SPLIT == SPLIT - 1;
  syncthreads();
  return *flag != 0;
}

// G: the Gemv whose sums are exchanged.
template <class G, int SPLIT>
struct LastBlock {
  static constexpr int TILE = G::BM * G::BN, FLOATS = SPLIT * TILE;

  // True in all threads of the block that finds the others' sums in `parts`.
  JM_DEVICE static bool arrive(unsigned char* smem, float* parts, int split, uint32_t* arrivals) {
    for (int i = thread_id(); i < TILE; i += G::THREADS) {
      float sum[1];
      G::template read<1>(sum, smem, i / G::BN, i % G::BN);
      store<float>(parts + split * TILE + i, sum[0]);
    }
    return last_to_arrive<SPLIT>(reinterpret_cast<uint32_t*>(smem), arrivals);  // smem: scratch
  }

  template <int VEC>
  JM_DEVICE static void read(float (&out)[VEC], const float* parts, int r, int c) {
    sum_shares<SPLIT, TILE>(out, parts + r * G::BN + c);
  }
};

}  // namespace jaxmono
