// Weights of bytes, or of two integers in a byte (four_bits.cuh), as the left operand of wgmma, in registers: how
// their tiles lie in shared memory, and how fragments come out of them.
//
// wgmma reads bytes along k only, and both operands of one type. Through registers neither matters:
//
//   [k][n]   ldmatrix transposes pairs of bytes, of two neighbouring columns. So the first 8 rows of a
//            fragment are the even columns of a warp's 16, the others the odd ones (EACH). Where such a pair
//            has four columns, a warp has two of them, its neighbour the others: both read the same 32
//   16 bits  beside rows of bf16 or f16 weights are widened (bytes.cuh, four_bits.cuh)
#pragma once
#include "jaxmono/bytes.cuh"
#include "jaxmono/four_bits.cuh"
#include "jaxmono/mma.cuh"
#include "jaxmono/opaque.cuh"
#include "jaxmono/ptx.cuh"
#include "jaxmono/roles.cuh"
#include "jaxmono/swizzled_tile.cuh"
#include "jaxmono/tf32_tile.cuh"
#include "jaxmono/types.cuh"
#include "jaxmono/wgmma_operand.cuh"

namespace jaxmono {

// ROWS x COLS bytes, rows of 128, 64 or 32, whose 16-byte pieces are permuted: any 8 rows that differ in their
// last 3 bits (of 64 bytes: that ldmatrix reads together here) have a piece in 8 groups of four banks.
template <int ROWS, int COLS>
struct ByteTile {
  static_assert(COLS == 128 || COLS == 64 || COLS == 32, "");
  static constexpr int BYTES = ROWS * COLS, PIECES = COLS / 16;
  JM_DEVICE static int swizzle(int row) { return COLS == 128 ? row & 7 : COLS == 64 ? row >> 1 & 3 : row >> 2 & 1; }
  JM_DEVICE static int at(int row, int piece) { return row * COLS + (piece ^ swizzle(row)) * 16; }

  // Of a Strided operand: where this thread begins. load: (to, row, col).
  template <int THREADS, class Load>
  JM_DEVICE static auto begin(int thread, int row0, int col0, const Load& load) {
    const unsigned t = static_cast<unsigned>(thread);
    if constexpr (IsStrided<Load>::value)
      return opaque(load.at(row0 + static_cast<int>(t / PIECES), col0 + static_cast<int>(t % PIECES) * 16));
    else return 0;
  }
  template <int THREADS, class Load, class From>
  JM_DEVICE static void fill(unsigned char* base, int thread, int row0, int col0, const Load& load,
                             From from) {
    constexpr int STEP = THREADS / PIECES, COUNT = ROWS / STEP;
    static_assert(STEP % 8 == 0 && ROWS % STEP == 0, "one swizzle for all rows of a thread");
    const int row = static_cast<int>(static_cast<unsigned>(thread) / PIECES);
    const int piece = static_cast<int>(static_cast<unsigned>(thread) % PIECES);
    unsigned char* const to = base + at(row, piece);
#pragma unroll
    for (int i = 0; i < COUNT; ++i) {
      void* const place = to + i * (STEP * COLS);
      if constexpr (IsStrided<Load>::value)
        load.copy(place, from + i * STEP * Load::PITCH, row0 + row + i * STEP, col0 + piece * 16);
      else load(place, row0 + row + i * STEP, col0 + piece * 16);
    }
  }
};

// W: the weights' type. X: the rows'. BN: columns of a tile. K_MAJOR: weights are [n][k]. LINES: of 128 bytes
// of a row in a tile.
template <class W, class X, int BN, bool K_MAJOR, int LINES = 1>
struct ByteWeights {
  static constexpr bool FOURS = is_four_bits<W>, WIDENS = sizeof(X) == 2, TOGETHER = true;
  static constexpr int EACH = K_MAJOR ? 1 : FOURS ? 4 : 2;  // columns from one lane's to the next one's
  static constexpr int PER = FOURS ? 2 : 1;  // elements of a byte
  static_assert((FOURS ? WIDENS : sizeof(W) == 1) && sizeof(X) <= 2, "");
  static constexpr int BK = LINES * 128 / sizeof(X), STEP = 32 / sizeof(X), STEPS = BK / STEP;
  using Row = X;
  using Sum = Conditional<is_float<X>, float, uint32_t>;
  using Tile = ByteTile<K_MAJOR ? BN : BK, (K_MAJOR ? BK : BN) / PER>;
  static constexpr int BYTES = Tile::BYTES;

  // Where this thread's part of a fragment of 16 columns of weights begins in a tile. SECOND: of the
  // second half of its steps.
  JM_DEVICE static int first(int column, bool second = false) {
    const int lane = fresh(lane_id());
    if constexpr (K_MAJOR && WIDENS)
      return (Tile::at(column + (lane >> 2), 0) + (lane & 3) * (2 / PER)) ^ (second ? STEPS * 8 / PER : 0);
    else if constexpr (K_MAJOR)
      return Tile::at(column + (lane & 15), lane >> 4) ^ (second ? STEPS * 16 : 0);
    else
      return Tile::at(WIDENS ? lane : transposed_row(lane), column / (16 * PER)) +
             (second ? BK / 2 * (BN / PER) : 0);
  }

  // The column of the first (h: 0) or second 8 rows of a warp's fragments that this lane has, of its columns from
  // `first` on.
  JM_DEVICE static int column(int first, int h) {
    const int g = lane_id() >> 2;
    if constexpr (EACH == 4) return (first & ~31) + (first >> 4 & 1) * 2 + g * 4 + h;
    else return first + (EACH == 2 ? g * 2 + h : g + h * 8);
  }

  // COUNT fragments of a tile. at: shared_offset(tile) + first(column); tiles begin at multiples of 1024.
  template <int COUNT>
  JM_DEVICE static void fragments(uint32_t (&x)[COUNT][4], int at) {
    unsigned char* const smem = dynamic_shared();
    if constexpr (FOURS) {
      fragments_of_fours(x, smem, at);
    } else if constexpr (K_MAJOR && WIDENS) {
#pragma unroll
      for (int s = 0; s < COUNT; ++s)
#pragma unroll
        for (int i = 0; i < 4; ++i) {  // 8 rows or 8 k further
          const auto two = *reinterpret_cast<const uint16_t*>(smem + (at ^ (s * 16 + i / 2 * 8)) +
                                                              i % 2 * (8 * BK));
          x[s][i] = pair_of_word<X, W>(two, 0);
        }
    } else if constexpr (K_MAJOR) {
#pragma unroll
      for (int s = 0; s < COUNT; ++s) ldmatrix_x4(x[s], smem + (at ^ s * 32));
    } else if constexpr (WIDENS) {
      static_assert(COUNT % 2 == 0, "");
#pragma unroll
      for (int s = 0; s < COUNT; s += 2) {
        uint32_t two[4];  // of 32 k
        ldmatrix_x4_trans(two, smem + at + s * (16 * BN));
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          x[s + i / 2][i % 2 * 2] = pair_of_second_bytes<X, W>(two[i], 0);
          x[s + i / 2][i % 2 * 2 + 1] = pair_of_second_bytes<X, W>(two[i], 1);
        }
      }
    } else {
#pragma unroll
      for (int s = 0; s < COUNT; ++s) ldmatrix_transposed_bytes(x[s], smem + at + s * (32 * BN));
    }
  }

  template <int COUNT>
  JM_DEVICE static void fragments_of_fours(uint32_t (&x)[COUNT][4], unsigned char* smem, int at) {
    using I = typename W::Element;
    if constexpr (K_MAJOR) {
#pragma unroll
      for (int s = 0; s < COUNT; ++s)
#pragma unroll
        for (int i = 0; i < 4; ++i) {  // 8 rows or 8 k further
          const uint32_t two = smem[(at ^ (s * 8 + i / 2 * 4)) + i % 2 * (8 * BK / 2)];
          x[s][i] = pair_of_fours<X, I>(two * 0x1001u);  // the second 16 bits further up
        }
    } else {
      static_assert(COUNT % 2 == 0, "");
      const int own = (fresh(warp_id()) & 1) * 8;
#pragma unroll
      for (int s = 0; s < COUNT; s += 2) {
        uint32_t four[4];  // of 32 k
        ldmatrix_x4_trans(four, smem + at + s * (16 * BN / 2));
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          x[s + i / 2][i % 2 * 2] = pair_of_fours<X, I>(four[i] >> own);
          x[s + i / 2][i % 2 * 2 + 1] = pair_of_fours<X, I>(four[i] >> (own + 4));
        }
      }
    }
  }

  template <int NT>
  JM_DEVICE static void multiply(Sum (&sums)[NT][4], const uint32_t (&own)[4], uint64_t x) {
    if constexpr (WIDENS) wgmma_registers<X, false>(sums, own, x);
    else wgmma_bytes_registers<W, X>(sums, own, x);
  }
};

}  // namespace jaxmono
