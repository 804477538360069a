// Tiles of f32 in shared memory that wgmma multiplies as tf32.
//
// wgmma transposes 16-bit elements only, and cuts the low 13 bits of an f32 off: twice the error of
// rounding, all of it towards zero. The left operand goes through the consumers' registers, where
// rounding costs one instruction an element and any layout can be read. The right one has to lie in
// shared memory as [rows][k], rounded. So the threads that request its pieces mend them, in place:
//
//   fill    16-byte pieces by cp.async. Of [k][rows] a thread has blocks of 4 k x 4 rows, and
//           puts the piece at k + i where the finished piece of row + i belongs
//   finish  when they have landed: rounds them, and transposes such blocks in registers
//
// A thread finishes what it has requested itself: no barrier stands between.
#pragma once
#include "jaxmono/ptx.cuh"
#include "jaxmono/swizzled_tile.cuh"
#include "jaxmono/vec.cuh"

namespace jaxmono {

template <int N>
JM_DEVICE Vec<uint32_t, N> to_tf32(const Vec<float, N>& x) {
  Vec<uint32_t, N> out;
#pragma unroll
  for (int i = 0; i < N; ++i) out.x[i] = to_tf32(x.x[i]);
  return out;
}

// Tiles begin at multiples of 1024 bytes of shared memory. So what is a thread's own in an address is
// added to a tile's place first, and the swizzle is an exclusive or with constants behind that. The
// other way round the compiler keeps the sums of each constant, and large kernels spill them.
JM_DEVICE int shared_offset(const unsigned char* p) { return static_cast<int>(p - dynamic_shared()); }

// A left operand as it is in memory: [rows][k], or [k][rows] in panels of 32 rows.
template <int ROWS, bool K_MAJOR>
struct Tf32Left : SwizzledTile<float, K_MAJOR ? ROWS : 32, K_MAJOR ? 32 : ROWS> {
  using Tile = SwizzledTile<float, K_MAJOR ? ROWS : 32, K_MAJOR ? 32 : ROWS>;

  // Where this thread's first element of a fragment at (row, 0) is, row a multiple of 16.
  JM_DEVICE static int first(int row) {
    const int lane = lane_id();
    if constexpr (K_MAJOR)
      return (row + (lane & 15)) * 128 + (lane >> 4 ^ (lane & 7)) * 16;
    else
      return row / 32 * Tile::PANEL + (lane & 3) * 128 +
             ((row & 16) / 4 + (lane >> 4) ^ (lane & 3)) * 16 + (lane >> 2 & 3) * 4;
  }

  // A warp's fragment of 16 rows and 8 k, not rounded. at: shared_offset(tile) + first(row).
  JM_DEVICE static void fragment(uint32_t (&x)[4], int at, int k) {
    if constexpr (K_MAJOR) {  // an 8x8 matrix of 16-bit elements is 8 rows of 4 floats
      ldmatrix_x4(x, dynamic_shared() + (at ^ k * 4));
    } else {  // 8 rows or 4 k further
#pragma unroll
      for (int i = 0; i < 4; ++i)
        x[i] = *reinterpret_cast<const uint32_t*>(
            dynamic_shared() + (at ^ (i % 2 * 32 + i / 2 * 64)) + (k + i / 2 * 4) * 128);
    }
  }
};

// A right operand, rounded. K_MAJOR: of it in memory, where its pieces run along k.
template <int ROWS, bool K_MAJOR>
struct Tf32Right : SwizzledTile<float, ROWS, 32> {
  using Tile = SwizzledTile<float, ROWS, 32>;

  // load: (to, row, k) if K_MAJOR, else (to, k, row).
  template <int THREADS, class Load>
  JM_DEVICE static void fill(unsigned char* base, int thread, int row0, int k0, const Load& load) {
    if constexpr (K_MAJOR) {
      Tile::template fill<THREADS>(base, thread, row0, k0, load);
    } else {
      static_assert(THREADS == 2 * STEP, "");
      const Block b(base, thread);
      if constexpr (IsStrided<Load>::value) {
        const float* const from = load.at(k0 + b.k, row0 + b.row);
#pragma unroll
        for (int r = 0; r < ROWS; r += STEP)
          if (b.inside(r))
#pragma unroll
            for (int i = 0; i < 4; ++i)
              cp_async_16(b.at(r, i), from + (i * Load::PITCH + r),
                          load.has(k0 + b.k + i, row0 + b.row + r));
      } else {
#pragma unroll 1
        for (int r = 0; r < ROWS; r += STEP)
          if (b.inside(r))
#pragma unroll
            for (int i = 0; i < 4; ++i)
              load(static_cast<void*>(b.at(r, i)), k0 + b.k + i, row0 + b.row + r);
      }
    }
  }

  // Behind the wait for this thread's copies of the tile.
  template <int THREADS>
  JM_DEVICE static void finish(unsigned char* base, int thread) {
    if constexpr (K_MAJOR) {
      constexpr int STEP = THREADS / 8;  // rows, as in SwizzledTile::straight and columns
      constexpr int TRIPS = (ROWS + STEP - 1) / STEP;
      static_assert(STEP % 8 == 0, "one swizzle for all rows of a thread");
      const int row = thread >> 3;
      float* const mine = Tile::at(base, row, (thread & 7) * 4);
#pragma unroll(TRIPS <= 8 ? TRIPS : 6)
      for (int i = 0; i < TRIPS; ++i)
        if (ROWS % STEP == 0 || row + i * STEP < ROWS) round(mine + i * STEP * 32);
    } else {
      const Block b(base, thread);
#pragma unroll 1  // two blocks at a time did not fit the producers' 88 registers
      for (int r = 0; r < ROWS; r += STEP)
        if (b.inside(r)) transpose(b, r);
    }
  }

 private:
  JM_DEVICE static void round(float* p) {
    store<uint32_t, 4>(reinterpret_cast<uint32_t*>(p), to_tf32(load<float, 4>(p)));
  }

  static constexpr int STEP = 64;  // rows of which 128 threads have blocks at a time

  // A thread's blocks. Eight neighbouring threads have 2 blocks along the rows and 4 along k: their
  // pieces are 32 bytes next to each other in memory, and lie on all banks of shared memory. The 32
  // of a warp have 128 bytes of 16 k.
  struct Block {
    int row, k, first;
    JM_DEVICE Block(const unsigned char* base, int t)
        : row(((t & 1) | (t >> 3 & 3) << 1 | t >> 6 << 3) * 4),
          k(((t >> 1 & 3) | (t >> 5 & 1) << 2) * 4),
          first(shared_offset(base) + row * 128 + (k / 4 ^ (row & 4)) * 16) {}
    JM_DEVICE bool inside(int r) const { return ROWS % STEP == 0 || row + r < ROWS; }
    // The finished piece of row + r + i.
    JM_DEVICE unsigned char* at(int r, int i) const {
      return dynamic_shared() + (first ^ i * 16) + (r + i) * 128;
    }
  };

  JM_DEVICE static void transpose(const Block& b, int r) {
    Vec<float, 4> x[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) x[i] = load<float, 4>(reinterpret_cast<const float*>(b.at(r, i)));
#pragma unroll
    for (int i = 0; i < 4; ++i)
      store<uint32_t, 4>(reinterpret_cast<uint32_t*>(b.at(r, i)),
                         to_tf32(Vec<float, 4>{x[0].x[i], x[1].x[i], x[2].x[i], x[3].x[i]}));
  }
};

}  // namespace jaxmono
