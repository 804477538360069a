// A warp's accumulators of a product with swapped operands on their way out through shared memory: its 16
// rows are columns of the result.
//
//   fragment          lane 4 g + t:  rows 8 j + 2 t, + 1  of columns g, g + 8      (stored)
//   piece             LANES neighbouring columns of a row                          (loaded)
#pragma once
#include "jaxmono/opaque.cuh"
#include "jaxmono/platform.cuh"
#include "jaxmono/ptx.cuh"
#include "jaxmono/staged_rows.cuh"
#include "jaxmono/types.cuh"
#include "jaxmono/vec.cuh"
#include "jaxmono/warp.cuh"

namespace jaxmono {

// NT fragments of 8 rows each, some at a time.
template <int NT>
struct StagedColumns {
  static constexpr int N = NT * 8;
  static constexpr int CHUNK = N % 32 == 0 ? 32 : 16;  // rows
  static_assert(N % CHUNK == 0, "whole chunks");
  static constexpr int PITCH = 20;  // rows that are two apart begin 8 banks apart
  static constexpr int BYTES = CHUNK * PITCH * 4;

  // The next CHUNK rows.
  JM_DEVICE static void put(float* to, const float (&x)[NT][4]) {
    const int lane = fresh(lane_id());
    float* const own = to + (lane & 3) * (2 * PITCH) + (lane >> 2);
#pragma unroll
    for (int j = 0; j < CHUNK / 8; ++j)
#pragma unroll
      for (int e = 0; e < 4; ++e) own[(j * 8 + e % 2) * PITCH + e / 2 * 8] = x[j][e];
  }

  // Calls f(r, c, sums, fetch(r, c)) for every LANES neighbouring columns of a row, some pieces ahead as
  // StagedRows::rows. own: BYTES of the warp.
  template <int LANES, class Fetch, class F>
  JM_DEVICE static void rows(float* own, float (&x)[NT][4], const Fetch& fetch, const F& f) {
    static_assert(LANES <= 4, "rows begin at multiples of 16 bytes");
    using Early = decltype(fetch(0, 0));
    constexpr int PER_ROW = 16 / LANES, AT_ONCE = WARP / PER_ROW, TRIPS = CHUNK / AT_ONCE;
    constexpr bool ONCE = ByColumn<Early>::value;  // a thread stays in its columns
    constexpr int ROOM = is_same<Early, NoEarly> || is_same<Early, NoReads> || ONCE
                             ? 4
                             : (NT <= 24 ? 80 : 32) / int(sizeof(Early));
    constexpr int MOST = ROOM >= 8 ? 8 : ROOM >= 4 ? 4 : ROOM >= 2 ? 2 : 1;
    constexpr int AHEAD = TRIPS < MOST ? TRIPS : MOST;
    static_assert(TRIPS % AHEAD == 0, "powers of two");
    const int lane = fresh(lane_id()), column = lane % PER_ROW * LANES;
    // Eight lanes that load 16 bytes each have two rows that are four apart: all banks.
    const int first = LANES == 4 ? lane / 4 % 2 * 4 + lane / 8 : lane / PER_ROW;
    Early same{};
    if constexpr (ONCE) same = fetch(first, column);
#pragma unroll 1
    for (int r0 = 0; r0 < N; r0 += CHUNK) {
#pragma unroll 1
      for (int base = 0; base < TRIPS; base += AHEAD) {
        const auto row = [&](int k) { return first + (base + k) * AT_ONCE; };
        Early early[AHEAD]{};
#pragma unroll
        for (int k = 0; k < AHEAD; ++k)
          if constexpr (ONCE) early[k] = same;
          else early[k] = fetch(r0 + row(k), column);
        if (base == 0) {
          put(own, x);
          syncwarp();
        }
        Vec<float, LANES> sums[AHEAD];
#pragma unroll
        for (int k = 0; k < AHEAD; ++k) sums[k] = load<float, LANES>(own + row(k) * PITCH + column);
#pragma unroll
        for (int k = 0; k < AHEAD; ++k) f(r0 + row(k), column, sums[k].x, early[k]);
      }
      syncwarp();
      StagedRows<NT, false>::template advance<CHUNK>(x);
    }
  }

  // As `rows`, for every LANES neighbouring columns of TAPS neighbouring rows: f(r, c, sums) with
  // sums[TAPS][LANES].
  template <int TAPS, int LANES, class F>
  JM_DEVICE static void windows(float* own, float (&x)[NT][4], const F& f) {
    static_assert(LANES <= 4 && CHUNK % TAPS == 0, "whole windows, of 16 bytes a row");
    constexpr int PER_ROW = 16 / LANES, PIECES = CHUNK / TAPS * PER_ROW;
    const int lane = fresh(lane_id());
#pragma unroll 1
    for (int r0 = 0; r0 < N; r0 += CHUNK) {
      put(own, x);
      syncwarp();
#pragma unroll 1
      for (int i = lane; i < PIECES; i += WARP) {
        const int row = i / PER_ROW * TAPS, column = i % PER_ROW * LANES;
        float sums[TAPS][LANES];
#pragma unroll
        for (int t = 0; t < TAPS; ++t) {
          const auto sum = load<float, LANES>(own + (row + t) * PITCH + column);
#pragma unroll
          for (int e = 0; e < LANES; ++e) sums[t][e] = sum.x[e];
        }
        f(r0 + row, column, sums);
      }
      syncwarp();
      StagedRows<NT, false>::template advance<CHUNK>(x);
    }
  }
};

}  // namespace jaxmono
