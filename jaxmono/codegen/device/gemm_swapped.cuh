// One output tile of a contraction with few rows: the weights, right operand of the contraction, are
// the left one of wgmma.
//
//   y[m, n] = x[m, k] w[k, n]      as      y^T = w^T x^T: 64 or 128 columns of w are the rows of a
//                                          product, 16 to 64 rows of x its columns
//
// The tensor core reads the weights from shared memory itself; in fragments, by mma.sync, they passed
// at 2 to 2.5 of an H200's 4.2 TB/s. Tiles, coordinates and stores are those of y, as in the other
// families.
#pragma once
#include "jaxmono/gemm_wgmma.cuh"
#include "jaxmono/row_panel.cuh"

namespace jaxmono {

// The warpgroups share the tile along n (WG_N) or k (WG_K); one of them is 2. PANEL: k tiles of x that
// the consumers compute while the first weights arrive, times 64; 0: x is streamed with the weights.
// *_UNALIGNED: as of GemmWgmma.
template <class T, int BM_, int BN_, int SLOTS, int WG_N, int WG_K, bool X_K_MAJOR, bool W_K_MAJOR,
          int PANEL = 0, bool X_UNALIGNED = false, bool W_UNALIGNED = false>
struct GemmSwapped {
  using G = GemmWgmma<T, BN_, BM_, SLOTS, WG_N, 1, WG_K, W_K_MAJOR, X_K_MAJOR, 0, PANEL, 4, 0,
                      W_UNALIGNED, X_UNALIGNED>;
  static constexpr int BM = BM_, BN = BN_;
  using Accumulators = typename G::Accumulators;

  // Layout: panel | ring | sums as [m][n], once for each warpgroup along k. Rows that are two apart begin 8
  // banks apart: what a fragment's lanes store falls on all 32.
  static constexpr int PITCH = BN + 4;
  static constexpr int SUMS = G::PANEL_BYTES + SLOTS * G::STAGE_BYTES;
  static constexpr int SHARED_BYTES = SUMS + WG_K * BM * PITCH * 4;

  // As GemmWgmma::produce; of the first AHEAD tiles the weights do not wait for ready().
  template <int AHEAD, class Ready, class LoadX, class LoadW>
  JM_DEVICE static void produce(unsigned char* smem, Roles* roles, Place& at, int m0, int n0, int k0,
                                int tiles, const Ready& ready, const LoadX& load_x,
                                const LoadW& load_w) {
    G::template produce<AHEAD, true>(smem, roles, at, n0, m0, k0, tiles, ready, load_w, load_x);
  }

  // The consumers' part of the loads: `tiles` k tiles of x.
  template <class LoadX>
  JM_DEVICE static void fill(unsigned char* smem, int m0, int k0, int tiles, const LoadX& load_x) {
    fill_panel<T, BM>(smem, m0, k0, tiles, load_x);
  }

  JM_DEVICE static void consume(unsigned char* smem, Roles* roles, Place& at, int tiles,
                                Accumulators& sums) {
    G::consume(smem, roles, at, tiles, sums);
  }

  // Calls f(r, c, sums, NoEarly) for every LANES (at most 4) neighbouring columns of a row of y, the
  // threads of a warp on neighbouring columns.
  template <int LANES, class Fetch, class F>
  JM_DEVICE static void finish(unsigned char* smem, const Accumulators& acc, const Fetch&,
                               const F& f) {
    static_assert(LANES <= 4, "rows begin at multiples of 16 bytes");
    float* const staging = reinterpret_cast<float*>(smem + SUMS);
    const int column = G::first_row() + lane_id() / 4, row = lane_id() % 4 * 2;
    float* const own = staging + (WG_K == 2 ? G::warpgroup() * BM * PITCH : 0) + row * PITCH + column;
#pragma unroll
    for (int j = 0; j < G::NT; ++j) {
#pragma unroll
      for (int e = 0; e < 4; ++e) own[(j * 8 + e % 2) * PITCH + e / 2 * 8] = acc.x[j][e];
    }
    syncthreads();
    constexpr int PER_ROW = BN / LANES;
    for (int i = thread_id(); i < BM * PER_ROW; i += CONSUMERS) {
      const int r = i / PER_ROW, c = i % PER_ROW * LANES;
      const float* const p = staging + r * PITCH + c;
      Vec<float, LANES> x = load<float, LANES>(p);
      if constexpr (WG_K == 2) {
        const Vec<float, LANES> y = load<float, LANES>(p + BM * PITCH);
#pragma unroll
        for (int e = 0; e < LANES; ++e) x.x[e] += y.x[e];
      }
      f(r, c, x.x, NoEarly{});
    }
    syncthreads();
  }
};

}  // namespace jaxmono
