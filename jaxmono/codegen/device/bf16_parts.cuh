// f32 as three bf16, and tiles of them in shared memory as wgmma reads them.
//
//   2^16 x = p0 + p1 + p2     each the bf16 nearest to what the others leave: 8 + 8 + 8 bits, all there are
//
// Exactly, for |x| < 2^111: of the smallest x, too, what p0 and p1 leave is a bf16 of 2^16 x. From 2^112 on, or
// where x is no number, a part is none.
//
// Sums go over k in any order, and wgmma's left operand comes from registers: in each eight neighbours
// k 0 4 1 5 2 6 3 7 lie beside each other in both operands, because threads have f32 fragments so.
#pragma once
#include "jaxmono/ptx.cuh"
#include "jaxmono/roles.cuh"
#include "jaxmono/swizzled_tile.cuh"
#include "jaxmono/tf32_tile.cuh"
#include "jaxmono/types.cuh"
#include "jaxmono/vec.cuh"
#include "jaxmono/warp.cuh"
#include "jaxmono/wgmma_operand.cuh"

namespace jaxmono {

constexpr float PARTS_SCALE = 65536.0f;
constexpr float PARTS_UNSCALE = 1.0f / (PARTS_SCALE * PARTS_SCALE);  // of a product

// Of two values, as neighbours.
JM_DEVICE void bf16_parts(uint32_t (&p)[3], float x, float y) {
  x *= PARTS_SCALE;
  y *= PARTS_SCALE;
#pragma unroll
  for (int i = 0; i < 3; ++i) {
    p[i] = floats_to_bf16x2(x, y);
    x -= bitcast<float>(p[i] << 16);
    y -= bitcast<float>(p[i] & 0xffff0000u);
  }
}

// A left operand of f32 as it is in memory, its fragments in parts.
template <int ROWS, bool K_MAJOR>
struct PartsLeft : Tf32Left<ROWS, K_MAJOR> {
  using F32 = Tf32Left<ROWS, K_MAJOR>;

  // A warp's fragments of 16 rows and 16 k. at: shared_offset(tile) + first(row).
  JM_DEVICE static void fragment(uint32_t (&x)[3][4], int at, int k) {
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      uint32_t eight[4];
      F32::fragment(eight, at, k + 8 * h);
#pragma unroll
      for (int r = 0; r < 2; ++r) {  // rows g, g + 8
        uint32_t p[3];
        bf16_parts(p, bitcast<float>(eight[r]), bitcast<float>(eight[r + 2]));
#pragma unroll
        for (int i = 0; i < 3; ++i) x[i][2 * h + r] = p[i];
      }
    }
  }
};

// A right operand of f32, [rows][k] or [k][rows] in memory, and in its place what wgmma reads:
//
//   line of a row   p0: 32 k | p1: 32 k        p2: in half lines behind those of all rows
//
// A warp splits what it has requested itself: no barrier of the block stands between.
template <int ROWS, bool K_MAJOR>
struct PartsRight : SwizzledTile<float, ROWS, 32> {
  using F32 = SwizzledTile<float, ROWS, 32>;
  using Pair = SwizzledTile<bf16, ROWS, 64>;
  static constexpr int BYTES = F32::BYTES + ROWS * 64;
  static_assert(ROWS % 32 == 0, "a warp's rows of f32 are those that it splits");

  // Descriptors of p0, 64 bytes in front of p1, and of p2, from a row on.
  JM_DEVICE static uint64_t slice(unsigned char* base, int row) {
    return operand_slice<Pair, true>(base, row, 0);
  }
  JM_DEVICE static uint64_t third_slice(unsigned char* base, int row) {
    return wgmma_descriptor<64>(base + F32::BYTES + row * 64, 16, 512);
  }

  // Behind the wait for this thread's copies, of which a warp has rows 4 w .. 4 w + 3 of each sixteen.
  template <int THREADS>
  JM_DEVICE static void split(unsigned char* base, int thread) {
    static_assert(THREADS == 128, "");
    syncwarp();  // the copies of all its lanes
    const int lane = thread % WARP, q = lane & 3;  // eight k of a row: two pieces
    const int row = thread / WARP * 4 + (lane >> 2 & 3) + lane / 16 * 16;
    const float* const low = F32::at(base, row, q * 8);
    const float* const high = F32::at(base, row, q * 8 + 4);
    // Of two rows beside each other one stores p0 first, one p1: eight lanes then have all banks.
    const bool odd = row & 1;
    bf16* const first = Pair::at(base, row, q * 8 + odd * 32);
    bf16* const second = Pair::at(base, row, q * 8 + !odd * 32);
    unsigned char* const last = third(base, row, q);
#pragma unroll
    for (int r = 0; r < ROWS; r += 32) {
      const auto a = load<float, 4>(low + r * 32), b = load<float, 4>(high + r * 32);
      syncwarp();  // before others' parts lie there
      Vec<uint32_t, 4> p[3];
      parts_of(p, a.x, b.x);
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const uint32_t x = p[0].x[i], y = p[1].x[i];
        p[0].x[i] = odd ? y : x;
        p[1].x[i] = odd ? x : y;
      }
      store<uint32_t, 4>(reinterpret_cast<uint32_t*>(first + r * 64), p[0]);
      store<uint32_t, 4>(reinterpret_cast<uint32_t*>(second + r * 64), p[1]);
      store<uint32_t, 4>(reinterpret_cast<uint32_t*>(last + r * 64), p[2]);
    }
  }

 protected:
  JM_DEVICE static unsigned char* third(unsigned char* base, int row, int piece) {
    return base + F32::BYTES + row * 64 + (piece ^ (row >> 1 & 3)) * 16;
  }
  // Of k .. k + 3 and the four behind them.
  JM_DEVICE static void parts_of(Vec<uint32_t, 4> (&p)[3], const float (&a)[4], const float (&b)[4]) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      uint32_t x[3];
      bf16_parts(x, a[i], b[i]);
#pragma unroll
      for (int j = 0; j < 3; ++j) p[j].x[i] = x[j];
    }
  }
};

// Of [k][rows]: a warp has blocks of 32 rows, which lie there as in memory, 32 lines of one k each, until a
// lane makes a row of each column.
template <int ROWS>
struct PartsRight<ROWS, false> : PartsRight<ROWS, true> {
  using Rows = PartsRight<ROWS, true>;
  static constexpr int BLOCK_BYTES = 32 * 128;

  // load: (to, k, row).
  template <int THREADS, class Load>
  JM_DEVICE static void fill(unsigned char* base, int thread, int k0, int row0, const Load& load) {
    const int lane = thread % WARP, k = lane / 8, row = lane % 8 * 4;
#pragma unroll 1
    for (int block = thread / WARP; block < ROWS / 32; block += THREADS / WARP) {
      unsigned char* const to = base + block * BLOCK_BYTES + lane * 16;
      const int first = row0 + block * 32 + row;
      if constexpr (IsStrided<Load>::value) {
        const float* const from = load.at(k0 + k, first);
#pragma unroll
        for (int i = 0; i < 32; i += 4)
          load.copy(to + i * 128, from + i * Load::PITCH, k0 + k + i, first);
      } else {
#pragma unroll 1
        for (int i = 0; i < 32; i += 4) load(static_cast<void*>(to + i * 128), k0 + k + i, first);
      }
    }
  }

  template <int THREADS>
  JM_DEVICE static void split(unsigned char* base, int thread) {
    syncwarp();  // the copies of all its lanes
    const int lane = thread % WARP;
#pragma unroll 1
    for (int block = thread / WARP; block < ROWS / 32; block += THREADS / WARP) {
      const float* const column = reinterpret_cast<const float*>(base + block * BLOCK_BYTES) + lane;
      float x[8][4];
#pragma unroll
      for (int k = 0; k < 32; ++k) x[k / 4][k % 4] = column[k * 32];
      syncwarp();  // before others' parts lie there
      const int row = block * 32 + lane;
#pragma unroll
      for (int q = 0; q < 4; ++q) {
        Vec<uint32_t, 4> p[3];
        Rows::parts_of(p, x[2 * q], x[2 * q + 1]);
        store<uint32_t, 4>(reinterpret_cast<uint32_t*>(Rows::Pair::at(base, row, q * 8)), p[0]);
        store<uint32_t, 4>(reinterpret_cast<uint32_t*>(Rows::Pair::at(base, row, q * 8 + 32)), p[1]);
        store<uint32_t, 4>(reinterpret_cast<uint32_t*>(Rows::third(base, row, q)), p[2]);
      }
    }
  }
};

}  // namespace jaxmono
