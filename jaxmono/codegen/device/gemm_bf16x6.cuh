// One output tile of a contraction of f32 that has to be exact (precision HIGHEST), by wgmma: six products
// of bf16 parts, p_i(w) p_j(x) with i + j <= 2 (bf16_parts.cuh).
//
// What is left out is below 2^-24 of a product (2^-27 in the mean), and nothing of one that f32 holds. wgmma cuts
// its sums off where f32 ends, so they are few: those of a k tile begin at zero, the small products first, and
// are added to the others by an ordinary addition. Errors are about those of multiply-adds, or less
// (tests/gpu/test_exact.py; Ootomo and Yokota, "Recovering single precision accuracy from Tensor Cores", 2022, do so with three products of 11 bits;
// JAX's HIGHEST on a TPU is six of bf16). Multiply-adds (gemm_fma.cuh) allow 67 Tflop/s on an H100, bf16 six
// times 165.
//
// Weights are the left operand, their parts made in registers (weights_left.cuh); producers split the rows in
// shared memory when they have landed. Sums that are no numbers, because a part is none, or so large that those of
// a k tile may not have fitted f32 (LARGE), are made once more, one by one.
//
// 12 wgmmas of 64 x 128 x 16 take 768 clocks, and two warpgroups take turns: while one has its products, the
// other one parts weights and adds sums. With the next weights parted beside the products, tiles of 128 rows
// took 6 to 15 % longer on an H100, smaller ones up to 2 % less; with rows split four at a time products 5 % less
// to 3 % more, models up to 5 % longer; with both BERT-base and ViT-B/16 b1 10 % longer.
#pragma once
#include "jaxmono/bf16_parts.cuh"
#include "jaxmono/marching.cuh"
#include "jaxmono/weights_left.cuh"

namespace jaxmono {

template <int BN, bool K_MAJOR>
struct Bf16x6Weights : PartsLeft<BN, K_MAJOR> {
  using Row = float;
  using Sum = float;
  static constexpr int BK = 32, STEP = 16, STEPS = 2;
  static constexpr bool TOGETHER = false;
  static constexpr int EACH = 1;
};

// X_K_MAJOR: rows are [m][k]. W_K_MAJOR: weights are [n][k]. The others: as of WeightsLeft.
template <int BM, int BN, int SLOTS, int WG_M, int WG_N, bool X_K_MAJOR, bool W_K_MAJOR>
struct GemmBf16x6 : WeightsLeft<Bf16x6Weights<BN, W_K_MAJOR>, PartsRight<BM, X_K_MAJOR>, BM, BN, SLOTS,
                                WG_M, WG_N, 1> {
  using Weights = Bf16x6Weights<BN, W_K_MAJOR>;
  using TileX = PartsRight<BM, X_K_MAJOR>;
  using Left = WeightsLeft<Weights, TileX, BM, BN, SLOTS, WG_M, WG_N, 1>;
  using typename Left::Accumulators;
  using Left::first_column, Left::first_row, Left::warpgroup;
  using Left::NT, Left::STAGE_BYTES, Left::STEPS, Left::STEP;
  static constexpr int BK = Weights::BK;
  // k tiles on their way while the producers split one. The consumers hold one or two.
  static constexpr int LAG = SLOTS - 2 < 3 ? SLOTS - 2 : 3;
  static_assert(NT <= 16, "sums of a k tile beside those of all");
  static_assert(LAG >= 1, "");
  static constexpr float LARGE = 1.98070406e28f;  // 2^94; from 2^96 on a k tile's sums, 2^32 times that, do not fit

  // Of the first AHEAD tiles the weights do not wait for ready().
  template <int AHEAD, class Ready, class LoadX, class LoadW>
  JM_DEVICE static void produce(unsigned char* smem, Roles* roles, Place& at, int m0, int n0, int k0,
                                int tiles, const Ready& ready, const LoadX& load_x,
                                const LoadW& load_w) {
    const int thread = fresh(thread_id()) - CONSUMERS;
    const Marching<float, Weights, BK, W_K_MAJOR, false, 0, LoadW, true> weights(thread, n0, k0, load_w);
    const auto rows = [&] {
      if constexpr (IsGathered<LoadX>::value)
        return typename TileX::template Rows<PRODUCERS>(thread, m0, load_x);
      else return Marching<float, TileX, BK, X_K_MAJOR, false, 0, LoadX, X_K_MAJOR>(thread, m0, k0, load_x);
    }();
    constexpr int FIRST = AHEAD < SLOTS ? AHEAD : SLOTS;
    Place first = at;
#pragma unroll 1
    for (int t = 0; t < FIRST && t < tiles; ++t) {
      mbarrier_wait(&roles->empty[first.slot], first.parity() ^ 1);
      weights.fill(Left::slot(smem, first.slot), t);
      first.template next<SLOTS>();
    }
    ready();
    Place done = at;  // where the tiles are that have been requested and not split
    const auto request = [&](int t, auto half) {
      if (t < tiles) {
        if constexpr (!decltype(half)::value) {
          mbarrier_wait(&roles->empty[at.slot], at.parity() ^ 1);
          weights.fill(Left::slot(smem, at.slot), t);
        }
        unsigned char* const to = Left::slot(smem, at.slot) + Weights::BYTES;
        if constexpr (IsGathered<LoadX>::value)
          TileX::template gather<PRODUCERS>(to, thread, rows, k0 / BK + t, load_x);
        else
          rows.fill(to, t);
        at.template next<SLOTS>();
      }
      cp_async_commit();
      if (t < LAG) return;
      cp_async_wait<LAG>();
      TileX::template split<PRODUCERS>(Left::slot(smem, done.slot) + Weights::BYTES, thread);
      mbarrier_arrive(&roles->full[done.slot]);
      done.template next<SLOTS>();
    };
    int t = 0;
#pragma unroll 1
    for (; t < FIRST && t < tiles; ++t) request(t, Bool<true>{});
#pragma unroll 1
    for (; t < tiles + LAG; ++t) request(t, Bool<false>{});
  }

  // again(r, c): the sum of an element of the tile, in multiply-adds.
  template <class Again>
  JM_DEVICE static void consume(unsigned char* smem, Roles* roles, Place& at, int tiles,
                                Accumulators& sums, const Again& again) {
#pragma unroll
    for (int j = 0; j < NT; ++j)
#pragma unroll
      for (int e = 0; e < 4; ++e) sums.x[j][e] = 0.0f;
    const int wg = uniform(warpgroup()), own_row = WG_M == 2 ? wg * Left::N : 0;
    const int first = Weights::first(first_column());
    const bool speaks = speaks_for_warpgroup();
    const uint64_t pair = TileX::slice(Left::slot(smem, 0) + Weights::BYTES, own_row);
    const uint64_t third = TileX::third_slice(Left::slot(smem, 0) + Weights::BYTES, own_row);
#pragma unroll 1
    for (int t = 0; t < tiles; ++t) {
      mbarrier_wait(&roles->full[at.slot], at.parity());
      fence_proxy_async();  // the producers have stored the parts
      uint32_t own[STEPS][3][4];
#pragma unroll
      for (int s = 0; s < STEPS; ++s)
        Weights::fragment(own[s], shared_offset(Left::slot(smem, at.slot)) + first, s * STEP);
      const auto row = [&](int part, int s) {  // its slice of rows
        return wgmma_descriptor_at(part == 2 ? third : pair,
                                   at.slot * STAGE_BYTES + (part == 1 ? 64 : 0) + s * (STEP * 2));
      };
      float tile[NT][4];
      wgmma_fence();
#pragma unroll
      for (int small = 2; small >= 0; --small)
#pragma unroll
        for (int i = 0; i <= small; ++i)
#pragma unroll
          for (int s = 0; s < STEPS; ++s) {
            if (small == 2 && i == 0 && s == 0)
              wgmma_registers<bf16, false, true>(tile, own[s][i], row(small - i, s));
            else
              wgmma_registers<bf16, false>(tile, own[s][i], row(small - i, s));
          }
      wgmma_commit();
      wgmma_wait<0>();
      if (speaks) mbarrier_arrive(&roles->empty[at.slot]);
      wgmma_results(tile);
#pragma unroll
      for (int j = 0; j < NT; ++j)
#pragma unroll
        for (int e = 0; e < 4; ++e) sums.x[j][e] += PARTS_UNSCALE * tile[j][e];
      at.template next<SLOTS>();
    }
    repair(sums, again);
  }

 private:
  template <class Again>
  JM_DEVICE static void repair(Accumulators& sums, const Again& again) {
    const auto fits = [](float x) { return x < LARGE && x > -LARGE; };
    bool all = true;
#pragma unroll
    for (int j = 0; j < NT; ++j)
#pragma unroll
      for (int e = 0; e < 4; ++e) all &= fits(sums.x[j][e]);
    if (all) return;
    const int lane = fresh(lane_id());
    const int row = first_row() + lane % 4 * 2, column = first_column() + lane / 4;
#pragma unroll 1
    for (int j = 0; j < NT; ++j) {  // in its turn each fragment is the first
#pragma unroll
      for (int e = 0; e < 4; ++e)
        if (!fits(sums.x[0][e]))
          sums.x[0][e] = again(row + 8 * j + e % 2, column + e / 2 * 8);
      float first[4];
#pragma unroll
      for (int e = 0; e < 4; ++e) first[e] = sums.x[0][e];
#pragma unroll
      for (int i = 0; i + 1 < NT; ++i)
#pragma unroll
        for (int e = 0; e < 4; ++e) sums.x[i][e] = sums.x[i + 1][e];
#pragma unroll
      for (int e = 0; e < 4; ++e) sums.x[NT - 1][e] = first[e];
    }
  }
};

}  // namespace jaxmono
