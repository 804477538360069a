// Rows that are computed: a panel of them in shared memory, as wgmma reads it.
#pragma once
#include "jaxmono/ptx.cuh"
#include "jaxmono/roles.cuh"
#include "jaxmono/swizzled_tile.cuh"
#include "jaxmono/vec.cuh"

namespace jaxmono {

// The consumers' part of the loads: `tiles` k tiles (lines of 128 bytes) of BM rows, which load computes in
// pieces of 16 bytes. Pieces wait in registers, so that the loads of several are in flight.
template <class T, int BM, class Load>
JM_DEVICE void fill_panel(unsigned char* smem, int m0, int k0, int tiles, const Load& load) {
  constexpr int BATCH = 8, E = 16 / sizeof(T);
  using Tile = SwizzledTile<T, BM, 8 * E>;
  const int pieces = tiles * BM * 8;
#pragma unroll 1
  for (int base = thread_id(); base < pieces; base += BATCH * CONSUMERS) {
    Piece<T> x[BATCH];
#pragma unroll
    for (int j = 0; j < BATCH; ++j) {
      const int i = base + j * CONSUMERS < pieces ? base + j * CONSUMERS : pieces - 1;
      load(static_cast<void*>(&x[j]), m0 + i / 8 % BM, k0 + i / (8 * BM) * (8 * E) + i % 8 * E);
    }
#pragma unroll
    for (int j = 0; j < BATCH; ++j) {
      const int i = base + j * CONSUMERS;
      if (i < pieces)
        *reinterpret_cast<Piece<T>*>(Tile::at(smem, i / 8 % BM, i / (8 * BM) * (8 * E) + i % 8 * E)) = x[j];
    }
  }
  fence_proxy_async();
  syncthreads();
}

}  // namespace jaxmono
