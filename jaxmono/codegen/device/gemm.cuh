// One output tile of a contraction, by one block: tensor cores, cp.async multistage.
//
//   global/expression --loader--> ring of STAGES x (A tile, B tile) --ldmatrix, mma--> registers
//   registers --> partial sums in shared memory [WARPS_K][BM][BN] --> epilogue (generated code)
//
// The ring is as deep as shared memory allows: inside a persistent kernel a stage of the network is
// short, and its time is mostly the first bytes' latency, so everything that fits is requested at once.
#pragma once
#include "jaxmono/mma.cuh"
#include "jaxmono/vec.cuh"
#include "jaxmono/warp.cuh"

namespace jaxmono {

// T: bf16, f16, float (tf32), int8_t, uint8_t, f8e4m3 or f8e5m2; TB: that of the right operand, of the
// same size. BM, BN, BK: tile. WARPS_M x WARPS_N warps share the tile; WARPS_K such sets take alternate k steps and are summed at the end. *_K_MAJOR: the layout that the loader
// fills, [m or n][k] or [k][m or n]. PANEL: k steps of A that stay in shared memory as a whole (a
// normalised operand that was computed there); 0: A is streamed through the ring with B.
template <class T, int BM_, int BN_, int BK_, int STAGES_, int WARPS_M, int WARPS_N, int WARPS_K,
          bool A_K_MAJOR, bool B_K_MAJOR, int PANEL = 0, class TB = T>
struct Gemm {
  using Acc = typename MmaTraits<T, TB>::Acc;
  static constexpr int BM = BM_, BN = BN_, BK = BK_, STAGES = STAGES_;
  static constexpr int THREADS = 32 * WARPS_M * WARPS_N * WARPS_K;
  static constexpr int MT = BM / WARPS_M / 16, NT = BN / WARPS_N / 8;
  static constexpr int KSTEP = MmaTraits<T, TB>::K;
  static_assert(MT * WARPS_M * 16 == BM && NT * WARPS_N * 8 == BN, "warps must divide the tile");
  static_assert(BK % (KSTEP * WARPS_K) == 0, "k warps must divide the k tile");
  static_assert(PANEL == 0 || A_K_MAJOR, "a panel is [m][k]");

  using TileA = Tile<T, A_K_MAJOR ? BM : BK, A_K_MAJOR ? (PANEL ? PANEL : BK) : BM>;
  using TileB = Tile<TB, B_K_MAJOR ? BN : BK, B_K_MAJOR ? BK : BN>;
  static constexpr int A_BYTES = PANEL ? 0 : TileA::BYTES;
  static constexpr int STAGE_BYTES = A_BYTES + TileB::BYTES;
  static constexpr int PANEL_BYTES = PANEL ? TileA::BYTES : 0;
  static constexpr int PITCH = BN + 4;  // elements between rows of the partial sums
  static constexpr int PARTIAL = BM * PITCH;

  // Layout: panel | ring; the partial sums reuse the ring.
  static constexpr int RING_BYTES = STAGES * STAGE_BYTES;
  static constexpr int SUM_BYTES = WARPS_K * PARTIAL * 4;
  static constexpr int SHARED_BYTES =
      PANEL_BYTES + (RING_BYTES > SUM_BYTES ? RING_BYTES : SUM_BYTES);

  JM_DEVICE static unsigned char* ring(unsigned char* smem) { return smem + PANEL_BYTES; }
  JM_DEVICE static Acc* sums(unsigned char* smem) {
    return reinterpret_cast<Acc*>(smem + PANEL_BYTES);
  }

  // Requests k tile `t` (0-based within this block's share) into its ring slot.
  template <class LoadA>
  JM_DEVICE static void fetch_a(unsigned char* smem, int t, int row0, int k0,
                                const LoadA& load_a_piece) {
    unsigned char* slot = ring(smem) + t % STAGES * STAGE_BYTES;
    const int k = k0 + t * BK;
    if constexpr (!PANEL) {
      if constexpr (A_K_MAJOR) TileA::template fill<THREADS>(slot, row0, k, load_a_piece);
      else TileA::template fill<THREADS>(slot, k, row0, load_a_piece);
    }
  }

  template <class LoadB>
  JM_DEVICE static void fetch_b(unsigned char* smem, int t, int col0, int k0,
                                const LoadB& load_b_piece) {
    unsigned char* slot = ring(smem) + t % STAGES * STAGE_BYTES + A_BYTES;
    const int k = k0 + t * BK;
    if constexpr (B_K_MAJOR) TileB::template fill<THREADS>(slot, col0, k, load_b_piece);
    else TileB::template fill<THREADS>(slot, k, col0, load_b_piece);
  }

  // k tiles whose right operand is requested ahead of a grid barrier: as many bytes as are in flight
  // during a barrier anyway. More would keep the threads issuing when the barrier opens.
  static constexpr int AHEAD_BYTES = 40 * 1024;
  static constexpr int AHEAD = TileB::BYTES >= AHEAD_BYTES               ? 1
                               : AHEAD_BYTES / TileB::BYTES < STAGES ? AHEAD_BYTES / TileB::BYTES
                                                                     : STAGES;

  // Requests the right operand of the first AHEAD k tiles, as one cp.async group: what may be done
  // before the grid barrier behind which the left operand is written.
  template <class LoadB>
  JM_DEVICE static void prefetch(unsigned char* smem, int col0, int k0, int tiles,
                                 const LoadB& load_b_piece) {
#pragma unroll 1
    for (int t = 0; t < AHEAD && t < tiles; ++t) fetch_b(smem, t, col0, k0, load_b_piece);
    cp_async_commit();
  }

  // Requests the first STAGES k tiles, each its own cp.async group; not again what `prefetch` has, if
  // it ran (`fetched`).
  template <class LoadA, class LoadB>
  JM_DEVICE static void prologue(unsigned char* smem, int row0, int col0, int k0, int tiles,
                                 bool fetched, const LoadA& load_a_piece,
                                 const LoadB& load_b_piece) {
#pragma unroll 1
    for (int t = 0; t < STAGES; ++t) {
      if (t < tiles) {
        fetch_a(smem, t, row0, k0, load_a_piece);
        if (!fetched || t >= AHEAD) fetch_b(smem, t, col0, k0, load_b_piece);
      }
      cp_async_commit();
    }
  }

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

    // Two sets of fragments: the loads of a step are issued before the products of the one before,
    // across k tiles too, so that the tensor cores do not wait for shared memory.
    constexpr int STEPS = BK / KSTEP / WARPS_K;
    Fragments<MT, NT> f[2];
    const auto load = [&](Fragments<MT, NT>& into, int t, int s) {
      unsigned char* slot = ring(smem) + t % STAGES * STAGE_BYTES;
      const int k = (s * WARPS_K + wk) * KSTEP;
      load_fragments<T, TileA, A_K_MAJOR, TileB, B_K_MAJOR>(
          into, PANEL ? smem : slot, slot + A_BYTES, row, col, PANEL ? t * BK + k : k, k);
    };
    cp_async_wait<STAGES - 1>();
    syncthreads();
    if (tiles > 0) load(f[0], 0, 0);  // a split-K share may be empty
    constexpr int TWICE = STEPS % 2 ? 2 : 1;  // an even number of steps keeps f's index constant
#pragma unroll 1
    for (int t0 = 0; t0 < tiles; t0 += TWICE) {
#pragma unroll
      for (int u = 0; u < TWICE; ++u) {
        const int t = t0 + u;
        if (TWICE == 2 && t >= tiles) break;
#pragma unroll
        for (int s = 0; s < STEPS; ++s) {
          const int now = (u * STEPS + s) % 2;
          if (s == STEPS - 1) {
            cp_async_wait<STAGES - 2>();  // tile t + 1 has landed; all have read tile t
            syncthreads();
            if (t + 1 < tiles) load(f[1 - now], t + 1, 0);
            if (t + STAGES < tiles) {
              fetch_a(smem, t + STAGES, row0, k0, load_a_piece);
              fetch_b(smem, t + STAGES, col0, k0, load_b_piece);
            }
            cp_async_commit();
          } else {
            load(f[1 - now], t, s + 1);
          }
          multiply<T, TB>(acc, f[now]);
        }
      }
    }
    // The last barrier of the loop: nobody reads the ring any more, the sums may replace it.
    cp_async_wait<0>();
    store_accumulators<PITCH, INTERLEAVED<T, B_K_MAJOR, NT>, EVEN_ODD<T, A_K_MAJOR>,
                       EVEN_ODD<T, B_K_MAJOR>>(sums(smem) + wk * PARTIAL, acc, row, col);
    syncthreads();
  }

  // VEC consecutive elements of row r of the tile, summed over the k warps in a fixed order.
  template <int VEC>
  JM_DEVICE static void read(Acc (&out)[VEC], unsigned char* smem, int r, int c) {
    const Acc* p = sums(smem) + r * PITCH + c;
    Vec<Acc, VEC> part[WARPS_K];
#pragma unroll
    for (int w = 0; w < WARPS_K; ++w) part[w] = load<Acc, VEC>(p + w * PARTIAL);
#pragma unroll
    for (int e = 0; e < VEC; ++e) out[e] = part[0].x[e];
#pragma unroll
    for (int w = 1; w < WARPS_K; ++w)
#pragma unroll
      for (int e = 0; e < VEC; ++e) out[e] += part[w].x[e];
  }
};

}  // namespace jaxmono
