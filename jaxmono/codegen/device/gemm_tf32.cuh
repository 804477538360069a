// One output tile of a contraction of f32 as tf32: the weights, right operand of the contraction, are the
// left one of wgmma, and pass through registers; x comes by the tensor memory accelerator, or is gathered.
//
//   y[m, n] = x[m, k] w[k, n]      as      y^T = w^T x^T: 64 or 128 columns of w are the rows of a
//                                          product, 16 to 256 rows of x its columns
//
// wgmma cuts the low 13 bits of an f32 off, and reads 32-bit elements along k only. In registers rounding
// is an instruction an element, and any layout of the weights can be read; the accelerator rounds x on its
// way into shared memory, which then nobody has to pass through once more: 128 x 256 x 32 products, 1024
// clocks, pass 1024 lines of 128 bytes. gemm_wgmma.cuh, for operands that the accelerator cannot take so,
// rounds and transposes them there, 1536 lines; on an H100 2048 cubed takes 70 us so, and 49 here,
// 1280x3072x768 31 and 23, 1280x768x3072 33 and 28, 1280x768x768 13.2 and 11.6.
//
// With clusters of two blocks that load the rows for each other (multicast) tiles of 256 rows and 128 columns
// took 0.95 to 1.10 of the time, smaller ones that would be chosen 1.03 to 1.2, BERT-base b32 0.99, BERT-large
// b16 1.03: a launch in clusters takes 2 to 3 us longer. Low bands of tiles are worth more (_F32_BAND in
// dot_wgmma.py).
//
// The accelerator knows rows at constant distances. A convolution's are gathered by the producers, who do
// not round: they have to lie rounded in memory (fusion/round_rows.py).
#pragma once
#include "jaxmono/gemm_wgmma.cuh"
#include "jaxmono/staged_columns.cuh"
#include "jaxmono/tensor_maps.cuh"
#include "jaxmono/tf32_tile.cuh"

namespace jaxmono {

// The warpgroups share the tile along m (WG_M) or n (WG_N); one of them is 2. W_K_MAJOR: weights are [n][k].
template <int BM_, int BN_, int SLOTS_, int WG_M, int WG_N, bool W_K_MAJOR>
struct GemmTf32 {
  static constexpr int BM = BM_, BN = BN_, BK = 32, SLOTS = SLOTS_;
  static constexpr int N = BM / WG_M, NT = N / 8, STEPS = 4, STEP = 8;
  static_assert(WG_M * WG_N == 2 && BN == 64 * WG_N && BM % WG_M == 0, "two warpgroups of 64 columns");
  static_assert(N % 16 == 0 && BM <= 256 && SLOTS >= 2 && SLOTS < TensorMaps::SLOTS, "");

  using TileW = Tf32Left<BN, W_K_MAJOR>;
  using TileX = SwizzledTile<float, BM, BK>;
  static constexpr int STAGE_BYTES = TileW::BYTES + TileX::BYTES;
  using Staged = StagedColumns<NT>;

  // Layout: ring | staging.
  static constexpr int STAGING = SLOTS * STAGE_BYTES;
  static constexpr int SHARED_BYTES = STAGING + 8 * Staged::BYTES;

  struct Accumulators {
    float x[NT][4];
  };

  JM_DEVICE static int warpgroup() { return fresh(warp_id()) / 4; }
  JM_DEVICE static int first_column() {
    const int warp = fresh(warp_id());
    return (WG_N == 2 ? warp / 4 * 64 : 0) + warp % 4 * 16;
  }
  JM_DEVICE static int first_row() { return WG_M == 2 ? warpgroup() * N : 0; }

  // Of the first AHEAD tiles the weights do not wait for ready().
  template <int AHEAD, class Ready, class LoadX, class LoadW>
  JM_DEVICE static void produce(unsigned char* smem, Roles* roles, Place& at, int m0, int n0, int k0,
                                int tiles, const Ready& ready, const LoadX& load_x,
                                const LoadW& load_w) {
    const int thread = fresh(thread_id()) - CONSUMERS;
    const float* from = nullptr;
    if constexpr (IsStrided<LoadW>::value)
      from = opaque(TileW::template begin<PRODUCERS>(thread, W_K_MAJOR ? n0 : k0, W_K_MAJOR ? k0 : n0,
                                                     load_w));
    const auto fill = [&](int slot, int t) {
      const int k = k0 + t * BK;
      unsigned char* const to = smem + slot * STAGE_BYTES;
      if constexpr (IsStrided<LoadW>::value)
        TileW::template fill<PRODUCERS>(to, thread, W_K_MAJOR ? n0 : k, W_K_MAJOR ? k : n0, load_w,
                                        from + t * (W_K_MAJOR ? BK : BK * LoadW::PITCH));
      else
        TileW::template fill<PRODUCERS>(to, thread, W_K_MAJOR ? n0 : k, W_K_MAJOR ? k : n0, load_w);
    };
    constexpr bool GATHERED = IsGathered<LoadX>::value;
    // Of the last tile only rows that there are, by eights (a swizzle): those outside the matrix cost the
    // accelerator more than others. 2048x8192x2048 in tiles of 224 rows took 275 us so, and 211 without.
    const int box = [&] {
      if constexpr (GATHERED) return 0;
      else return LoadX::CHECKS_ROWS ? min(BM, (load_x.rows - m0 + 7) / 8 * 8) : BM;
    }();
    const auto source = [&] {  // the rows' places, or the map of all
      if constexpr (GATHERED) return typename TileX::template Rows<PRODUCERS>(thread, m0, load_x);
      else return thread < WARP ? tensor_map(roles, load_x, box) : nullptr;
    }();
    constexpr int FIRST = AHEAD < SLOTS ? AHEAD : SLOTS;
    Place first = at;
#pragma unroll 1
    for (int t = 0; t < FIRST && t < tiles; ++t) {
      mbarrier_wait(&roles->empty[first.slot], first.parity() ^ 1);
      fill(first.slot, t);
      first.template next<SLOTS>();
    }
    ready();
    if (!GATHERED && thread == 0)
      fence_proxy_async_all();  // behind what blocks wrote, and what the ring's place held
    const auto rest = [&](int t) {
      unsigned char* const to = smem + at.slot * STAGE_BYTES + TileW::BYTES;
      if constexpr (GATHERED)
        TileX::template gather<PRODUCERS>(to, thread, source, k0 / BK + t, load_x);
      else if (thread == 0)
        tma_load(to, source, m0, k0 + t * BK, box, &roles->full[at.slot]);
      cp_async_mbarrier_arrive(&roles->full[at.slot]);
      at.template next<SLOTS>();
    };
    int t = 0;
#pragma unroll 1
    for (; t < FIRST && t < tiles; ++t) rest(t);
#pragma unroll 1
    for (; t < tiles; ++t) {
      mbarrier_wait(&roles->empty[at.slot], at.parity() ^ 1);
      fill(at.slot, t);
      rest(t);
    }
  }

  JM_DEVICE static void consume(unsigned char* smem, Roles* roles, Place& at, int tiles,
                                Accumulators& sums) {
#pragma unroll
    for (int j = 0; j < NT; ++j)
#pragma unroll
      for (int e = 0; e < 4; ++e) sums.x[j][e] = 0.0f;
    const int wg = uniform(warpgroup()), first = TileW::first(first_column());
    const bool speaks = speaks_for_warpgroup();
    const uint64_t x0 = operand_slice<TileX, true>(smem + TileW::BYTES, WG_M == 2 ? wg * N : 0, 0);
    // The products of a tile run while the weights of the next one come into registers: `own`, which the
    // tile before the last one had. Not beside 128 sums: those tiles multiply without a pause anyway, and
    // took 2 % longer so (2048 cubed); smaller ones take 2 to 5 % less. Nor in kernels for which ptxas has
    // not the registers then, and lets all products wait for each other.
#ifdef JM_IN_TURN
    constexpr int RUNNING = 0;
#else
    constexpr int RUNNING = NT <= 24 ? 1 : 0;
#endif
    int before = -1;  // the slot whose products may still run
    const auto step = [&](uint32_t (&own)[STEPS][4]) {
      mbarrier_wait(&roles->full[at.slot], at.parity());
      const int weights = shared_offset(smem + at.slot * STAGE_BYTES) + first;
#pragma unroll
      for (int s = 0; s < STEPS; ++s) TileW::fragment(own[s], weights, s * STEP);
#pragma unroll
      for (int s = 0; s < STEPS; ++s)
#pragma unroll
        for (int i = 0; i < 4; ++i) own[s][i] = to_tf32(bitcast<float>(own[s][i]));
      const uint64_t x = wgmma_descriptor_at(x0, at.slot * STAGE_BYTES);
      wgmma_fence();
#pragma unroll
      for (int s = 0; s < STEPS; ++s)
        wgmma_tf32_registers(sums.x, own[s], operand_slice<TileX, true>(x, 0, s * STEP));
      wgmma_commit();
      wgmma_wait<RUNNING>();
      if (!RUNNING) before = at.slot;
      if (before >= 0 && speaks) mbarrier_arrive(&roles->empty[before]);
      before = at.slot;
      at.template next<SLOTS>();
    };
    uint32_t even[STEPS][4], odd[STEPS][4];
#pragma unroll 1
    for (int t = 0; t < tiles; t += 2) {
      step(even);
      if (t + 1 == tiles) break;  // with the second step behind a branch ptxas lets products wait (13.5)
      step(odd);
    }
    wgmma_wait<0>();
    if (RUNNING && before >= 0 && speaks) mbarrier_arrive(&roles->empty[before]);
  }

  // For every LANES (at most 4) neighbouring columns of TAPS neighbouring rows: f(r, c, sums) with
  // sums[TAPS][LANES].
  template <int TAPS, int LANES, class F>
  JM_DEVICE static void finish_windows(unsigned char* smem, Accumulators& sums, const F& f) {
    Staged::template windows<TAPS, LANES>(
        reinterpret_cast<float*>(smem + STAGING) + fresh(warp_id()) * (Staged::BYTES / 4), sums.x,
        [&](int r, int c, const float (&x)[TAPS][LANES]) { f(first_row() + r, first_column() + c, x); });
  }

  // Calls f(r, c, sums, fetch(r, c)) for every LANES (at most 4) neighbouring elements of a row.
  template <int LANES, class Fetch, class F>
  JM_DEVICE static void finish(unsigned char* smem, Accumulators& sums, const Fetch& fetch, const F& f) {
    Staged::template rows<LANES>(
        reinterpret_cast<float*>(smem + STAGING) + fresh(warp_id()) * (Staged::BYTES / 4), sums.x,
        [&](int r, int c) { return fetch(first_row() + r, first_column() + c); },
        [&](int r, int c, const float (&x)[LANES], const auto& early) {
          f(first_row() + r, first_column() + c, x, early);
        });
  }
};

}  // namespace jaxmono
