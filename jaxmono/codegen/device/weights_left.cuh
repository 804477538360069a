// What products have in common whose weights, right operand of the contraction, are the left one of wgmma and
// pass through registers (gemm_tf32.cuh, gemm_bytes.cuh; gemm_bf16x6.cuh has products of its own): all but how
// operands come.
//
//   y[m, n] = x[m, k] w[k, n]      as      y^T = w^T x^T: 64 or 128 columns of w are the rows of a
//                                          product, 16 to 256 rows of x its columns
//
// Rows lie in shared memory as wgmma reads them, [m][k]; weights in any way. Coordinates are those of y.
#pragma once
#include "jaxmono/bytes.cuh"
#include "jaxmono/gemm_wgmma.cuh"
#include "jaxmono/row_panel.cuh"
#include "jaxmono/staged_columns.cuh"
#include "jaxmono/staged_together.cuh"

namespace jaxmono {

// Weights that nothing is multiplied with.
struct NoScales {
  static constexpr int PER_SCALE = 0;
};
// of(column, k): the scale of a column of a tile and of PER elements of k, from the task's first on, twice the
// rows' 16 bits (bytes.cuh's `twice`).
template <int PER, class Of>
struct Scales {
  static constexpr int PER_SCALE = PER;
  const Of& of;
};

// Weights: a tile of weights and its fragments, as Tf32Weights (gemm_tf32.cuh) and ByteWeights
// (byte_weights.cuh). The warpgroups share the tile along m (WG_M), n (WG_N) or k (WG_K: each has all of it
// and half of each slot's steps, and the sums meet in the epilogue); one of them is 2. PANEL: k tiles of rows
// that the consumers compute while the first weights arrive; 0: rows are streamed with them.
template <class Weights, class TileX_, int BM_, int BN_, int SLOTS_, int WG_M, int WG_N, int WG_K,
          int PANEL = 0>
struct WeightsLeft {
  static constexpr int BM = BM_, BN = BN_, BK = Weights::BK, SLOTS = SLOTS_;
  static constexpr int N = BM / WG_M, NT = N / 8, STEPS = Weights::STEPS / WG_K, STEP = Weights::STEP;
  static_assert(WG_M * WG_N * WG_K == 2 && BN == 64 * WG_N && BM % WG_M == 0, "two warpgroups of 64 columns");
  static_assert(N % 16 == 0 && N <= 256 && BM <= 256 && SLOTS >= 2 && SLOTS <= MAX_SLOTS, "");

  using TileX = TileX_;
  using TileA = SwizzledTile<typename Weights::Row, BM, (PANEL ? PANEL : 1) * BK>;  // of a panel
  using Sum = typename Weights::Sum;
  using Acc = Sum;
  static constexpr int STAGE_BYTES = Weights::BYTES + (PANEL ? 0 : TileX::BYTES);
  static constexpr bool TOGETHER = Weights::TOGETHER;  // the warps of a warpgroup stage their sums
  static_assert(WG_K == 1 || TOGETHER, "");
  using Staged = Conditional<TOGETHER, StagedTogether<NT, Sum, Weights::EACH, WG_K>,
                             StagedColumns<NT>>;

  // Layout: panel | ring | staging. A slot: weights | x.
  static constexpr int PANEL_BYTES = PANEL * TileX::BYTES;
  static constexpr int STAGING = PANEL_BYTES + SLOTS * STAGE_BYTES;
  static constexpr int SHARED_BYTES = STAGING + (WG_K == 2 ? 1 : TOGETHER ? 2 : 8) * Staged::BYTES;
  JM_DEVICE static unsigned char* slot(unsigned char* smem, int i) {
    return smem + PANEL_BYTES + i * STAGE_BYTES;
  }

  struct Accumulators {
    Sum x[NT][4];
  };

  JM_DEVICE static int warpgroup() { return fresh(warp_id()) / 4; }
  JM_DEVICE static int first_column() {
    const int warp = fresh(warp_id());
    return (WG_N == 2 ? warp / 4 * 64 : 0) + warp % 4 * 16;
  }
  JM_DEVICE static int first_row() { return WG_M == 2 ? warpgroup() * N : 0; }

  // The producers' walk through the k tiles of a task: weights(slot, t), of the first FIRST tiles in front of
  // ready(), and rows(slot, t).
  template <int FIRST, class Ready, class FillW, class FillX>
  JM_DEVICE static void request(Roles* roles, Place& at, int tiles, const Ready& ready,
                                const FillW& weights, const FillX& rows) {
    Place first = at;
#pragma unroll 1
    for (int t = 0; t < FIRST && t < tiles; ++t) {
      mbarrier_wait(&roles->empty[first.slot], first.parity() ^ 1);
      weights(first.slot, t);
      first.template next<SLOTS>();
    }
    ready();
    const auto rest = [&](int t) {
      rows(at.slot, t);
      cp_async_mbarrier_arrive(&roles->full[at.slot]);
      at.template next<SLOTS>();
    };
    int t = 0;
#pragma unroll 1
    for (; t < FIRST && t < tiles; ++t) rest(t);
#pragma unroll 1
    for (; t < tiles; ++t) {
      mbarrier_wait(&roles->empty[at.slot], at.parity() ^ 1);
      weights(at.slot, t);
      rest(t);
    }
  }

  template <class LoadX>
  JM_DEVICE static void fill(unsigned char* smem, int m0, int k0, int tiles, const LoadX& load_x) {
    syncthreads();  // the previous task is done with the panel
    fill_panel<typename Weights::Row, BM>(smem, m0, k0, tiles * (TileX::BYTES / (BM * 128)), load_x);
  }

  // Scales are asked for two tiles ahead: a lane has two columns.
  template <class By = NoScales>
  JM_DEVICE static void consume(unsigned char* smem, Roles* roles, Place& at, int tiles, Accumulators& sums,
                                const By& by = {}) {
#pragma unroll
    for (int j = 0; j < NT; ++j)
#pragma unroll
      for (int e = 0; e < 4; ++e) sums.x[j][e] = Sum(0);
    const int wg = uniform(warpgroup());
    const int first = [&] {
      if constexpr (WG_K == 2) return Weights::first(first_column(), wg == 1);
      else return Weights::first(first_column());
    }();
    const bool speaks = speaks_for_warpgroup();
    const uint64_t x0 = operand_slice<TileX, true>(PANEL ? smem : slot(smem, 0) + Weights::BYTES,
                                                   WG_M == 2 ? wg * N : 0,
                                                   WG_K == 2 ? wg * STEPS * STEP : 0);
    // The products of a tile run while the weights of the next one come into registers: `own`, which the
    // tile before the last one had. Not beside 128 sums: those tiles multiply without a pause anyway, and
    // took 2 % longer so (2048 cubed); smaller ones take 2 to 5 % less. Nor in kernels for which ptxas has
    // not the registers then, and lets all products wait for each other.
#ifdef JM_IN_TURN
    constexpr int RUNNING = 0;
#else
    constexpr int RUNNING = NT <= 24 ? 1 : 0;
#endif
    constexpr bool SCALED = By::PER_SCALE > 0;
    constexpr int OWN_K = STEPS * STEP;  // of a warpgroup in a tile
    constexpr int SCALES = SCALED && OWN_K > By::PER_SCALE ? OWN_K / By::PER_SCALE : 1;
    struct Held {
      uint32_t x[SCALES][2];
    };
    const auto scales = [&](int t) {
      Held out{};
      if constexpr (SCALED)
#pragma unroll
        for (int i = 0; i < SCALES; ++i)
#pragma unroll
          for (int h = 0; h < 2; ++h)
            out.x[i][h] = by.of(Weights::column(first_column(), h),
                                t * BK + (WG_K == 2 ? wg * OWN_K : 0) + i * By::PER_SCALE);
      return out;
    };
    int before = -1;  // the slot whose products may still run
    const auto step = [&](uint32_t (&own)[STEPS][4], Held& held, int t) {
      mbarrier_wait(&roles->full[at.slot], at.parity());
      Weights::fragments(own, shared_offset(slot(smem, at.slot)) + first);
      if constexpr (SCALED) {
#pragma unroll
        for (int s = 0; s < STEPS; ++s)
#pragma unroll
          for (int i = 0; i < 4; ++i)
            own[s][i] = pairs_product<typename Weights::Row>(
                own[s][i], held.x[SCALES == 1 ? 0 : s * STEP / By::PER_SCALE][i % 2]);
        held = scales(t + 2 < tiles ? t + 2 : t);
      }
      const uint64_t x = wgmma_descriptor_at(x0, PANEL ? t * TileX::BYTES : at.slot * STAGE_BYTES);
      wgmma_fence();
#pragma unroll
      for (int s = 0; s < STEPS; ++s)
        Weights::multiply(sums.x, own[s], operand_slice<TileX, true>(x, 0, s * STEP));
      wgmma_commit();
      wgmma_wait<RUNNING>();
      if (!RUNNING) before = at.slot;
      if (before >= 0 && speaks) mbarrier_arrive(&roles->empty[before]);
      before = at.slot;
      at.template next<SLOTS>();
    };
    uint32_t even[STEPS][4], odd[STEPS][4];
    Held of_even = scales(0), of_odd = scales(tiles > 1 ? 1 : 0);
#pragma unroll 1
    for (int t = 0; t < tiles; t += 2) {
      step(even, of_even, t);
      if (t + 1 == tiles) break;  // with the second step behind a branch ptxas lets products wait (13.5)
      step(odd, of_odd, t + 1);
    }
    wgmma_wait<0>();
    if (RUNNING && before >= 0 && speaks) mbarrier_arrive(&roles->empty[before]);
  }

  // For every LANES (at most 4) neighbouring columns of TAPS neighbouring rows: f(r, c, sums) with
  // sums[TAPS][LANES].
  template <int TAPS, int LANES, class F>
  JM_DEVICE static void finish_windows(unsigned char* smem, Accumulators& sums, const F& f) {
    Staged::template windows<TAPS, LANES>(
        staging(smem), sums.x,
        [&](int r, int c, const Sum (&x)[TAPS][LANES]) { f(first_row() + r, first_column() + c, x); });
  }

  // Calls f(r, c, sums, fetch(r, c)) for every LANES (at most 4; 8 if TOGETHER) neighbouring elements of a
  // row.
  template <int LANES, class Fetch, class F>
  JM_DEVICE static void finish(unsigned char* smem, Accumulators& sums, const Fetch& fetch, const F& f) {
    const auto column = [] { return !TOGETHER ? first_column() : WG_N == 2 ? warpgroup() * 64 : 0; };
    Staged::template rows<LANES>(
        staging(smem), sums.x, [&](int r, int c) { return fetch(first_row() + r, column() + c); },
        [&](int r, int c, const Sum (&x)[LANES], const auto& early) {
          f(first_row() + r, column() + c, x, early);
        });
  }

 private:
  JM_DEVICE static Sum* staging(unsigned char* smem) {  // this warp's, or warpgroup's, or all
    return reinterpret_cast<Sum*>(smem + STAGING) +
           (WG_K == 2 ? 0 : TOGETHER ? warpgroup() : fresh(warp_id())) * (Staged::BYTES / 4);
  }
};

}  // namespace jaxmono
