// Two contractions around a row-wise chain, by one block: the scores never leave shared memory.
//
//   Q tile, K chunks --mma--> scores f32 [BQ][keys] --generated row chain--> probabilities T
//   probabilities, V chunks --mma--> out f32 [BQ][DV] --> epilogue (generated code)
//
// K and then V travel through one ring of key chunks, so that V is on its way while the row chain
// runs. All scores of a row are in shared memory at once: the chain may be any row-wise program.
#pragma once
#include "jaxmono/mma.cuh"
#include "jaxmono/vec.cuh"
#include "jaxmono/warp.cuh"

namespace jaxmono {

// T: bf16, f16 or float (tf32). BQ: rows of a tile. KEYS, D, DV: exact sizes; they are padded with
// zeros inside. CHUNK: keys in a ring slot. Q_D_MAJOR: the loader fills Q as [row][d], else [d][row];
// K_D_MAJOR: K as [key][d], else [d][key]; V_KEY_MAJOR: V as [dv][key], else [key][dv].
template <class T, int WARPS, int BQ_, int KEYS_, int D, int DV, int CHUNK, int STAGES,
          bool Q_D_MAJOR, bool K_D_MAJOR, bool V_KEY_MAJOR>
struct Attention {
  static constexpr int BQ = BQ_, KEYS = KEYS_, THREADS = 32 * WARPS;
  static constexpr int KSTEP = MmaTraits<T>::K;
  static constexpr int DP = (D + KSTEP - 1) / KSTEP * KSTEP;
  static constexpr int DVP = (DV + 15) / 16 * 16;
  static constexpr int CHUNKS = (KEYS + CHUNK - 1) / CHUNK;
  static constexpr int KP = CHUNKS * CHUNK;
  static constexpr int WARPS_M = BQ / 16, WARPS_N = WARPS / WARPS_M;
  static constexpr int NT1 = even_share(CHUNK / 8, WARPS_N);
  static constexpr int NT2 = even_share(DVP / 8, WARPS_N);
  static_assert(BQ % 16 == 0 && WARPS % WARPS_M == 0, "warps must divide the rows");
  static_assert(CHUNK % 16 == 0, "a chunk is a whole number of k steps");

  using TileQ = Tile<T, Q_D_MAJOR ? BQ : DP, Q_D_MAJOR ? DP : BQ>;
  using TileK = Tile<T, K_D_MAJOR ? CHUNK : DP, K_D_MAJOR ? DP : CHUNK>;
  using TileV = Tile<T, V_KEY_MAJOR ? DVP : CHUNK, V_KEY_MAJOR ? CHUNK : DVP>;
  using TileP = Tile<T, BQ, KP>;
  static constexpr int SLOT = TileK::BYTES > TileV::BYTES ? TileK::BYTES : TileV::BYTES;
  static constexpr int SCORE_PITCH = KP + 4, OUT_PITCH = DVP + 4;
  static constexpr int SCORES_AT = TileQ::BYTES;
  static constexpr int SCORE_BYTES =
      BQ * (SCORE_PITCH > OUT_PITCH ? SCORE_PITCH : OUT_PITCH) * 4;
  static constexpr int PROBS_AT = SCORES_AT + SCORE_BYTES;
  static constexpr int RING_AT = PROBS_AT + TileP::BYTES;
  static constexpr int SHARED_BYTES = RING_AT + STAGES * SLOT;

  JM_DEVICE static float* scores(unsigned char* smem) {
    return reinterpret_cast<float*>(smem + SCORES_AT);
  }
  JM_DEVICE static T* probs(unsigned char* smem, int row, int col) {
    return TileP::at(smem + PROBS_AT, row, col);
  }

  // Requests ring item t: K chunks are items 0 .. CHUNKS-1, V chunks follow.
  template <class LoadK, class LoadV>
  JM_DEVICE static void fetch(unsigned char* smem, int t, const LoadK& load_k, const LoadV& load_v) {
    unsigned char* slot = smem + RING_AT + t % STAGES * SLOT;
    if (t < CHUNKS) {
      if constexpr (K_D_MAJOR) TileK::template fill<THREADS>(slot, t * CHUNK, 0, load_k);
      else TileK::template fill<THREADS>(slot, 0, t * CHUNK, load_k);
    } else if (t < 2 * CHUNKS) {
      const int key = (t - CHUNKS) * CHUNK;
      if constexpr (V_KEY_MAJOR) TileV::template fill<THREADS>(slot, 0, key, load_v);
      else TileV::template fill<THREADS>(slot, key, 0, load_v);
    }
    cp_async_commit();
  }

  // Computes the scores of rows row0 .. row0 + BQ into scores(), all warps arrived.
  template <class LoadQ, class LoadK, class LoadV>
  JM_DEVICE static void first(unsigned char* smem, int row0, const LoadQ& load_q,
                              const LoadK& load_k, const LoadV& load_v) {
    if constexpr (Q_D_MAJOR) TileQ::template fill<THREADS>(smem, row0, 0, load_q);
    else TileQ::template fill<THREADS>(smem, 0, row0, load_q);
#pragma unroll 1
    for (int t = 0; t < STAGES - 1; ++t) fetch(smem, t, load_k, load_v);

    const int warp = warp_id(), row = warp % WARPS_M * 16, col = warp / WARPS_M * NT1 * 8;
#pragma unroll 1
    for (int t = 0; t < CHUNKS; ++t) {
      cp_async_wait<STAGES - 2>();
      syncthreads();
      fetch(smem, t + STAGES - 1, load_k, load_v);
      unsigned char* slot = smem + RING_AT + t % STAGES * SLOT;
      if (col < CHUNK) {
        float acc[1][NT1][4] = {};
#pragma unroll
        for (int k = 0; k < DP; k += KSTEP) {
          Fragments<1, NT1> f;
          load_fragments<T, TileQ, Q_D_MAJOR, TileK, K_D_MAJOR>(f, smem, slot, row, col, k, k);
          multiply<T>(acc, f);
        }
        store_accumulators<SCORE_PITCH, INTERLEAVED<T, K_D_MAJOR, NT1>>(scores(smem), acc, row,
                                                                        t * CHUNK + col);
      }
    }
    // Columns past the last key must multiply V's zero rows as zeros.
    for (int i = thread_id(); i < BQ * (KP - KEYS); i += THREADS)
      *probs(smem, i / (KP - KEYS + (KP == KEYS)), KEYS + i % (KP - KEYS + (KP == KEYS))) = T{};
    syncthreads();
  }

  // probs() x V: element (r, c) of the tile is out()[r * OUT_PITCH + c], all warps arrived.
  template <class LoadK, class LoadV>
  JM_DEVICE static void second(unsigned char* smem, const LoadK& load_k, const LoadV& load_v) {
    const int warp = warp_id(), row = warp % WARPS_M * 16, col = warp / WARPS_M * NT2 * 8;
    float acc[1][NT2][4] = {};
#pragma unroll 1
    for (int t = CHUNKS; t < 2 * CHUNKS; ++t) {
      cp_async_wait<STAGES - 2>();
      syncthreads();  // also: every row's probabilities are written
      fetch(smem, t + STAGES - 1, load_k, load_v);
      unsigned char* slot = smem + RING_AT + t % STAGES * SLOT;
      if (col < DVP) {
#pragma unroll
        for (int k = 0; k < CHUNK; k += KSTEP) {
          Fragments<1, NT2> f;
          load_fragments<T, TileP, true, TileV, V_KEY_MAJOR>(f, smem + PROBS_AT, slot, row, col,
                                                             (t - CHUNKS) * CHUNK + k, k);
          multiply<T>(acc, f);
        }
      }
    }
    cp_async_wait<0>();
    if (col < DVP)
      store_accumulators<OUT_PITCH, INTERLEAVED<T, V_KEY_MAJOR, NT2>>(scores(smem), acc, row, col);
    syncthreads();
  }

  template <int VEC>
  JM_DEVICE static void read(float (&out)[VEC], unsigned char* smem, int r, int c) {
    const Vec<float, VEC> v = load<float, VEC>(scores(smem) + r * OUT_PITCH + c);
#pragma unroll
    for (int e = 0; e < VEC; ++e) out[e] = v.x[e];
  }
};

}  // namespace jaxmono
