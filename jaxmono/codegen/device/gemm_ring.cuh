// The operands of an output tile on their way through shared memory, and its sums on theirs.
//
//   global/expression --loader--> ring of STAGES x (A tile, B tile) --products--> registers
//   registers --> partial sums in shared memory [WARPS_K][BM][BN] --> epilogue (generated code)
//
// The ring is as deep as shared memory allows: inside a persistent kernel a stage of the network is
// short, and its time is mostly the first bytes' latency, so everything that fits is requested at once.
#pragma once
#include "jaxmono/tile.cuh"
#include "jaxmono/vec.cuh"
#include "jaxmono/warp.cuh"

namespace jaxmono {

// T, TB: elements of the operands, of the same size; Acc: of the sums. BM, BN, BK: tile. THREADS share it, in
// WARPS_K sets that take alternate k steps and are summed at the end. *_K_MAJOR: the layout that the loader
// fills, [m or n][k] or [k][m or n]. PANEL: k steps of A that stay in shared memory as a whole (a
// normalised operand that was computed there); 0: A is streamed through the ring with B.
template <class T, class TB, class Acc_, int BM_, int BN_, int BK_, int STAGES_, int THREADS_, int WARPS_K_,
          bool A_K_MAJOR, bool B_K_MAJOR, int PANEL>
struct GemmRing {
  using Acc = Acc_;
  static constexpr int BM = BM_, BN = BN_, BK = BK_, STAGES = STAGES_, THREADS = THREADS_,
                       WARPS_K = WARPS_K_;
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

  // The same of k tiles [from, to), where the loader computes its elements: pieces wait in registers, so that
  // the loads of several k tiles are in flight together.
  template <class LoadB>
  JM_DEVICE static void compute_b(unsigned char* smem, int from, int to, int col0, int k0,
                                  const LoadB& load_b_piece) {
    constexpr int BATCH = 8, OF_TILE = TileB::ROWS * TileB::PIECES;
    const int pieces = (to - from) * OF_TILE;
#pragma unroll 1
    for (int base = thread_id(); base < pieces; base += BATCH * THREADS) {
      Piece<TB> x[BATCH];
#pragma unroll
      for (int j = 0; j < BATCH; ++j) {
        const int i = base + j * THREADS < pieces ? base + j * THREADS : pieces - 1;
        const int k = k0 + (from + i / OF_TILE) * BK, row = i % OF_TILE / TileB::PIECES,
                  col = i % TileB::PIECES * TileB::PIECE;
        load_b_piece(static_cast<void*>(&x[j]), (B_K_MAJOR ? col0 : k) + row, (B_K_MAJOR ? k : col0) + col);
      }
#pragma unroll
      for (int j = 0; j < BATCH; ++j) {
        const int i = base + j * THREADS;
        if (i >= pieces) break;
        unsigned char* const slot = ring(smem) + (from + i / OF_TILE) % STAGES * STAGE_BYTES + A_BYTES;
        *reinterpret_cast<Piece<TB>*>(TileB::at(slot, i % OF_TILE / TileB::PIECES,
                                                i % TileB::PIECES * TileB::PIECE)) = x[j];
      }
    }
  }

  // k tiles whose right operand is requested ahead of a grid barrier: as many bytes as are in flight
  // during a barrier anyway. More would keep the threads issuing when the barrier opens.
  static constexpr int AHEAD_BYTES = 40 * 1024;
  static constexpr int AHEAD = TileB::BYTES >= AHEAD_BYTES               ? 1
                               : AHEAD_BYTES / TileB::BYTES < STAGES ? AHEAD_BYTES / TileB::BYTES
                                                                     : STAGES;

  // Requests the right operand of the first AHEAD k tiles, as one cp.async group: what may be done
  // before the grid barrier behind which the left operand is written. COMPUTED: by the loader.
  template <bool COMPUTED = false, class LoadB>
  JM_DEVICE static void prefetch(unsigned char* smem, int col0, int k0, int tiles,
                                 const LoadB& load_b_piece) {
    if constexpr (COMPUTED) {
      compute_b(smem, 0, tiles < AHEAD ? tiles : AHEAD, col0, k0, load_b_piece);
      return;
    }
#pragma unroll 1
    for (int t = 0; t < AHEAD && t < tiles; ++t) fetch_b(smem, t, col0, k0, load_b_piece);
    cp_async_commit();
  }

  // Requests the first STAGES k tiles, each its own cp.async group; not again what `prefetch` has, if
  // it ran (`fetched`). COMPUTED: the right operand, which comes behind the left one's requests.
  template <bool COMPUTED = false, class LoadA, class LoadB>
  JM_DEVICE static void prologue(unsigned char* smem, int row0, int col0, int k0, int tiles,
                                 bool fetched, const LoadA& load_a_piece,
                                 const LoadB& load_b_piece) {
#pragma unroll 1
    for (int t = 0; t < STAGES; ++t) {
      if (t < tiles) {
        fetch_a(smem, t, row0, k0, load_a_piece);
        if (!COMPUTED && (!fetched || t >= AHEAD)) fetch_b(smem, t, col0, k0, load_b_piece);
      }
      cp_async_commit();
    }
    if constexpr (COMPUTED)
      compute_b(smem, fetched ? AHEAD : 0, tiles < STAGES ? tiles : STAGES, col0, k0, load_b_piece);
  }

  // Runs `tiles` k tiles (after `prologue`), each STEPS times load and multiply: load(f, t, s) reads the
  // fragments (F) of a step, multiply(f) adds their products. Behind it nobody reads the ring any more.
  // SETS: of fragments; with two the loads of a step are issued before the products of the one before, across
  // k tiles too, so that products do not wait for shared memory.
  template <int STEPS, class F, int SETS = 2, class LoadA, class LoadB, class Load, class Multiply>
  JM_DEVICE static void march(unsigned char* smem, int row0, int col0, int k0, int tiles,
                              const LoadA& load_a_piece, const LoadB& load_b_piece, const Load& load,
                              const Multiply& multiply) {
    F f[SETS]{};  // a share of k may be empty: as in ReduceRows
    if constexpr (SETS == 1) {
#pragma unroll 1
      for (int t = 0; t < tiles; ++t) {
        cp_async_wait<STAGES - 2>();  // tile t has landed (and t + 1 the first time); all have read t - 1
        syncthreads();
        if (t > 0) {
          if (t - 1 + STAGES < tiles) {
            fetch_a(smem, t - 1 + STAGES, row0, k0, load_a_piece);
            fetch_b(smem, t - 1 + STAGES, col0, k0, load_b_piece);
          }
          cp_async_commit();
        }
#pragma unroll
        for (int s = 0; s < STEPS; ++s) {
          load(f[0], t, s);
          multiply(f[0]);
        }
      }
    } else {
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
            multiply(f[now]);
          }
        }
      }
    }
    cp_async_wait<0>();
    if (SETS == 1) syncthreads();  // all have read the last tile; with two sets they had before
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
