// Blocks that share one output tile, each with a share of k: partial tiles meet in global memory and
// every block finishes its share of the rows, or the block of the last share the tile. The sum has a
// fixed order: results are deterministic.
//
// Not through the shared memory of a cluster: on an H100 two blocks exchange 4 KB each in 530 clocks by
// st.async, 680 by mail (mailbox.cuh) and 2200 with a counter as here, 16 KB in 1340, 1330 and 2900, 48 KB
// (half of the sums of 128 x 192) in 3300, 4070 (at best 3140) and 5100. From SM to SM go 17 bytes a clock.
#pragma once
#include "jaxmono/mailbox.cuh"
#include "jaxmono/opaque.cuh"
#include "jaxmono/sync.cuh"
#include "jaxmono/vec.cuh"

namespace jaxmono {

// A barrier of SIZE blocks (a power of two). The count only grows, a multiple of SIZE each time, so
// it needs no reset between stages and launches; it may wrap.
template <int SIZE>
JM_DEVICE void group_barrier(uint32_t* count) {
  static_assert((SIZE & (SIZE - 1)) == 0, "the count wraps at a power of two");
  syncthreads();  // all warps have arrived, and their writes precede the release below
  if (fresh(thread_id()) == 0) {
    const uint32_t target = (atom_add_acq_rel_gpu(count, 1u) / SIZE + 1) * SIZE;
    wait_until([&] { return static_cast<int32_t>(ld_acquire_gpu(count) - target) >= 0; },
               "split-K partner");
  }
  syncthreads();
}

// VEC neighbouring elements of SPLIT shares that lie TILE elements apart, summed in their order.
template <int SPLIT, int TILE, int VEC, class Acc>
JM_DEVICE void sum_shares(Acc (&out)[VEC], const Acc* first) {
  Vec<Acc, VEC> part[SPLIT];
#pragma unroll
  for (int s = 0; s < SPLIT; ++s) part[s] = load<Acc, VEC>(first + s * TILE);
#pragma unroll
  for (int e = 0; e < VEC; ++e) out[e] = part[0].x[e];
#pragma unroll
  for (int s = 1; s < SPLIT; ++s)
#pragma unroll
    for (int e = 0; e < VEC; ++e) out[e] += part[s].x[e];
}

// G: the Gemm whose partial sums are exchanged. The SPLIT tasks of a tile are neighbours in the task
// order, so they run at the same time on any grid of at least SPLIT blocks: the wait always ends.
// GROUP: neighbouring rows that one block finishes together. MAILED: the workspace is a Mailbox's.
template <class G, int SPLIT, bool MAILED, int GROUP = 1>
struct SplitK {
  static constexpr int SHARE = (G::BM + SPLIT - 1) / SPLIT;
  static constexpr int ROWS = (SHARE + GROUP - 1) / GROUP * GROUP;  // that one block finishes at most
  static constexpr int TILE = G::BM * G::BN;                // elements of one partial tile
  static constexpr int FLOATS = SPLIT * TILE;  // workspace of one output tile; integers are as wide
  static_assert(G::BN % 4 == 0, "rows move in 16-byte pieces");

  // Writes four neighbouring elements of this block's partial tile.
  template <class Acc>
  JM_DEVICE static void put(float* workspace, int split, int r, int c, const Acc (&x)[4]) {
    float* const to = workspace + split * TILE + r * G::BN + c;
    if constexpr (MAILED) mail(to, x);
    else store<Acc, 4>(reinterpret_cast<Acc*>(to), Vec<Acc, 4>{x[0], x[1], x[2], x[3]});
  }

  // Writes this block's partial tile and waits until all SPLIT are there; where they are mailed, `read`
  // waits.
  JM_DEVICE static void exchange(unsigned char* smem, float* workspace, int split,
                                 uint32_t* arrivals) {
    using Acc = typename G::Acc;
    constexpr int QUADS = G::BN / 4;
    for (int i = thread_id(); i < G::BM * QUADS; i += G::THREADS) {
      const int r = i / QUADS, c = i % QUADS * 4;
      Vec<Acc, 4> sum;
      G::template read<4>(sum.x, smem, r, c);
      if constexpr (MAILED) put(workspace, split, r, c, sum.x);
      else store<Acc, 4>(reinterpret_cast<Acc*>(workspace) + split * TILE + r * G::BN + c, sum);
    }
    if constexpr (!MAILED) group_barrier<SPLIT>(arrivals);
  }

  // VEC consecutive elements of row r, summed over the splits in order; of mailed ones once.
  template <int VEC, class Acc>
  JM_DEVICE static void read(Acc (&out)[VEC], float* workspace, int r, int c) {
    if constexpr (MAILED) {
#pragma unroll
      for (int e = 0; e < VEC; ++e) out[e] = 0;
      add_mailed<SPLIT>(out, workspace + r * G::BN + c, TILE);
    } else {
      sum_shares<SPLIT, TILE>(out, reinterpret_cast<const Acc*>(workspace) + r * G::BN + c);
    }
  }
};

// G: a Gemv. Small tiles: the block of the last share finishes all of one, the others mail theirs to it
// and are done.
template <class G, int SPLIT>
struct MailedShares {
  static constexpr int TILE = G::BM * G::BN, FLOATS = SPLIT * TILE;

  JM_DEVICE static void send(unsigned char* smem, float* words, int split) {
    for (int i = thread_id(); i < TILE; i += G::THREADS) {
      float sum[1];
      G::template read<1>(sum, smem, i / G::BN, i % G::BN);
      mail(words + split * TILE + i, sum);
    }
  }

  // VEC consecutive elements of row r, summed over the shares in order: by the block of the last one, once.
  template <int VEC>
  JM_DEVICE static void read(float (&out)[VEC], unsigned char* smem, float* words, int r, int c) {
    float own[VEC];
    G::template read<VEC>(own, smem, r, c);
#pragma unroll
    for (int e = 0; e < VEC; ++e) out[e] = 0.0f;
    add_mailed<SPLIT - 1>(out, words + r * G::BN + c, TILE);
#pragma unroll
    for (int e = 0; e < VEC; ++e) out[e] += own[e];
  }
};

}  // namespace jaxmono
