// A warpgroup's accumulators of a product with swapped operands on their way out through shared memory: its
// 64 rows are columns of the result.
//
//   fragment          lane 4 g + t:  rows 8 j + 2 t, + 1  of columns g, g + 8 of a warp's 16   (stored)
//                     EACH 2:                             of columns 2 g, 2 g + 1
//                     EACH 4:                             of columns 4 g + 2 w, + 1 of the 32 of two warps (w: 0, 1)
//   piece             LANES neighbouring columns of a row                                      (loaded)
//
// A warp by itself (staged_columns.cuh) has 16 columns: rows of 16 bits leave it in sectors. Of four warps
// they are lines: 2048x3072x768 of bytes took 17.1 us on an H100 by warps, and 13.0 in gemm_wgmma.cuh, whose
// rows are a warp's own.
#pragma once
#include "jaxmono/opaque.cuh"
#include "jaxmono/ptx.cuh"
#include "jaxmono/roles.cuh"
#include "jaxmono/staged_rows.cuh"
#include "jaxmono/vec.cuh"

namespace jaxmono {

// NT fragments of 8 rows each, some at a time. Sum: float or uint32_t. WG_K: 2 where both warpgroups have sums
// of the same elements: all threads finish them. 1: chunks alternate between two buffers.
template <int NT, class Sum, int EACH, int WG_K = 1>
struct StagedTogether {
  static constexpr int ROWS = WG_K == 2 && NT % 4 == 0 ? 32 : 16, COLUMNS = 64, CHUNKS = NT * 8 / ROWS;
  static_assert(NT % 2 == 0, "whole chunks");
  // Rows that are two apart begin 8 banks apart. Of pieces of 8 columns the even groups of four are in the
  // first half of a row and the odd ones in the second, as in StagedRows.
  static constexpr int PITCH = COLUMNS + 4, HALF = COLUMNS / 2 + 4;
  static constexpr int BUFFER = ROWS * PITCH, BYTES = 2 * BUFFER * 4;  // of a warpgroup, or both

  template <int LANES>
  JM_DEVICE static int place(int column) {
    return LANES == 8 ? (column >> 3) * 4 + (column & 3) + (column >> 2 & 1) * HALF : column;
  }

  // A chunk's fragments, from the j-th one on.
  template <int LANES>
  JM_DEVICE static void put(Sum* to, const Sum (&x)[NT][4], int j) {
    const int lane = fresh(lane_id()), warp = fresh(warp_id()) % 4;
    const int first = EACH == 4 ? warp / 2 * 32 + warp % 2 * 2 : warp * 16;
    Sum* const own = to + (lane & 3) * (2 * PITCH) + place<LANES>(first + (lane >> 2) * EACH);
#pragma unroll
    for (int i = 0; i < ROWS / 8; ++i)
#pragma unroll
      for (int e = 0; e < 2; ++e) {
        Sum* const row = own + (i * 8 + e) * PITCH;
        if constexpr (EACH > 1) {
          store<Sum, 2>(row, Vec<Sum, 2>{x[j + i][e], x[j + i][e + 2]});
        } else {
          row[0] = x[j + i][e];
          row[LANES == 8 ? 4 : 8] = x[j + i][e + 2];
        }
      }
  }

  template <int LANES>
  JM_DEVICE static Vec<Sum, LANES> get(const Sum* row, int column) {
    if constexpr (LANES == 8) {
      const Vec<Sum, 4> x = load<Sum, 4>(row + column / 2), y = load<Sum, 4>(row + column / 2 + HALF);
      return {x.x[0], x.x[1], x.x[2], x.x[3], y.x[0], y.x[1], y.x[2], y.x[3]};
    } else {
      return load<Sum, LANES>(row + column);
    }
  }

  // Where all that stage together wait for each other.
  JM_DEVICE static void meet() {
    if constexpr (WG_K == 2) syncthreads();
    else named_barrier(SOURCE_BARRIER + fresh(warp_id()) / 4, 128);
  }

  // Calls f(r, c, sums, fetch(r, c)) for every LANES neighbouring columns of a row; what is fetched of some
  // chunks is on its way before their sums are stored. own: BYTES.
  template <int LANES, class Fetch, class F>
  JM_DEVICE static void rows(Sum* own, Sum (&x)[NT][4], const Fetch& fetch, const F& f) {
    static_assert(LANES <= 8, "");
    using Early = decltype(fetch(0, 0));
    constexpr int THREADS = WG_K * 128, PER_ROW = COLUMNS / LANES, AT_ONCE = THREADS / PER_ROW;  // rows
    constexpr int TRIPS = AT_ONCE < ROWS ? ROWS / AT_ONCE : 1;         // of a thread in a chunk
    constexpr bool ONCE = ByColumn<Early>::value;                      // a thread stays in its columns
    constexpr int ROOM = is_same<Early, NoEarly> || is_same<Early, NoReads> || ONCE
                             ? 4
                             : (NT <= 24 ? 80 : 32) / int(sizeof(Early)) / TRIPS;
    constexpr int MOST = ROOM >= 4 ? 4 : ROOM >= 2 ? 2 : 1;
    constexpr int AHEAD = MOST >= 4 && CHUNKS % 4 == 0 ? 4 : MOST >= 2 && CHUNKS % 2 == 0 ? 2 : 1;
    const int thread = fresh(thread_id()) % THREADS;
    const int first = thread / PER_ROW, column = thread % PER_ROW * LANES;
    const bool has = AT_ONCE <= ROWS || first < ROWS;
    Early same{};
    if constexpr (ONCE)
      if (has) same = fetch(first, column);
    meet();  // the last task's sums have been read
#pragma unroll 1
    for (int chunk = 0; chunk < CHUNKS; chunk += AHEAD) {
      const int r0 = chunk * ROWS + first;
      Early early[AHEAD][TRIPS]{};
#pragma unroll
      for (int k = 0; k < AHEAD; ++k)
#pragma unroll
        for (int i = 0; i < TRIPS; ++i)
          if (ONCE) early[k][i] = same;
          else if (has) early[k][i] = fetch(r0 + k * ROWS + i * AT_ONCE, column);
#pragma unroll
      for (int k = 0; k < AHEAD; ++k) {
        Sum* const buffer = own + (WG_K == 2 ? 0 : AHEAD % 2 == 0 ? k % 2 : chunk % 2) * BUFFER;
        if (WG_K == 2 && (chunk > 0 || k > 0)) meet();  // a single buffer of each warpgroup
        put<LANES>(buffer + (WG_K == 2 ? fresh(warp_id()) / 4 * BUFFER : 0), x, k * ROWS / 8);
        meet();
#pragma unroll
        for (int i = 0; i < TRIPS; ++i) {
          if (!has) continue;
          const Sum* const row = buffer + (first + i * AT_ONCE) * PITCH;
          Vec<Sum, LANES> sums = get<LANES>(row, column);
          if constexpr (WG_K == 2) {
            const Vec<Sum, LANES> others = get<LANES>(row + BUFFER, column);
#pragma unroll
            for (int e = 0; e < LANES; ++e) sums.x[e] += others.x[e];
          }
          f(r0 + k * ROWS + i * AT_ONCE, column, sums.x, early[k][i]);
        }
      }
      StagedRows<NT, false>::template advance<ROWS * AHEAD>(x);
    }
  }
};

}  // namespace jaxmono
