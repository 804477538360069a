// f32 as three bf16, and tiles of them in shared memory as wgmma reads them.
//
//   2^16 x = p0 + p1 + p2     each the bf16 nearest to what the others leave: 8 + 8 + 8 bits, all there are
//
// Exactly, for |x| < 2^111: of the smallest x, too, what p0 and p1 leave is a bf16 of 2^16 x. A larger one's
// parts, or those of what is no number, add up to none.
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

// Of a right operand [ROWS][32 k], and in its place:
//
//   line of a row   32 k of f32             as they come
//                   p0: 32 k | p1: 32 k     when they are split; p2 in a tile of half lines behind all rows
template <int ROWS>
struct PartsRight : SwizzledTile<float, ROWS, 32> {
  using F32 = SwizzledTile<float, ROWS, 32>;
  using Pair = SwizzledTile<bf16, ROWS, 64>;
  static constexpr int BYTES = F32::BYTES + ROWS * 64;
  static_assert(ROWS % 32 == 0, "a warp's rows of f32 are those that it splits");

  JM_DEVICE static unsigned char* third(unsigned char* base, int row, int piece) {
    return base + F32::BYTES + row * 64 + (piece ^ (row >> 1 & 3)) * 16;
  }

  // part: of p0 and p1. k: a multiple of 16.
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
    const int lane = thread % WARP, q = lane & 3;
    const int row = thread / WARP * 4 + (lane >> 2 & 3) + lane / 16 * 16;
    // Pieces of a line by their row, which is the same for all of this thread's.
    float* const from = F32::at(base, row, q * 8);
    const int other = (row & 1) ? -16 : 16;  // the piece beside it: one further but for the swizzle
    // Of two rows beside each other one stores p0 first, one p1: eight lanes then have all banks.
    const int swapped = row & 1;
    bf16* const one = Pair::at(base, row, q * 8 + swapped * 32);
    bf16* const two = Pair::at(base, row, q * 8 + (swapped ^ 1) * 32);
    unsigned char* const last = third(base, row, q);
#pragma unroll
    for (int r = 0; r < ROWS; r += 32) {
      const auto a = load<float, 4>(from + r * 32);
      const auto b = load<float, 4>(from + r * 32 + other / 4);
      syncwarp();  // before others' parts lie there
      Vec<uint32_t, 4> p[3];
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        uint32_t x[3];
        bf16_parts(x, a.x[i], b.x[i]);
#pragma unroll
        for (int j = 0; j < 3; ++j) p[j].x[i] = x[j];
      }
      Vec<uint32_t, 4> first, second;
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        first.x[i] = swapped ? p[1].x[i] : p[0].x[i];
        second.x[i] = swapped ? p[0].x[i] : p[1].x[i];
      }
      store<uint32_t, 4>(reinterpret_cast<uint32_t*>(one + r * 64), first);
      store<uint32_t, 4>(reinterpret_cast<uint32_t*>(two + r * 64), second);
      store<uint32_t, 4>(reinterpret_cast<uint32_t*>(last + r * 64), p[2]);
    }
  }
};

}  // namespace jaxmono
