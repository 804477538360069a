// Rows that are computed: a panel of them in shared memory, as wgmma reads it.
#pragma once
#include "jaxmono/ptx.cuh"
#include "jaxmono/roles.cuh"
#include "jaxmono/swizzled_tile.cuh"
#include "jaxmono/vec.cuh"

namespace jaxmono {

// The consumers' part of the loads: `tiles` k tiles (lines of 128 bytes) of BM rows, which load computes in
// pieces of 16 bytes.
//
//     a warp    8 pieces of a line x 4 rows, ROWS times below each other: what a piece needs of its columns
//               alone (a norm's scale) is there once for so many rows
//
// Pieces wait in registers, so that the loads of two such units are in flight.
template <class T, int BM, class Load>
JM_DEVICE void fill_panel(unsigned char* smem, int m0, int k0, int tiles, const Load& load) {
  constexpr int ROWS = 4, WARPS = CONSUMERS / 32, E = 16 / sizeof(T), PER = BM / (4 * ROWS);
  static_assert(BM % (4 * ROWS) == 0, "rows come in sixteens");
  using Tile = SwizzledTile<T, BM, 8 * E>;
  const int units = tiles * PER, row = lane_id() / 8, column = lane_id() % 8 * E;
#pragma unroll 1
  for (int base = warp_id(); base < units; base += 2 * WARPS) {
    Piece<T> x[2][ROWS];
#pragma unroll
    for (int j = 0; j < 2; ++j) {
      const int u = base + j * WARPS;
      if (j > 0 && u >= units) break;  // the same for all lanes of a warp
#pragma unroll
      for (int i = 0; i < ROWS; ++i)
        load(static_cast<void*>(&x[j][i]), m0 + u % PER * (4 * ROWS) + i * 4 + row,
             k0 + u / PER * (8 * E) + column);
    }
#pragma unroll
    for (int j = 0; j < 2; ++j) {
      const int u = base + j * WARPS;
      if (u >= units) break;
#pragma unroll
      for (int i = 0; i < ROWS; ++i)
        *reinterpret_cast<Piece<T>*>(Tile::at(smem, u % PER * (4 * ROWS) + i * 4 + row,
                                              u / PER * (8 * E) + column)) = x[j][i];
    }
  }
  fence_proxy_async();
  syncthreads();
}

}  // namespace jaxmono
