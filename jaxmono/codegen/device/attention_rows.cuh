// Rows of a softmax attention in registers: what both families (mma, wgmma) do with score fragments.
//
//   S fragments -> logits (generated code) -> running maximum, exp, running sum -> P fragments
//   O fragments, maximum, sum of every share of a row's keys -> O / sum, row by row
//
// The maximum and the sum are those of the keys seen so far; when the maximum grows, O and the sum are
// scaled down. So a row may have any number of keys (Milakov and Gimelshein 2018; Dao 2023). What is
// kept is a maximum of before until weights would exceed 2^GROWTH: O is seldom scaled, and O / sum is
// the same whatever weights are relative to.
//
// Warps that share rows have different keys, and so have blocks that share rows (SPLIT). Each has a
// maximum, a sum and an O of its own; they meet at the end, in a fixed order. A row without any key
// that counts (all logits -inf) gives 0 / 0: NaN, as softmax does.
#pragma once
#include "jaxmono/mma.cuh"
#include "jaxmono/narrow.cuh"
#include "jaxmono/split_k.cuh"
#include "jaxmono/task_order.cuh"
#include "jaxmono/vec.cuh"
#include "jaxmono/warp.cuh"

namespace jaxmono {

JM_DEVICE float minus_infinity() { return bitcast<float>(0xff800000u); }

// 2^x; 0 where that is subnormal, which saves three instructions. PLACED: where it is written, between
// products (attention_wgmma.cuh).
template <bool PLACED = false>
JM_DEVICE float flushed_exp2(float x) {
#ifdef JAXMONO_EMULATE
  return exp2f(x);
#else
  float y;
  if constexpr (PLACED) asm volatile("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  else asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
#endif
}

// 2^(unit (x - max)) of a row, where `base` is what softmax_base makes of its maximum.
JM_DEVICE float softmax_exp(float x, float base, float unit) {
  return flushed_exp2((x - base) * unit);
}
// -inf - -inf is NaN, but a key that does not count has the weight 0 even before the first that does.
JM_DEVICE float softmax_base(float max) { return max == minus_infinity() ? 0.0f : max; }

// The logits of a row, as generated code gives them for two neighbouring keys: logit(row, key, scores)
// for all keys, then mask(row, key, logits) for keys outside low .. high; row is in the tile, and
// places outside of everything give what the last ones inside give. Weights are 2^(unit (x - max)), so
// a factor of all scores can be part of `unit`. SCALED: logits are scores. MASKED: the mask changes some.
// FACTORS: factor(row, key, weights) gives what is multiplied with the values; the sum is that of the weights.
template <bool SCALED_, bool MASKED_, bool FACTORS_, class Logit, class Mask, class Factor>
struct Logits {
  static constexpr bool SCALED = SCALED_, MASKED = MASKED_, FACTORS = FACTORS_;
  float unit;
  int low, high;
  const Logit& logit;
  const Mask& mask;
  const Factor& factor;
};
template <bool SCALED, bool MASKED, bool FACTORS, class Logit, class Mask, class Factor>
JM_DEVICE Logits<SCALED, MASKED, FACTORS, Logit, Mask, Factor> make_logits(float unit, int low, int high,
                                                                           const Logit& logit,
                                                                           const Mask& mask,
                                                                           const Factor& factor) {
  return {unit, low, high, logit, mask, factor};
}

// Exponents of 2 up to here are rounded by less than 1e-4.
constexpr float NEAR = 1024.0f;
// Exponents of 2 up to here are no reason for another maximum: bf16 and f32 have room for the weights.
constexpr float GROWTH = 8.0f;

struct Least {
  JM_DEVICE int operator()(int a, int b) const { return a < b ? a : b; }
};
struct Most {
  JM_DEVICE int operator()(int a, int b) const { return a > b ? a : b; }
};

JM_DEVICE float quad_max(float x) {
  x = fmaxf(x, shfl_xor(x, 1));
  return fmaxf(x, shfl_xor(x, 2));
}
JM_DEVICE float quad_sum(float x) {
  x += shfl_xor(x, 1);
  return x + shfl_xor(x, 2);
}

// Fragments that are staged at a time on the way out: all where shares of a row meet.
constexpr int staged_fragments(int all, bool shared) {
  return shared || all <= 10 ? all : all % 8 == 0 ? 8 : all % 10 == 0 ? 10 : all % 6 == 0 ? 6 : 2;
}

struct alignas(8) Share {  // of the keys of a row
  float max, sum;
};

// Maximum and sum of a row from those of N shares of its keys, `step` apart.
template <int N>
JM_DEVICE void combine_shares(const Share* shares, int step, float unit, float& max, float& sum) {
  max = shares[0].max;
#pragma unroll
  for (int i = 1; i < N; ++i) max = fmaxf(max, shares[i * step].max);
  const float base = softmax_base(max);
  sum = 0.0f;
#pragma unroll
  for (int i = 0; i < N; ++i)
    sum += shares[i * step].sum * softmax_exp(shares[i * step].max, base, unit);
}

// Elements of O over the SPLIT blocks that share a tile, PART floats apart: rows of DVP, and from STATS
// on the `Share` of every row.
template <int SPLIT, int PART, int STATS, int DVP, int N>
JM_DEVICE void gather_parts(float (&x)[N], const float* workspace, float unit, int r, int c) {
  const Share* const stats = reinterpret_cast<const Share*>(workspace + STATS) + r;
  float max, sum;
  combine_shares<SPLIT>(stats, PART / 2, unit, max, sum);
  Vec<float, N> part[SPLIT];
#pragma unroll
  for (int i = 0; i < SPLIT; ++i) part[i] = load<float, N>(workspace + i * PART + r * DVP + c);
#pragma unroll
  for (int e = 0; e < N; ++e) x[e] = 0.0f;
#pragma unroll
  for (int i = 0; i < SPLIT; ++i) {
    const float weight =
        softmax_exp(stats[i * (PART / 2)].max, softmax_base(max), unit) * (1.0f / sum);
#pragma unroll
    for (int e = 0; e < N; ++e) x[e] += part[i].x[e] * weight;
  }
}

// T: bf16 or f16. WARPS_M warps have 16 rows each; the others share them. DV: columns of O, padded to
// a multiple of 16. SPLIT: blocks that share a tile. OWN_OUT: the memory for the fragments on their way
// out belongs to nothing else.
template <class T, int WARPS, int WARPS_M, int DV, int SPLIT, bool OWN_OUT>
struct AttentionRows {
  static constexpr int BQ = 16 * WARPS_M, WARPS_N = WARPS / WARPS_M, THREADS = 32 * WARPS;
  static constexpr int DVP = (DV + 15) / 16 * 16, NV = DVP / 8;
  static_assert(sizeof(T) == 2, "probabilities are the fragments of 16-bit products");
  static_assert(WARPS % WARPS_M == 0, "warps must divide the rows");

  static constexpr int STATS_BYTES = WARPS_N > 1 ? WARPS_N * BQ * 8 : 0;
  static constexpr int NS = staged_fragments(NV, WARPS_N > 1 || SPLIT > 1);
  static constexpr int PITCH = NS * 8 + 8;  // rows of a fragment begin 8 banks apart
  static constexpr int OUT_BYTES = WARPS * 16 * PITCH * 4;
  // Of global memory, where blocks share a tile: O of each, then the maximum and sum of its rows.
  static constexpr int PART = BQ * (DVP + 2), FLOATS = SPLIT * PART;

  JM_DEVICE static int first_row() { return warp_id() % WARPS_M * 16; }
  JM_DEVICE static int share() { return WARPS_N > 1 ? warp_id() / WARPS_M : 0; }

  // Of a thread's rows g and g + 8; sums are of its own columns until `finish`. max: what weights are
  // relative to, at most GROWTH / unit below the largest logit.
  float max[2], sum[2];
  // Of `weigh`: whether there is a new maximum in the warp, and then what sums of before are multiplied by;
  // whether max * unit, all that is subtracted from the exponents, is small enough, and else 0.
  bool fades, near;
  float fade[2], shift[2];
  float o[NV][4];

  JM_DEVICE void reset() {
    max[0] = max[1] = minus_infinity();
    sum[0] = sum[1] = shift[0] = shift[1] = 0.0f;
    fades = near = false;
#pragma unroll
    for (int i = 0; i < NV; ++i)
#pragma unroll
      for (int e = 0; e < 4; ++e) o[i][e] = 0.0f;
  }

  // Scores of keys key0, key0 + 1... to weights relative to the maximum so far. O and what follows
  // from it is that of the maximum before until `fade_sums`. KEYS: those from there on do not count.
  // FIRST: no keys have been before.
  template <bool FIRST, int KEYS, bool PARTIAL, int NT, class L>
  JM_DEVICE void weigh(float (&s)[NT][4], int key0, const L& logits) {
    to_logits<KEYS, PARTIAL>(s, key0, logits);
    aim<FIRST>(s, logits);
    float total[4] = {};  // short chains of additions
#pragma unroll
    for (int j = 0; j < NT; ++j)
      raise<false, KEYS, PARTIAL>(s[j], s[j], key0 + j * 8, logits, total);
    add<FIRST>(total);
  }

  // Its steps.
  template <int KEYS, bool PARTIAL, int NT, class L>
  JM_DEVICE static void to_logits(float (&s)[NT][4], int key0, const L& logits) {
    const int g = lane_id() / 4, t = lane_id() % 4, row = first_row() + g;
#pragma unroll
    for (int j = 0; j < NT; ++j)
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        const Vec<float, 2> x = logits.logit(row + 8 * h, key0 + j * 8 + 2 * t,
                                             Vec<float, 2>{s[j][2 * h], s[j][2 * h + 1]});
        s[j][2 * h] = x.x[0], s[j][2 * h + 1] = x.x[1];
      }
    if (key0 < logits.low || key0 + NT * 8 - 1 > logits.high) {  // not all keys for all rows
#pragma unroll
      for (int j = 0; j < NT; ++j)
#pragma unroll
        for (int h = 0; h < 2; ++h) {
          const int key = key0 + j * 8 + 2 * t;
          const Vec<float, 2> x =
              logits.mask(row + 8 * h, key, Vec<float, 2>{s[j][2 * h], s[j][2 * h + 1]});
          s[j][2 * h] = !PARTIAL || key < KEYS ? x.x[0] : minus_infinity();
          s[j][2 * h + 1] = !PARTIAL || key + 1 < KEYS ? x.x[1] : minus_infinity();
        }
    }
  }

  // What weights are relative to.
  template <bool FIRST, int NT, class L>
  JM_DEVICE void aim(float (&s)[NT][4], const L& logits) {
    float most[2];
    largest<FIRST>(most, s);
    // Weights of f16 that are multiplied by anything get no room. -inf - -inf is no growth.
    constexpr float room = L::FACTORS && is_same<T, f16> ? 0.0f : GROWTH;
    const auto grows = [&](int h) { return (most[h] - max[h]) * logits.unit > room; };
    // Seldom, and so asked of the warp first: 2 % of the time with 2048 keys of 12 heads of 64.
    fades = !FIRST && !warp_all(!grows(0) && !grows(1));
    if (FIRST || fades) {
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        most[h] = quad_max(most[h]);
        const float next = FIRST || grows(h) ? most[h] : max[h];
        fade[h] = FIRST || next == max[h] ? 1.0f
                                          : softmax_exp(max[h], softmax_base(next), logits.unit);
        max[h] = next;
        shift[h] = next * logits.unit;
      }
      // One multiply-add an element: the difference of products is exact enough unless they are large.
      near = warp_all(fabsf(shift[0]) <= NEAR && fabsf(shift[1]) <= NEAR);
      if (!near) shift[0] = shift[1] = 0.0f;
    }
    if (!near) {
      const float base[2] = {softmax_base(max[0]), softmax_base(max[1])};
#pragma unroll
      for (int j = 0; j < NT; ++j)
#pragma unroll
        for (int e = 0; e < 4; ++e) s[j][e] -= base[e / 2];
    }
  }

  // Logits x of one fragment, of keys key, key + 1..., to what is multiplied with the values.
  template <bool PLACED, int KEYS, bool PARTIAL, class L>
  JM_DEVICE void raise(float (&w)[4], const float (&x)[4], int key, const L& logits,
                       float (&total)[4]) const {
#pragma unroll
    for (int e = 0; e < 4; ++e) {
      w[e] = flushed_exp2<PLACED>(fmaf(x[e], logits.unit, -shift[e / 2]));
      total[e] += w[e];
    }
    if constexpr (L::FACTORS) {
      const int row = first_row() + lane_id() / 4, own = key + lane_id() % 4 * 2;
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        const Vec<float, 2> y =
            logits.factor(row + 8 * h, own, Vec<float, 2>{w[2 * h], w[2 * h + 1]});
        w[2 * h] = !PARTIAL || own < KEYS ? y.x[0] : 0.0f;
        w[2 * h + 1] = !PARTIAL || own + 1 < KEYS ? y.x[1] : 0.0f;
      }
    }
  }

  // Whether weights are too large, relative to a maximum that nobody has compared with their logits: their
  // sums exceed those of as many weights of 2^GROWTH, or are NaN.
  template <int NT>
  JM_DEVICE static bool outgrown(const float (&total)[4]) {
    constexpr float most = 2 * NT * static_cast<float>(1 << static_cast<int>(GROWTH));
    return !warp_all(total[0] + total[1] <= most && total[2] + total[3] <= most);
  }

  template <bool FIRST>
  JM_DEVICE void add(const float (&total)[4]) {
#pragma unroll
    for (int h = 0; h < 2; ++h)
      sum[h] = (FIRST ? 0.0f : fades ? sum[h] * fade[h] : sum[h]) + (total[2 * h] + total[2 * h + 1]);
  }

  // O relative to the maximum that `weigh` has left, which rarely is a new one.
  JM_DEVICE void fade_sums() {
    if (!fades) return;
#pragma unroll
    for (int i = 0; i < NV; ++i)
#pragma unroll
      for (int e = 0; e < 4; ++e) o[i][e] *= fade[e / 2];
  }

  // Weights in the fragments of a left operand: all, or those of one step of the products.
  template <int NT>
  JM_DEVICE static void pack(uint32_t (&p)[NT / 2][4], const float (&s)[NT][4]) {
#pragma unroll
    for (int i = 0; i < NT / 2; ++i) pack(p[i], s[2 * i], s[2 * i + 1]);
  }
  JM_DEVICE static void pack(uint32_t (&p)[4], const float (&a)[4], const float (&b)[4]) {
#pragma unroll
    for (int e = 0; e < 4; ++e) {
      const float(&x)[4] = e / 2 ? b : a;
      p[e] = is_same<T, bf16> ? floats_to_bf16x2(x[e % 2 * 2], x[e % 2 * 2 + 1])
                              : floats_to_f16x2(x[e % 2 * 2], x[e % 2 * 2 + 1]);
    }
  }

  // Calls f(r, c, out) for every LANES neighbouring elements of the tile, `valid` rows of it, the
  // threads of a warp on neighbouring columns. stats, to: STATS_BYTES and OUT_BYTES of shared memory.
  // unit: as in Logits. workspace: of the tile. arrivals: its counter. ROUNDED: elements are of type T.
  template <int LANES, bool ROUNDED, class F>
  JM_DEVICE void finish(unsigned char* stats_at, unsigned char* to, int valid, float unit,
                        float* workspace, int split, uint32_t* arrivals, const F& f) {
    const int g = lane_id() / 4, t = lane_id() % 4;
    sum[0] = quad_sum(sum[0]);
    sum[1] = quad_sum(sum[1]);
    Share* const stats = reinterpret_cast<Share*>(stats_at);
    if constexpr (WARPS_N > 1) {
      if (t == 0)
#pragma unroll
        for (int h = 0; h < 2; ++h)
          stats[share() * BQ + first_row() + g + 8 * h] = {max[h], sum[h]};
    }
    if constexpr (WARPS_N > 1 || !OWN_OUT) syncthreads();
    float scale[2];
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      scale[h] = 1.0f;
      if constexpr (WARPS_N > 1) {
        const float own = max[h];
        combine_shares<WARPS_N>(stats + first_row() + g + 8 * h, BQ, unit, max[h], sum[h]);
        scale[h] = softmax_exp(own, softmax_base(max[h]), unit);
      }
      if constexpr (SPLIT == 1) scale[h] *= 1.0f / sum[h];
    }
    if constexpr (WARPS_N == 1 && SPLIT == 1 && ROUNDED && LANES == 8 && NV % 4 == 0) {
      quads(scale, valid, f);
      return;
    }
    float* const out = reinterpret_cast<float*>(to);
    float* const own = out + warp_id() * 16 * PITCH;
    if constexpr (WARPS_N == 1 && SPLIT == 1) {
      constexpr int PER_ROW = NS * 8 / LANES;
#pragma unroll 1
      for (int c0 = 0; c0 < DVP; c0 += NS * 8) {
        stage(own, scale);
        syncwarp();
#pragma unroll 1
        for (int i = lane_id(); i < 16 * PER_ROW; i += WARP) {
          const int r = i / PER_ROW, c = i % PER_ROW * LANES;
          float x[LANES];
          gather(x, own, r, c);
          if (first_row() + r < valid) f(first_row() + r, c0 + c, x);
        }
        syncwarp();
        // The next fragments move to where these were: registers are named at compile time.
#pragma unroll
        for (int i = 0; i + NS < NV; ++i)
#pragma unroll
          for (int e = 0; e < 4; ++e) o[i][e] = o[i + NS][e];
      }
      return;
    }
    constexpr int PER_ROW = DVP / LANES;
    stage(own, scale);
    if constexpr (SPLIT > 1) {
      float* const part = workspace + split * PART;
      if (share() == 0 && t == 0)
#pragma unroll
        for (int h = 0; h < 2; ++h)
          store<float, 2>(part + BQ * DVP + (first_row() + g + 8 * h) * 2,
                          Vec<float, 2>{max[h], sum[h]});
    }
    syncthreads();
    if constexpr (SPLIT > 1) {
      float* const part = workspace + split * PART;
#pragma unroll 1
      for (int i = thread_id(); i < valid * (DVP / 4); i += THREADS) {
        const int r = i / (DVP / 4), c = i % (DVP / 4) * 4;
        float x[4];
        gather(x, out, r, c);
        store<float, 4>(part + r * DVP + c, Vec<float, 4>{x[0], x[1], x[2], x[3]});
      }
      group_barrier<SPLIT>(arrivals);
#pragma unroll 1
      for (int i = split * THREADS + thread_id(); i < valid * PER_ROW; i += SPLIT * THREADS) {
        const int r = i / PER_ROW, c = i % PER_ROW * LANES;
        float x[LANES];
        gather_parts<SPLIT, PART, BQ * DVP, DVP>(x, workspace, unit, r, c);
        f(r, c, x);
      }
    } else {
#pragma unroll 1
      for (int i = thread_id(); i < valid * PER_ROW; i += THREADS) {
        const int r = i / PER_ROW, c = i % PER_ROW * LANES;
        float x[LANES];
        gather(x, out, r, c);
        f(r, c, x);
      }
    }
  }

 private:
  // The largest of the logits and the maximum so far, by row. Floats that are not negative have the order of
  // their bits, of which three are compared in one instruction (VIMNMX3).
  template <bool FIRST, int NT>
  JM_DEVICE void largest(float (&most)[2], const float (&s)[NT][4]) const {
    if (!FIRST && warp_all(max[0] >= 0.0f && max[1] >= 0.0f)) {
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        int top[2] = {bitcast<int>(max[h]), bitcast<int>(max[h])};  // two chains
#pragma unroll
        for (int j = 0; j < NT; ++j) {
          const Most larger;
          top[j % 2] = larger(larger(top[j % 2], bitcast<int>(s[j][2 * h])), bitcast<int>(s[j][2 * h + 1]));
        }
        most[h] = bitcast<float>(Most{}(top[0], top[1]));
      }
    } else {
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        most[h] = max[h];
#pragma unroll
        for (int j = 0; j < NT; ++j)
          most[h] = fmaxf(most[h], fmaxf(s[j][2 * h], s[j][2 * h + 1]));
      }
    }
  }

  // As `finish`, without shared memory: with 512 keys of 32 heads of 128 4 to 9 % less time, with 2048 2 to 3,
  // 12 heads of 64 up to 3. A row's pairs of columns of a fragment, in four lanes, move to one:
  //
  //   lane            0      1      2      3              0           1           2           3
  //   fragment j      0 1    2 3    4 5    6 7     ->     0 1 .. 6 7
  //   j + 1           0 1    2 3    4 5    6 7                        0 1 .. 6 7
  //   ...                                                                         j + 2       j + 3
  template <class F>
  JM_DEVICE void quads(const float (&scale)[2], int valid, const F& f) const {
    const int row = first_row() + lane_id() / 4, t = lane_id() % 4;
#pragma unroll
    for (int j = 0; j < NV; j += 4)
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        uint32_t words[4];
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          const float a = o[j + i][2 * h] * scale[h], b = o[j + i][2 * h + 1] * scale[h];
          words[i] = is_same<T, bf16> ? floats_to_bf16x2(a, b) : floats_to_f16x2(a, b);
        }
        quad_transpose(words);
        float x[8];
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          x[2 * i] = convert<float>(bitcast<T>(static_cast<uint16_t>(words[i])));
          x[2 * i + 1] = convert<float>(bitcast<T>(static_cast<uint16_t>(words[i] >> 16)));
        }
        if (row + 8 * h < valid) f(row + 8 * h, (j + t) * 8, x);
      }
  }

  JM_DEVICE void stage(float* own, const float (&scale)[2]) const {
    const int g = lane_id() / 4, t = lane_id() % 4;
#pragma unroll
    for (int i = 0; i < NS; ++i)
#pragma unroll
      for (int h = 0; h < 2; ++h)
        store<float, 2>(own + (g + 8 * h) * PITCH + i * 8 + 2 * t,
                        Vec<float, 2>{o[i][2 * h] * scale[h], o[i][2 * h + 1] * scale[h]});
  }

  // Elements of the tile, added over the warps that share their row.
  template <int N>
  JM_DEVICE static void gather(float (&x)[N], const float* out, int r, int c) {
    const float* p = out + r * PITCH + c;
    const Vec<float, N> first = load<float, N>(p);
#pragma unroll
    for (int e = 0; e < N; ++e) x[e] = first.x[e];
#pragma unroll
    for (int w = 1; w < WARPS_N; ++w) {
      const Vec<float, N> more = load<float, N>(p + w * BQ * PITCH);
#pragma unroll
      for (int e = 0; e < N; ++e) x[e] += more.x[e];
    }
  }
};

}  // namespace jaxmono
