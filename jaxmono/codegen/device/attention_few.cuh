// Softmax attention of at most 16 rows (a decode step): all keys of a task are in shared memory at once.
//
//   K, V requested -> Q computed meanwhile -> S = Q K^T, keys over the warps -> maximum of all warps
//   -> P in shared memory -> O = P V, columns of V over the warps -> O / sum
//
// Such a task is nothing but latency. So all that it reads is on its way before anything waits, no warp
// sums what another one has of O, and the code is short: it runs once a layer, out of a cold cache.
// Blocks that share keys (SPLIT) mail their O, maximum and sum to the one of the last share, which adds
// them up, in the order of the shares. Rows of a fragment that there are not are whatever is in
// shared memory: they reach nothing but themselves. NaN, infinity and rows without keys: as in
// attention_rows.cuh, but weights are relative to the largest logit of the task itself.
#pragma once
#include "jaxmono/attention_rows.cuh"
#include "jaxmono/mailbox.cuh"

namespace jaxmono {

// T: bf16 or f16. ROWS: exact. CHUNK: keys of a task. KEYS, D, DV: exact sizes. The loaders fill K as
// [key][d] if K_D_MAJOR, else [d][key]; V as [dv][key] if V_KEY_MAJOR, else [key][dv].
template <class T, int WARPS, int ROWS, int CHUNK, int KEYS, int D, int DV, int SPLIT,
          bool K_D_MAJOR, bool V_KEY_MAJOR>
struct FewRows {
  static constexpr int THREADS = 32 * WARPS;
  static constexpr int HALVES = ROWS > 8 ? 2 : 1, ROWS_P = 8 * HALVES;
  static constexpr int DP = (D + 15) / 16 * 16, DVP = (DV + 15) / 16 * 16;
  // Fragments of a warp, of 8 keys in the first product and of 8 columns in the second.
  static constexpr int NT = even_share(CHUNK / 8, WARPS), NV = even_share(DVP / 8, WARPS);
  static constexpr int WARPS_S = CHUNK / 8 / NT, WARPS_O = DVP / 8 / NV;
  // Products of a warp that do not wait for each other: sums of scores, of O.
  static constexpr int SETS_S = NT == 1 && DP % 64 == 0 ? 4 : NT <= 2 && DP % 32 == 0 ? 2 : 1;
  static constexpr int STEPS = CHUNK / 16, SETS = STEPS % 2 == 0 ? 2 : 1;
  static_assert(sizeof(T) == 2, "probabilities are the fragments of 16-bit products");
  static_assert(ROWS <= 16 && CHUNK % 16 == 0, "a fragment of rows, whole k steps");
  static_assert((SPLIT - 1) * CHUNK < KEYS && SPLIT * CHUNK >= KEYS, "each block has keys");

  using TileQ = Tile<T, 16, DP>;
  using TileP = Tile<T, 16, CHUNK>;
  using TileK = Tile<T, K_D_MAJOR ? CHUNK : DP, K_D_MAJOR ? DP : CHUNK>;
  using TileV = Tile<T, V_KEY_MAJOR ? DVP : CHUNK, V_KEY_MAJOR ? CHUNK : DVP>;

  // Layout: maxima, sums of the warps | O | Q | P | K | V.
  static constexpr int OUT_PITCH = DVP + 8;  // rows of a fragment begin 8 banks apart
  static constexpr int MAX_AT = 0, SUM_AT = MAX_AT + WARPS * 64, OUT_AT = SUM_AT + WARPS * 64;
  static constexpr int Q_AT = OUT_AT + ROWS_P * OUT_PITCH * 4, P_AT = Q_AT + TileQ::BYTES;
  static constexpr int K_AT = P_AT + TileP::BYTES, V_AT = K_AT + TileK::BYTES;
  static constexpr int SHARED_BYTES = V_AT + TileV::BYTES;

  // Of a thread's rows g and g + 8, the same in all warps; o: its columns of them, in sets that are
  // added at the end, so that products need not wait for each other.
  float max[HALVES], sum[HALVES];
  float o[SETS][NV][4];

  JM_DEVICE static T* q(unsigned char* smem, int row, int d) {
    return TileQ::at(smem + Q_AT, row, d);
  }

  // An element of a key, of a value, of the task.
  JM_DEVICE static T* key(unsigned char* smem, int n, int d) {
    return TileK::at(smem + K_AT, K_D_MAJOR ? n : d, K_D_MAJOR ? d : n);
  }
  JM_DEVICE static T* value(unsigned char* smem, int n, int d) {
    return TileV::at(smem + V_AT, V_KEY_MAJOR ? d : n, V_KEY_MAJOR ? n : d);
  }

  // Requests keys and values from key0 on. GROUPS: as two cp.async groups; else they are the caller's.
  template <bool GROUPS = true, class LoadK, class LoadV>
  JM_DEVICE static void request(unsigned char* smem, int key0, const LoadK& load_k,
                                const LoadV& load_v) {
    if constexpr (K_D_MAJOR) TileK::template fill<THREADS>(smem + K_AT, key0, 0, load_k);
    else TileK::template fill<THREADS>(smem + K_AT, 0, key0, load_k);
    if constexpr (GROUPS) cp_async_commit();  // the first product does not wait for V
    if constexpr (V_KEY_MAJOR) TileV::template fill<THREADS>(smem + V_AT, 0, key0, load_v);
    else TileV::template fill<THREADS>(smem + V_AT, key0, 0, load_v);
    if constexpr (GROUPS) cp_async_commit();
  }

  // A block none of whose keys count.
  JM_DEVICE void nothing() {
#pragma unroll
    for (int h = 0; h < HALVES; ++h) max[h] = minus_infinity(), sum[h] = 0.0f;
    clear();
  }

  // After `request` and Q's first ROWS rows. logits: `Logits`. LANDED: the thread has waited for what it
  // has requested.
  template <bool LANDED = false, class L>
  JM_DEVICE void run(unsigned char* smem, int key0, const L& logits) {
    clear();
    const int g = lane_id() / 4, t = lane_id() % 4;
    const int col = warp_id() * NT * 8, key = key0 + col;
    const bool mine = WARPS_S == WARPS || warp_id() < WARPS_S;
    float s[NT][4]{}, kept[NT][4]{};  // as in ReduceRows
    if (mine) ask(kept, key, logits);
    if constexpr (!LANDED) cp_async_wait<1>();
    syncthreads();  // K and Q
    float* const maxima = reinterpret_cast<float*>(smem + MAX_AT);
    if (mine) {
      scores(s, smem, col);
      float most[HALVES];
      logits_of(s, kept, most, key, logits);
#pragma unroll
      for (int h = 0; h < HALVES; ++h) {
        most[h] = quad_max(most[h]);
        if (t == 0) maxima[warp_id() * 16 + g + 8 * h] = most[h];
      }
    }
    syncthreads();  // maxima of all warps
#pragma unroll
    for (int h = 0; h < HALVES; ++h) {
      max[h] = maxima[g + 8 * h];
#pragma unroll
      for (int w = 1; w < WARPS_S; ++w) max[h] = fmaxf(max[h], maxima[w * 16 + g + 8 * h]);
    }
    float* const sums = reinterpret_cast<float*>(smem + SUM_AT);
    if (mine) {
#pragma unroll
      for (int h = 0; h < HALVES; ++h) {
        const float total = quad_sum(weights(s, smem, h, col, key, logits));
        if (t == 0) sums[warp_id() * 16 + g + 8 * h] = total;
      }
    }
    if constexpr (!LANDED) cp_async_wait<0>();
    syncthreads();  // V, the weights and the sums of all warps
#pragma unroll
    for (int h = 0; h < HALVES; ++h) {
      sum[h] = sums[g + 8 * h];
#pragma unroll
      for (int w = 1; w < WARPS_S; ++w) sum[h] += sums[w * 16 + g + 8 * h];
    }
    if (WARPS_O == WARPS || warp_id() < WARPS_O) products(smem);
  }

  // Calls f(r, c, out) for every LANES neighbouring elements of O. unit: as in Logits. words: of the tile,
  // for each share and piece its row's maximum and sum and the elements (so that each is taken out by the
  // one thread that needs it).
  template <int LANES, class F>
  JM_DEVICE void finish(unsigned char* smem, float unit, float* words, int split, const F& f) const {
    constexpr int PER_ROW = DVP / LANES, PIECE = LANES > 1 ? LANES + 2 : 4;  // a single one twice: 16 bytes
    constexpr int PART = ROWS * PER_ROW * PIECE;
    const int g = lane_id() / 4, t = lane_id() % 4;
    float* const out = reinterpret_cast<float*>(smem + OUT_AT);
    float* const part = words + split * PART;
#pragma unroll
    for (int h = 0; h < HALVES; ++h) {
      const int row = g + 8 * h;
      if (row >= ROWS) continue;
      const float scale = SPLIT > 1 ? 1.0f : 1.0f / sum[h];
      if (WARPS_O == WARPS || warp_id() < WARPS_O)
#pragma unroll
        for (int j = 0; j < NV; ++j) {
          const int c = (warp_id() * NV + j) * 8 + 2 * t;
          const float x[2] = {own(j, 2 * h) * scale, own(j, 2 * h + 1) * scale};
          float* const to = part + (row * PER_ROW + c / LANES) * PIECE + 2 + c % LANES;
          if constexpr (SPLIT == 1) {
            store<float, 2>(out + row * OUT_PITCH + c, Vec<float, 2>{x[0], x[1]});
          } else if constexpr (LANES > 1) {
            mail(to, x);
          } else {
            mail(to, {x[0], x[0]});
            mail(to + PIECE, {x[1], x[1]});
          }
        }
      if constexpr (SPLIT > 1)
#pragma unroll
        for (int i = warp_id() * 4 + t; i < PER_ROW; i += WARPS * 4)
          mail(part + (row * PER_ROW + i) * PIECE, {max[h], sum[h]});
    }
    if constexpr (SPLIT > 1) {
      if (split != SPLIT - 1) return;
    } else {
      syncthreads();  // O of all warps
    }
    const auto piece = [&](int i) {
      const int r = i / PER_ROW, c = i % PER_ROW * LANES;
      float x[LANES];
      if constexpr (SPLIT > 1) {
        float got[SPLIT][PIECE];
        collect(got, words + i * PIECE, PART);
        Share shares[SPLIT];
#pragma unroll
        for (int s = 0; s < SPLIT; ++s) shares[s] = Share{got[s][0], got[s][1]};
        float most, total;
        combine_shares<SPLIT>(shares, 1, unit, most, total);
#pragma unroll
        for (int e = 0; e < LANES; ++e) x[e] = 0.0f;
#pragma unroll
        for (int s = 0; s < SPLIT; ++s) {
          const float weight = softmax_exp(shares[s].max, softmax_base(most), unit) * (1.0f / total);
#pragma unroll
          for (int e = 0; e < LANES; ++e) x[e] += got[s][2 + e] * weight;
        }
      } else {
        const Vec<float, LANES> v = load<float, LANES>(out + r * OUT_PITCH + c);
#pragma unroll
        for (int e = 0; e < LANES; ++e) x[e] = v.x[e];
      }
      f(r, c, x);
    };
    if constexpr (ROWS * PER_ROW <= THREADS) {  // a loop would be unrolled for nothing
      if (thread_id() < ROWS * PER_ROW) piece(thread_id());
    } else {
#pragma unroll 1
      for (int i = thread_id(); i < ROWS * PER_ROW; i += THREADS) piece(i);
    }
  }

 private:
  JM_DEVICE float own(int j, int e) const {
    return SETS == 2 ? o[0][j][e] + o[SETS - 1][j][e] : o[0][j][e];
  }

  JM_DEVICE void clear() {
#pragma unroll
    for (int i = 0; i < SETS; ++i)
#pragma unroll
      for (int j = 0; j < NV; ++j)
#pragma unroll
        for (int e = 0; e < 4; ++e) o[i][j][e] = 0.0f;
  }

  JM_DEVICE static void scores(float (&s)[NT][4], unsigned char* smem, int col) {
    float set[SETS_S][NT][4] = {};
#pragma unroll(DP % 64 == 0 ? 4 : SETS_S)
    for (int d = 0; d < DP; d += 16) {
      uint32_t a[1][4], b[NT][2];
      load_a<T, TileQ, true>(a[0], smem + Q_AT, 0, d);
      load_b<T, TileK, K_D_MAJOR, NT>(b, smem + K_AT, col, d);
      MmaTraits<T>::mma(reinterpret_cast<float(&)[1][NT][4]>(set[d / 16 % SETS_S]), a, b);
    }
#pragma unroll
    for (int j = 0; j < NT; ++j)
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        s[j][e] = set[0][j][e];
#pragma unroll
        for (int i = 1; i < SETS_S; ++i) s[j][e] += set[i][j][e];
      }
  }

  // What the mask makes of NaN, which no masked logit is: its loads are not to wait for the scores.
  template <class L>
  JM_DEVICE static void ask(float (&kept)[NT][4], int key0, const L& logits) {
    const bool masked = key0 < logits.low || key0 + NT * 8 - 1 > logits.high;
#pragma unroll
    for (int h = 0; h < HALVES; ++h)
#pragma unroll
      for (int j = 0; j < NT; ++j) {
        Vec<float, 2> x{bitcast<float>(0x7fffffffu), bitcast<float>(0x7fffffffu)};
        if (masked)
          x = logits.mask(lane_id() / 4 + 8 * h, key0 + j * 8 + 2 * (lane_id() % 4), x);
        kept[j][2 * h] = x.x[0], kept[j][2 * h + 1] = x.x[1];
      }
  }

  // Scores to logits, -inf for keys that there are not; the largest of every row in `most`.
  template <class L>
  JM_DEVICE static void logits_of(float (&s)[NT][4], const float (&kept)[NT][4],
                                  float (&most)[HALVES], int key0, const L& logits) {
    const int g = lane_id() / 4, t = lane_id() % 4;
#pragma unroll
    for (int h = 0; h < HALVES; ++h) {
      most[h] = minus_infinity();
#pragma unroll
      for (int j = 0; j < NT; ++j) {
        const int row = g + 8 * h, key = key0 + j * 8 + 2 * t;
        Vec<float, 2> x = logits.logit(row, key, Vec<float, 2>{s[j][2 * h], s[j][2 * h + 1]});
#pragma unroll
        for (int e = 0; e < 2; ++e)
          if (kept[j][2 * h + e] == kept[j][2 * h + e]) x.x[e] = kept[j][2 * h + e];
        if (KEYS % CHUNK != 0 && key >= KEYS) x.x[0] = minus_infinity();
        if (KEYS % CHUNK != 0 && key + 1 >= KEYS) x.x[1] = minus_infinity();
        s[j][2 * h] = x.x[0], s[j][2 * h + 1] = x.x[1];
        most[h] = fmaxf(most[h], fmaxf(x.x[0], x.x[1]));
      }
    }
  }

  // Logits of one half of the rows to weights in shared memory; the sum of this thread's own.
  template <class L>
  JM_DEVICE float weights(const float (&s)[NT][4], unsigned char* smem, int h, int col, int key0,
                          const L& logits) const {
    const int row = lane_id() / 4 + 8 * h, t = lane_id() % 4;
    const float base = softmax_base(max[h]);
    float total = 0.0f;
#pragma unroll
    for (int j = 0; j < NT; ++j) {
      Vec<float, 2> p{softmax_exp(s[j][2 * h], base, logits.unit),
                      softmax_exp(s[j][2 * h + 1], base, logits.unit)};
      total += p.x[0] + p.x[1];
      if constexpr (L::FACTORS) {
        const int key = key0 + j * 8 + 2 * t;
        p = logits.factor(row, key, p);
        if (KEYS % CHUNK != 0 && key >= KEYS) p.x[0] = 0.0f;
        if (KEYS % CHUNK != 0 && key + 1 >= KEYS) p.x[1] = 0.0f;
      }
      store<T, 2>(TileP::at(smem + P_AT, row, col + j * 8 + 2 * t), p);
    }
    return total;
  }

  JM_DEVICE void products(unsigned char* smem) {
    const int col = warp_id() * NV * 8;
#pragma unroll(STEPS % 4 == 0 ? 4 : SETS)
    for (int k = 0; k < CHUNK; k += 16) {
      uint32_t a[1][4], b[NV][2];
      load_a<T, TileP, true>(a[0], smem + P_AT, 0, k);
      load_b<T, TileV, V_KEY_MAJOR, NV>(b, smem + V_AT, col, k);
      MmaTraits<T>::mma(reinterpret_cast<float(&)[1][NV][4]>(o[k / 16 % SETS]), a, b);
    }
  }
};

}  // namespace jaxmono
