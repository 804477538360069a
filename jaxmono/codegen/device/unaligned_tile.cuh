// Operands of 16-bit elements whose rows begin at any of them: an odd number to a row.
//
//   in memory   | . . . . . a b c | d e f g h i j k | l . . . . . . .     aligned lines of 16 bytes
//   fill        the same in shared memory, by cp.async: a line more than the row has pieces
//   finish      when they have landed: | a b c d e f g h | i j k l ...     shifted to where pieces belong
//
// A thread's rows lie multiples of 8 rows and of 16 bytes of k apart, so all of its pieces of a task are
// shifted alike. A warp finishes what it has requested itself, as in tf32_tile.cuh. Loaded element by
// element such operands took 85 us of 128x50257x768 and 18 us of 2048x1024x479 on an H100.
#pragma once
#include "jaxmono/opaque.cuh"
#include "jaxmono/ptx.cuh"
#include "jaxmono/swizzled_tile.cuh"
#include "jaxmono/vec.cuh"
#include "jaxmono/warp.cuh"

namespace jaxmono {

// Element (row, col) is number first + row * ROW + col of a buffer that begins at `base`, a multiple of 16,
// and has `bytes`. CHECK_*: as of Strided.
template <class T, int ROW, bool CHECK_ROWS, bool CHECK_COLS>
struct Unaligned {
  static constexpr bool IS_UNALIGNED = true, CHECKS_COLS = CHECK_COLS;
  static constexpr int PITCH = ROW;
  const T* base;
  int first, bytes, rows, cols;
  static_assert(sizeof(T) == 2, "rows of other elements are copied in parts of 4 bytes and more");

  // Bytes from the buffer's begin.
  JM_DEVICE int at(int row, int col) const { return (first + row * ROW + col) * 2; }
  // Line `from`, of the operand's row `row`.
  JM_DEVICE void line(void* to, int from, int row) const {
    const int left = min(max(bytes - from, 0), 16);
    cp_async_part_16(to, reinterpret_cast<const unsigned char*>(base) + (left > 0 ? from : 0),
                     !CHECK_ROWS || row < rows ? left : 0);
  }
};

template <class, class = void>
struct IsUnaligned {
  static constexpr bool value = false;
};
template <class L>
struct IsUnaligned<L, decltype(void(L::IS_UNALIGNED))> {
  static constexpr bool value = true;
};

// How 16 bytes are cut out of 32: the same from row to row.
struct Cut {
  bool two, one;      // words
  uint32_t selector;  // of byte_permute, for an odd element

  JM_DEVICE explicit Cut(int bytes)
      : two((bytes & 8) != 0), one((bytes & 4) != 0), selector((bytes & 2) != 0 ? 0x5432u : 0x3210u) {}

  JM_DEVICE Vec<uint32_t, 4> operator()(const Vec<uint32_t, 4>& a, const Vec<uint32_t, 4>& b) const {
    const uint32_t x[8] = {a.x[0], a.x[1], a.x[2], a.x[3], b.x[0], b.x[1], b.x[2], b.x[3]};
    uint32_t y[6], z[5];
#pragma unroll
    for (int i = 0; i < 6; ++i) y[i] = two ? x[i + 2] : x[i];
#pragma unroll
    for (int i = 0; i < 5; ++i) z[i] = one ? y[i + 1] : y[i];
    Vec<uint32_t, 4> out;
#pragma unroll
    for (int i = 0; i < 4; ++i) out.x[i] = byte_permute(z[i], z[i + 1], selector);
    return out;
  }
};

// A SwizzledTile of such an operand. Strips of 8, 4, 2 or 1 pieces, as in SwizzledTile::straight; the line
// that a strip has more than pieces goes to `more`, 16 bytes for each row of each strip.
template <class T, int ROWS, int COLS>
struct UnalignedTile {
  using Tile = SwizzledTile<T, ROWS, COLS>;
  static constexpr int PIECE = Tile::PIECE, PIECES = COLS / PIECE;
  static constexpr int STRIPS = PIECES / 8 + (PIECES >> 2 & 1) + (PIECES >> 1 & 1) + (PIECES & 1);
  static constexpr int MORE_BYTES = (STRIPS * ROWS * 16 + 1023) / 1024 * 1024;

  template <int THREADS, class Load>
  JM_DEVICE static void fill(unsigned char* tile, unsigned char* more, int thread, int row0, int col0,
                             const Load& load) {
    fill_strips<THREADS, 0, 0>(tile, more, thread, row0, col0, load);
  }

  // Behind the wait for this thread's lines of the tile.
  template <int THREADS, class Load>
  JM_DEVICE static void finish(unsigned char* tile, unsigned char* more, int thread, int row0, int col0,
                               const Load& load) {
    syncwarp();  // the lines of all its lanes
    finish_strips<THREADS, 0, 0>(tile, more, thread, row0, col0, load);
  }

 private:
  // Where a thread's piece of a strip of N pieces is.
  template <int THREADS, int FIRST>
  struct Strip {
    static constexpr int LEFT = (COLS - FIRST) / PIECE;
    static constexpr int N = LEFT >= 8 ? 8 : LEFT >= 4 ? 4 : LEFT >= 2 ? 2 : 1, END = FIRST + N * PIECE;
    static constexpr int ROW_STEP = THREADS / N, COUNT = (ROWS + ROW_STEP - 1) / ROW_STEP;
    static_assert(THREADS % N == 0 && ROW_STEP % 8 == 0, "one swizzle, one cut for all rows of a thread");
    int row, piece;
    JM_DEVICE explicit Strip(int thread)
        : row(static_cast<int>(static_cast<unsigned>(thread) / N)),
          piece(static_cast<int>(static_cast<unsigned>(thread) % N)) {}
    JM_DEVICE bool has(int i) const { return ROWS % ROW_STEP == 0 || row + i * ROW_STEP < ROWS; }
    JM_DEVICE unsigned char* at(unsigned char* tile, int p) const {
      return reinterpret_cast<unsigned char*>(Tile::at(tile, row, FIRST + p * PIECE));
    }
  };

  template <int THREADS, int FIRST, int NUMBER, class Load>
  JM_DEVICE static void fill_strips(unsigned char* tile, unsigned char* more, int thread, int row0,
                                    int col0, const Load& load) {
    if constexpr (FIRST < COLS) {
      using S = Strip<THREADS, FIRST>;
      const S own(thread);
      const int from = (load.at(row0 + own.row, col0 + FIRST) & ~15) + own.piece * 16;
      unsigned char* const to = own.at(tile, own.piece);
      unsigned char* const last = more + (NUMBER * ROWS + own.row) * 16;
#pragma unroll(at_once(S::COUNT))
      for (int i = 0; i < S::COUNT; ++i) {
        if (!own.has(i)) continue;
        const int row = own.row + i * S::ROW_STEP, line = from + i * S::ROW_STEP * Load::PITCH * 2;
        load.line(to + i * S::ROW_STEP * 128, line, row0 + row);
        if (own.piece == S::N - 1) load.line(last + i * S::ROW_STEP * 16, line + 16, row0 + row);
      }
      fill_strips<THREADS, S::END, NUMBER + 1>(tile, more, thread, row0, col0, load);
    }
  }

  template <int THREADS, int FIRST, int NUMBER, class Load>
  JM_DEVICE static void finish_strips(unsigned char* tile, unsigned char* more, int thread, int row0,
                                      int col0, const Load& load) {
    if constexpr (FIRST < COLS) {
      using S = Strip<THREADS, FIRST>;
      const S own(thread);
      const Cut cut(load.at(row0 + own.row, col0 + FIRST) & 15);
      const bool last = own.piece == S::N - 1;
      unsigned char* const to = own.at(tile, own.piece);
      const unsigned char* const behind =
          last ? more + (NUMBER * ROWS + own.row) * 16 : own.at(tile, own.piece + 1);
      const int step = last ? S::ROW_STEP * 16 : S::ROW_STEP * 128;
      const int left = load.cols - (col0 + FIRST + own.piece * PIECE);
      const bool edge = Load::CHECKS_COLS && col0 + S::END > load.cols;  // of all threads
#pragma unroll(at_once(S::COUNT))
      for (int i = 0; i < S::COUNT; ++i) {
        Vec<uint32_t, 4> x{};
        if (own.has(i))
          x = cut(words(to + i * S::ROW_STEP * 128), words(behind + i * step));
        if (edge) {  // what other rows have there
#pragma unroll
          for (int w = 0; w < 4; ++w)
            x.x[w] &= left >= 2 * w + 2 ? ~0u : left == 2 * w + 1 ? 0xffffu : 0u;
        }
        syncwarp();  // the neighbours have read it
        if (own.has(i)) store<uint32_t, 4>(reinterpret_cast<uint32_t*>(to + i * S::ROW_STEP * 128), x);
      }
      finish_strips<THREADS, S::END, NUMBER + 1>(tile, more, thread, row0, col0, load);
    }
  }

  JM_DEVICE static Vec<uint32_t, 4> words(const unsigned char* p) {
    return load<uint32_t, 4>(reinterpret_cast<const uint32_t*>(p));
  }
};

}  // namespace jaxmono
