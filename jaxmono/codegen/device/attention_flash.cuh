// Softmax attention by one block on mma.sync: 16 rows of queries a warp, keys in chunks through a ring.
//
//   S = Q K^T -> AttentionRows::weigh -> O += P V, P in the registers that S was in
#pragma once
#include "jaxmono/attention_rows.cuh"

namespace jaxmono {

// The largest even divisor of an even number of fragments that leaves registers for the rest.
constexpr int fragment_group(int fragments) {
  int group = fragments < 16 ? fragments : 16;
  while (fragments % group != 0 || group % 2 != 0) --group;
  return group;
}

// BQ: rows of a tile. BK: keys of a chunk, of which warps that share rows have different columns.
// STAGES: chunks in shared memory; 1 only where a task has one chunk. KEYS, D, DV: exact sizes.
// SPLIT: blocks that share a tile. Q_D_MAJOR: the loader fills Q as [row][d], else [d][row];
// K_D_MAJOR: K as [key][d], else [d][key]; V_KEY_MAJOR: V as [dv][key], else [key][dv].
template <class T, int WARPS, int BQ, int BK, int STAGES, int KEYS, int D, int DV, int SPLIT,
          bool Q_D_MAJOR, bool K_D_MAJOR, bool V_KEY_MAJOR>
struct FlashAttention {
  using Rows = AttentionRows<T, WARPS, BQ / 16, DV, SPLIT, false>;
  static constexpr int THREADS = 32 * WARPS, COLS = BK / Rows::WARPS_N;
  static constexpr int DP = (D + 15) / 16 * 16, DVP = Rows::DVP;
  static constexpr int NT = COLS / 8, GV = fragment_group(Rows::NV);
  static constexpr int CHUNKS = (KEYS + BK - 1) / BK, SHARE = (CHUNKS + SPLIT - 1) / SPLIT;
  static constexpr int FLOATS = Rows::FLOATS;
  static_assert(BQ % 16 == 0, "a warp has 16 rows");
  static_assert(COLS % 16 == 0 && COLS * Rows::WARPS_N == BK, "a warp's keys are whole k steps");
  static_assert(STAGES > 1 || SHARE == 1, "a single slot is not filled again");

  using TileQ = Tile<T, Q_D_MAJOR ? BQ : DP, Q_D_MAJOR ? DP : BQ>;
  using TileK = Tile<T, K_D_MAJOR ? BK : DP, K_D_MAJOR ? DP : BK>;
  using TileV = Tile<T, V_KEY_MAJOR ? DVP : BK, V_KEY_MAJOR ? BK : DVP>;

  // Layout: row statistics of the warps | Q, ring; behind the last product: fragments on their way out.
  static constexpr int SLOT = TileK::BYTES + TileV::BYTES;
  static constexpr int TILES_AT = Rows::STATS_BYTES, RING_AT = TILES_AT + TileQ::BYTES;
  static constexpr int TILES_BYTES = TileQ::BYTES + STAGES * SLOT;
  static constexpr int SHARED_BYTES =
      TILES_AT + (TILES_BYTES > Rows::OUT_BYTES ? TILES_BYTES : Rows::OUT_BYTES);

  // Takes the keys of chunks first .. last into account. logits: `Logits`.
  template <class LoadQ, class LoadK, class LoadV, class L>
  JM_DEVICE static void run(unsigned char* smem, Rows& rows, int row0, int first, int last,
                            const LoadQ& load_q, const LoadK& load_k, const LoadV& load_v,
                            const L& logits) {
    const auto slot = [&](int chunk) { return smem + RING_AT + (chunk - first) % STAGES * SLOT; };
    const auto fetch_k = [&](int chunk) {
      if (chunk >= last) return;
      if constexpr (K_D_MAJOR) TileK::template fill<THREADS>(slot(chunk), chunk * BK, 0, load_k);
      else TileK::template fill<THREADS>(slot(chunk), 0, chunk * BK, load_k);
    };
    const auto fetch_v = [&](int chunk) {
      if (chunk >= last) return;
      unsigned char* const to = slot(chunk) + TileK::BYTES;
      if constexpr (V_KEY_MAJOR) TileV::template fill<THREADS>(to, 0, chunk * BK, load_v);
      else TileV::template fill<THREADS>(to, chunk * BK, 0, load_v);
    };
    unsigned char* const q = smem + TILES_AT;
    if constexpr (Q_D_MAJOR) TileQ::template fill<THREADS>(q, row0, 0, load_q);
    else TileQ::template fill<THREADS>(q, 0, row0, load_q);
    if constexpr (STAGES == 1) {  // the first product does not wait for V
      fetch_k(first);
      cp_async_commit();
      fetch_v(first);
      cp_async_commit();
    } else {
#pragma unroll 1
      for (int t = first; t < first + STAGES - 1; ++t) {
        fetch_k(t);
        fetch_v(t);
        cp_async_commit();
      }
    }
    rows.reset();
#pragma unroll 1
    for (int t = first; t < last; ++t) {
      cp_async_wait<STAGES == 1 ? 1 : STAGES - 2>();
      syncthreads();
      if constexpr (STAGES > 1) {
        fetch_k(t + STAGES - 1);
        fetch_v(t + STAGES - 1);
        cp_async_commit();
      }
      float s[1][NT][4];
      scores(s, q, slot(t));
      uint32_t p[NT / 2][4];
      rows.template weigh<SHARE == 1, KEYS, KEYS % BK != 0>(s[0], t * BK + first_col(), logits);
      if constexpr (SHARE > 1) rows.fade_sums();
      Rows::pack(p, s[0]);
      if constexpr (STAGES == 1) {
        cp_async_wait<0>();
        syncthreads();
      }
      accumulate(rows, p, slot(t) + TileK::BYTES);
    }
    cp_async_wait<0>();
  }

  template <int LANES, bool ROUNDED, class F>
  JM_DEVICE static void finish(unsigned char* smem, Rows& rows, int valid, float unit,
                               float* workspace, int split, uint32_t* arrivals, const F& f) {
    rows.template finish<LANES, ROUNDED>(smem, smem + TILES_AT, valid, unit, workspace, split, arrivals, f);
  }

 private:
  JM_DEVICE static int first_col() { return Rows::share() * COLS; }

  JM_DEVICE static void scores(float (&s)[1][NT][4], unsigned char* q, unsigned char* k) {
#pragma unroll
    for (int j = 0; j < NT; ++j)
#pragma unroll
      for (int e = 0; e < 4; ++e) s[0][j][e] = 0.0f;
#pragma unroll
    for (int d = 0; d < DP; d += 16) {
      uint32_t a[1][4], b[NT][2];
      load_a<T, TileQ, Q_D_MAJOR>(a[0], q, Rows::first_row(), d);
      load_b<T, TileK, K_D_MAJOR, NT>(b, k, first_col(), d);
      MmaTraits<T>::mma(s, a, b);
    }
  }

  JM_DEVICE static void accumulate(Rows& rows, const uint32_t (&p)[NT / 2][4], unsigned char* v) {
#pragma unroll
    for (int i = 0; i < NT / 2; ++i) {
      uint32_t a[1][4] = {{p[i][0], p[i][1], p[i][2], p[i][3]}};
#pragma unroll
      for (int j = 0; j < Rows::NV; j += GV) {
        uint32_t b[GV][2];
        load_b<T, TileV, V_KEY_MAJOR, GV>(b, v, j * 8, first_col() + i * 16);
        MmaTraits<T>::mma(reinterpret_cast<float(&)[1][GV][4]>(rows.o[j]), a, b);
      }
    }
  }
};

}  // namespace jaxmono
