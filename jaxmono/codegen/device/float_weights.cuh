// Weights of f32 as the left operand of wgmma, in registers, rounded there to the 16 bits of the rows: how
// their tiles lie in shared memory, and how fragments come out of them. (Parameters are f32 by Flax's default,
// and x @ w.astype(bf16) reads no other bytes than those.)
//
//   [k][n]   a lane reads two neighbouring columns at once. So the first 8 rows of a fragment are the even
//            columns of a warp's 16, the others the odd ones (EACH)
//   [n][k]   it reads two neighbouring k, which are a word of the fragment
#pragma once
#include "jaxmono/elements.cuh"
#include "jaxmono/opaque.cuh"
#include "jaxmono/ptx.cuh"
#include "jaxmono/roles.cuh"
#include "jaxmono/swizzled_tile.cuh"
#include "jaxmono/tf32_tile.cuh"
#include "jaxmono/types.cuh"
#include "jaxmono/vec.cuh"
#include "jaxmono/wgmma_operand.cuh"

namespace jaxmono {

// Two f32 as a word of two T.
template <class T>
JM_DEVICE uint32_t pair_of_floats(float first, float second) {
  return is_same<T, bf16> ? floats_to_bf16x2(first, second) : floats_to_f16x2(first, second);
}

// ROWS x COLS f32, whose 16-byte pieces are permuted so that 16 lanes read 8 bytes each from all banks: of
// [k][n] 4 columns of every second one of 8 rows, else 4 k of 4 rows.
template <int ROWS, int COLS, bool K_MAJOR>
struct FloatTile {
  static_assert(COLS % 32 == 0, "");
  static constexpr int PITCH = COLS * 4, BYTES = ROWS * PITCH, PIECES = COLS / 4;
  JM_DEVICE static int swizzle(int row) { return K_MAJOR ? (row & 3) << 1 : row & 6; }
  JM_DEVICE static int at(int row, int piece) { return row * PITCH + (piece ^ swizzle(row)) * 16; }

  // Of a Strided operand: where this thread begins. load: (to, row, col).
  template <int THREADS, class Load>
  JM_DEVICE static auto begin(int thread, int row0, int col0, const Load& load) {
    const unsigned t = static_cast<unsigned>(thread);
    if constexpr (IsStrided<Load>::value)
      return opaque(load.at(row0 + static_cast<int>(t / PIECES), col0 + static_cast<int>(t % PIECES) * 4));
    else return 0;
  }
  template <int THREADS, class Load, class From>
  JM_DEVICE static void fill(unsigned char* base, int thread, int row0, int col0, const Load& load,
                             From from) {
    constexpr int STEP = THREADS / PIECES, COUNT = ROWS / STEP;
    static_assert(THREADS % PIECES == 0 && STEP % 4 == 0 && ROWS % STEP == 0, "");
    const int row = static_cast<int>(static_cast<unsigned>(thread) / PIECES);
    const int piece = static_cast<int>(static_cast<unsigned>(thread) % PIECES);
    unsigned char* const to = base + at(row, piece);
    unsigned char* const odd = base + at(row, piece ^ (STEP == 4 && !K_MAJOR ? 4 : 0));  // rows 4, 12, ... further
#pragma unroll
    for (int i = 0; i < COUNT; ++i) {
      void* const place = (i % 2 ? odd : to) + i * (STEP * PITCH);
      if constexpr (IsStrided<Load>::value)
        load.copy(place, from + i * STEP * Load::PITCH, row0 + row + i * STEP, col0 + piece * 4);
      else load(place, row0 + row + i * STEP, col0 + piece * 4);
    }
  }
};

// X: the rows' type. BN: columns of a tile. K_MAJOR: weights are [n][k]. LINES: of 128 bytes of a row in a tile.
template <class X, int BN, bool K_MAJOR, int LINES = 1>
struct FloatWeights {
  static_assert(sizeof(X) == 2, "");
  static constexpr bool TOGETHER = true;
  static constexpr int EACH = K_MAJOR ? 1 : 2, PER = 1;  // as of ByteWeights
  static constexpr int BK = LINES * 64, STEP = 16, STEPS = BK / STEP;
  using Row = X;
  using Sum = float;
  using Tile = FloatTile<K_MAJOR ? BN : BK, K_MAJOR ? BK : BN, K_MAJOR>;
  static constexpr int BYTES = Tile::BYTES;

  // Where this thread's part of a fragment of 16 columns of weights begins in a tile. SECOND: of the second
  // half of its steps.
  JM_DEVICE static int first(int column, bool second = false) {
    const int lane = fresh(lane_id()), g = lane >> 2, t = lane & 3;
    if constexpr (K_MAJOR)
      return (Tile::at(column + g, t >> 1) + (t & 1) * 8) ^ (second ? STEPS * 32 : 0);
    else
      return Tile::at(t * 2, column / 4 + (g >> 1)) + (g & 1) * 8 + (second ? BK / 2 * Tile::PITCH : 0);
  }

  // COUNT fragments of a tile. at: shared_offset(tile) + first(column); tiles begin at multiples of 1024.
  template <int COUNT>
  JM_DEVICE static void fragments(uint32_t (&x)[COUNT][4], int at) {
    const unsigned char* const smem = dynamic_shared();
    const auto two = [&](int place) { return load<float, 2>(reinterpret_cast<const float*>(smem + place)); };
#pragma unroll
    for (int s = 0; s < COUNT; ++s)
#pragma unroll
      for (int h = 0; h < 2; ++h) {  // 8 k further
        if constexpr (K_MAJOR) {
#pragma unroll
          for (int i = 0; i < 2; ++i) {  // 8 rows further
            const Vec<float, 2> v = two((at ^ (s * 64 + h * 32)) + i * (8 * Tile::PITCH));
            x[s][h * 2 + i] = pair_of_floats<X>(v.x[0], v.x[1]);
          }
        } else {
          const int row = s * 16 + h * 8;
          const Vec<float, 2> a = two(at + row * Tile::PITCH), b = two(at + (row + 1) * Tile::PITCH);
          x[s][h * 2] = pair_of_floats<X>(a.x[0], b.x[0]);
          x[s][h * 2 + 1] = pair_of_floats<X>(a.x[1], b.x[1]);
        }
      }
  }

  template <int NT>
  JM_DEVICE static void multiply(float (&sums)[NT][4], const uint32_t (&own)[4], uint64_t x) {
    wgmma_registers<X, false>(sums, own, x);
  }
};

}  // namespace jaxmono
