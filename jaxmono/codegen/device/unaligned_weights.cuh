// Weights of 16 bits, [k][n], whose rows begin anywhere in memory (50257 to a row), as the left operand of wgmma, in
// registers: how their tiles lie in shared memory, and how fragments come out of them.
//
//   in memory   | . . . . . a b c | d e f g h i j k | l . . . . . . .     aligned lines of 16 bytes
//   a tile      the same in shared memory, a line more than the row has pieces
//   fragments   a lane reads two neighbouring columns, a b of one row of k and of the next. How far rows are
//               shifted repeats every 8 of k, so each lane knows that of its rows once and for all
//
// Nothing is shifted in shared memory, as the producers of unaligned_tile.cuh have to, nor copied in parts of 4
// bytes. The first 8 rows of a fragment are
// the even columns of a warp's 16, the others the odd ones (EACH), as in float_weights.cuh.
#pragma once
#include "jaxmono/opaque.cuh"
#include "jaxmono/ptx.cuh"
#include "jaxmono/roles.cuh"
#include "jaxmono/types.cuh"
#include "jaxmono/unaligned_tile.cuh"
#include "jaxmono/warp.cuh"
#include "jaxmono/wgmma_operand.cuh"

namespace jaxmono {

// Type of such weights: element (k, n) of T is number FIRST + k ROW + n of a buffer, or lies a multiple of 8
// elements further.
template <class T, int ROW, int FIRST>
struct ShiftedRows {};

// ROWS x COLS elements of 16 bits, as in memory from a multiple of 16 bytes on. A row of lines more than a
// multiple of 128 bytes: 4 neighbours of every second row lie in other banks.
template <int ROWS, int COLS>
struct LinesTile {
  static constexpr int PIECES = COLS / 8, PITCH = COLS * 2 + 16, BYTES = ROWS * PITCH;
  static_assert(COLS % 64 == 0 && BYTES % 1024 == 0, "rows behind it begin at multiples of 1024");

  template <int THREADS, class Load>
  JM_DEVICE static int begin(int, int, int, const Load&) { return 0; }

  template <int THREADS, class Load>
  JM_DEVICE static void fill(unsigned char* base, int thread, int row0, int col0, const Load& load, int) {
    constexpr int STEP = THREADS / PIECES, DOWN = STEP * Load::PITCH * 2;
    static_assert(THREADS % PIECES == 0 && STEP % 8 == 0 && ROWS % STEP == 0 && ROWS <= THREADS,
                  "one shift for all rows of a thread");
    const int row = static_cast<int>(static_cast<unsigned>(thread) / PIECES);
    const int piece = static_cast<int>(static_cast<unsigned>(thread) % PIECES);
    const int begin = (load.at(row0 + row, col0) & ~15) + piece * 16;
    const int last = (load.at(row0 + thread, col0) & ~15) + PIECES * 16;  // the line more, of row `thread`
    unsigned char* const to = base + row * PITCH + piece * 16;
    unsigned char* const end = base + thread * PITCH + PIECES * 16;
    // Of the buffer's end only the last tiles have to know.
    if (load.at(row0 + ROWS - 1, col0) + PITCH <= load.bytes)
      lines<true, STEP, DOWN>(to, begin, end, last, thread, row, row0, load);
    else
      lines<false, STEP, DOWN>(to, begin, end, last, thread, row, row0, load);
  }

 private:
  template <bool WHOLE, int STEP, int DOWN, class Load>
  JM_DEVICE static void lines(unsigned char* to, int begin, unsigned char* end, int last, int thread, int row,
                              int row0, const Load& load) {
    const auto* const base = reinterpret_cast<const unsigned char*>(load.base);
#pragma unroll(WHOLE ? ROWS / STEP : 1)
    for (int i = 0; i < ROWS / STEP; ++i)
      line<WHOLE>(to + i * (STEP * PITCH), base + begin + i * DOWN, row0 + row + i * STEP, load);
    if (thread < ROWS) line<WHOLE>(end, base + last, row0 + thread, load);
  }
  template <bool WHOLE, class Load>
  JM_DEVICE static void line(void* to, const unsigned char* from, int row, const Load& load) {
    if constexpr (WHOLE) cp_async_line_16(to, from, load.has(row));
    else load.template line<false>(to, from, row);
  }
};

// X: the rows' type. W: a ShiftedRows of it. BN: columns of a tile. LINES: of 128 bytes of a row in a tile.
template <class W, class X, int BN, int LINES = 1>
struct UnalignedWeights;

template <class X, int ROW, int FIRST, int BN, int LINES>
struct UnalignedWeights<ShiftedRows<X, ROW, FIRST>, X, BN, LINES> {
  static_assert(sizeof(X) == 2, "");
  static constexpr bool TOGETHER = true;
  static constexpr int EACH = 2, PER = 1;  // as of ByteWeights
  static constexpr int BK = LINES * 64, STEP = 16, STEPS = BK / STEP;
  using Row = X;
  using Sum = float;
  using Tile = LinesTile<BK, BN>;
  static constexpr int BYTES = Tile::BYTES;

  // By how many elements row k of a tile is shifted, which has a multiple of 8 rows in front of it.
  JM_DEVICE static int shift(int k) { return (FIRST + k * ROW) & 7; }
  // Whether even and odd rows are shifted by half a word.
  static constexpr bool EVEN_HALF = FIRST % 2 != 0, ODD_HALF = (FIRST + ROW) % 2 != 0;

  // Where this thread's part of a fragment of 16 columns of weights begins in a tile: two neighbouring columns
  // of an even row of k, or the word in which they begin. SECOND: of the second half of its steps.
  JM_DEVICE static int first(int column, bool second = false) {
    const int lane = fresh(lane_id()), g = lane >> 2, k = (lane & 3) * 2;
    return (k + (second ? BK / 2 : 0)) * Tile::PITCH + (column + g * 2 + (shift(k) & ~1)) * 2;
  }

  // COUNT fragments of a tile. at: shared_offset(tile) + first(column).
  template <int COUNT>
  JM_DEVICE static void fragments(uint32_t (&x)[COUNT][4], int at) {
    const int k = (fresh(lane_id()) & 3) * 2;
    const int next = at + Tile::PITCH + ((shift(k + 1) & ~1) - (shift(k) & ~1)) * 2;
    const unsigned char* const smem = dynamic_shared();
    const auto word = [&](int place) { return *reinterpret_cast<const uint32_t*>(smem + place); };
#pragma unroll
    for (int s = 0; s < COUNT; ++s)
#pragma unroll
      for (int h = 0; h < 2; ++h) {  // 8 k further
        const int down = (s * 16 + h * 8) * Tile::PITCH;
        const uint32_t a0 = word(at + down), b0 = word(next + down);
        uint32_t a1 = 0, b1 = 0;
        if constexpr (EVEN_HALF) a1 = word(at + down + 4);
        if constexpr (ODD_HALF) b1 = word(next + down + 4);
        // The first of the two columns is a0's low or high half, the second one a0's high or a1's low half.
        constexpr uint32_t FROM_A = EVEN_HALF ? 0x32 : 0x10, FROM_B = ODD_HALF ? 0x7600 : 0x5400;
        constexpr uint32_t THEN_A = EVEN_HALF ? 0x10 : 0x32, THEN_B = ODD_HALF ? 0x5400 : 0x7600;
        x[s][h * 2] = byte_permute(a0, b0, FROM_A | FROM_B);
        x[s][h * 2 + 1] = byte_permute(EVEN_HALF ? a1 : a0, ODD_HALF ? b1 : b0, THEN_A | THEN_B);
      }
  }

  template <int NT>
  JM_DEVICE static void multiply(float (&sums)[NT][4], const uint32_t (&own)[4], uint64_t x) {
    wgmma_registers<X, false>(sums, own, x);
  }
};

}  // namespace jaxmono
