// Tiles of f32 in shared memory that wgmma multiplies as tf32.
//
// wgmma transposes 16-bit elements only, and cuts the low 13 bits of an f32 off: twice the error of
// rounding, all of it towards zero. The left operand goes through the consumers' registers, where
// rounding costs one instruction an element and any layout can be read. The right one has to lie in
// shared memory as [rows][k], rounded. So the threads that request its pieces mend them, in place:
//
//   fill    16-byte pieces by cp.async. Of [k][rows] a warp has blocks of 32 k, which lie in shared memory
//           as in memory, line by line
//   finish  when they have landed: rounds them, and transposes such blocks through registers
//
// A warp finishes what it has requested itself: no barrier of the block stands between. With the pieces of
// a line each where it belongs when it is finished (eight lines of shared memory) the copies alone took
// twice as long as the products: 1280x3072x768 61 us, 2048 cubed 150.
#pragma once
#include "jaxmono/ptx.cuh"
#include "jaxmono/swizzled_tile.cuh"
#include "jaxmono/vec.cuh"
#include "jaxmono/warp.cuh"

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
    const int lane = fresh(lane_id());
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
      // Lines of four or eight k at a time; their pieces are permuted for `transpose`.
      constexpr int STEP = WARP / PIECES;
      const int lane = thread % WARP, k = lane / PIECES, piece = lane % PIECES;
      const int first = shared_offset(base) + lane / 8 * 128 + (lane % 8 ^ k / 4 * 2) * 16;
      const auto request = [&](int block, const auto& copy) {
#pragma unroll
        for (int i = 0; i < 32 / STEP; ++i)
          copy(static_cast<void*>(dynamic_shared() + block * BLOCK_BYTES + i * 512 +
                                  (first ^ (PIECES == 8 ? i % 4 * 32 : i % 2 * 64))),
               i * STEP, block * WIDE);
      };
      if constexpr (IsStrided<Load>::value) {
        const float* const from = load.at(k0 + k, row0 + piece * 4);
#pragma unroll(Load::checks() ? 1 : 2)
        for (int block = thread / WARP; block < BLOCKS; block += THREADS / WARP)
          request(block, [&](void* to, int i, int r) {
            load.copy(to, from + (i * Load::PITCH + r), k0 + k + i, row0 + piece * 4 + r);
          });
      } else {
#pragma unroll 1
        for (int block = thread / WARP; block < BLOCKS; block += THREADS / WARP)
          request(block, [&](void* to, int i, int r) { load(to, k0 + k + i, row0 + piece * 4 + r); });
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
      syncwarp();  // the copies of all its lanes
#pragma unroll 1
      for (int block = thread / WARP; block < BLOCKS; block += THREADS / WARP)
        transpose(shared_offset(base) + block * BLOCK_BYTES, thread % WARP);
    }
  }

 private:
  JM_DEVICE static void round(float* p) {
    store<uint32_t, 4>(reinterpret_cast<uint32_t*>(p), to_tf32(load<float, 4>(p)));
  }

  // Rows of a block: 32 are whole lines of memory, 16 where four warps then have about as much to do each.
  static constexpr int WIDE = ROWS % 128 == 0 || ROWS == 96 ? 32 : 16;
  static constexpr int BLOCKS = ROWS / WIDE, BLOCK_BYTES = WIDE * 128;
  static constexpr int PIECES = WIDE / 4;  // of 16 bytes, along the rows
  static_assert(K_MAJOR || ROWS % WIDE == 0, "whole blocks");

  // A lane has a square of 4 k x 4 rows, or two squares. Eight neighbouring lanes have 2 along the rows and
  // 4 along k: what they load and what they store lies on all banks.
  //
  //   loaded   k: 4 rows        stored   row: 4 k
  //            k + 1: 4 rows             row + 1: 4 k
  JM_DEVICE static void transpose(int block, int lane) {
    constexpr int SQUARES = PIECES / 4;
    const int row = lane & 1 | (lane >> 3 & PIECES / 2 - 1) << 1;  // of squares
    const int k = lane >> 1 & 3 | (PIECES == 4 ? lane >> 4 << 2 : 0);
    const int from = block + k * 4 * PIECES * 16 + (row ^ (k & 3) * 2) * 16;
    const int to = block + row * 512 + (k ^ (row & 1) * 4) * 16;
    Vec<float, 4> x[SQUARES][4];
#pragma unroll
    for (int j = 0; j < SQUARES; ++j)
#pragma unroll
      for (int i = 0; i < 4; ++i)
        x[j][i] = load<float, 4>(reinterpret_cast<const float*>(
            dynamic_shared() + j * 2048 + (PIECES == 8 ? i * 128 + from : i / 2 * 128 + (from ^ i % 2 * 64))));
    syncwarp();  // before others' finished rows lie there
#pragma unroll
    for (int j = 0; j < SQUARES; ++j)
#pragma unroll
      for (int i = 0; i < 4; ++i)
        store<uint32_t, 4>(
            reinterpret_cast<uint32_t*>(dynamic_shared() + i * 128 + (to ^ (i * 16 + j * 64))),
            to_tf32(Vec<float, 4>{x[j][0].x[i], x[j][1].x[i], x[j][2].x[i], x[j][3].x[i]}));
  }
};

}  // namespace jaxmono
