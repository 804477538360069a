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
  static constexpr bool CHECKS_COLS = CHECK_COLS;
  static constexpr int PITCH = ROW;
  const T* base;
  int first, bytes, rows, cols;
  static_assert(sizeof(T) == 2, "rows of other elements are copied in parts of 4 bytes and more");

  JM_DEVICE bool has(int row) const { return !CHECK_ROWS || row < rows; }
  // Bytes from the buffer's begin.
  JM_DEVICE int at(int row, int col) const { return (first + row * ROW + col) * 2; }
  // The line at `from`, of the operand's row `row`. WHOLE: the buffer has all of it.
  template <bool WHOLE>
  JM_DEVICE void line(void* to, const unsigned char* from, int row) const {
    const bool there = has(row);
    if constexpr (WHOLE) {
      cp_async_16(to, from, there);
    } else {
      const auto left = reinterpret_cast<const unsigned char*>(base) + bytes - from;
      cp_async_part_16(to, from, there && left > 0 ? left < 16 ? static_cast<int>(left) : 16 : 0);
    }
  }
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
    each_strip<THREADS>(thread, [&](const auto& own) {
      fill_strip(own, tile, more, row0, col0, load);
    });
  }

  // Behind the wait for this thread's lines of the tile.
  template <int THREADS, class Load>
  JM_DEVICE static void finish(unsigned char* tile, unsigned char* more, int thread, int row0, int col0,
                               const Load& load) {
    syncwarp();  // the lines of all its lanes
    each_strip<THREADS>(thread, [&](const auto& own) {
      finish_strip(own, tile, more, row0, col0, load);
    });
  }

 private:
  // Where a thread's piece of a strip of N pieces is; from column FIRST_ on, number NUMBER_ of a row.
  template <int THREADS, int FIRST_, int NUMBER_>
  struct Strip {
    static constexpr int FIRST = FIRST_, NUMBER = NUMBER_;
    static constexpr int N = strip_pieces((COLS - FIRST) / PIECE), END = FIRST + N * PIECE;
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

  template <int THREADS, int FIRST = 0, int NUMBER = 0, class F>
  JM_DEVICE static void each_strip(int thread, const F& f) {
    if constexpr (FIRST < COLS) {
      using S = Strip<THREADS, FIRST, NUMBER>;
      f(S(thread));
      each_strip<THREADS, S::END, NUMBER + 1>(thread, f);
    }
  }

  template <class S, class Load>
  JM_DEVICE static void fill_strip(const S& own, unsigned char* tile, unsigned char* more, int row0,
                                   int col0, const Load& load) {
    const int first = load.at(row0 + own.row, col0 + S::FIRST) & ~15;
    // Of the buffer's end only the last tiles have to know.
    constexpr int DOWN = S::ROW_STEP * Load::PITCH * 2;
    if (first + ((Load::PITCH > 0 ? S::COUNT - 1 : 0) * DOWN + S::N * 16 + 16) <= load.bytes)
      lines<S, true>(own, tile, more, first, row0, load);
    else
      lines<S, false>(own, tile, more, first, row0, load);
  }

  // A thread's lines of a strip, and as many of the further ones as fall to it.
  template <class S, bool WHOLE, class Load>
  JM_DEVICE static void lines(const S& own, unsigned char* tile, unsigned char* more, int first, int row0,
                              const Load& load) {
    constexpr int DOWN = S::ROW_STEP * Load::PITCH * 2;
    const auto* const from = reinterpret_cast<const unsigned char*>(load.base) + first;
    unsigned char* const to = own.at(tile, own.piece);
    unsigned char* const last = more + (S::NUMBER * ROWS + own.row) * 16;
#pragma unroll(WHOLE ? at_once(S::COUNT) : 1)
    for (int i = 0; i < S::COUNT; ++i)
      if (own.has(i))
        load.template line<WHOLE>(to + i * S::ROW_STEP * 128, from + own.piece * 16 + i * DOWN,
                                  row0 + own.row + i * S::ROW_STEP);
#pragma unroll 1
    for (int i = own.piece; i < S::COUNT; i += S::N)
      if (own.has(i))
        load.template line<WHOLE>(last + i * S::ROW_STEP * 16, from + S::N * 16 + i * DOWN,
                                  row0 + own.row + i * S::ROW_STEP);
  }

  template <class S, class Load>
  JM_DEVICE static void finish_strip(const S& own, unsigned char* tile, unsigned char* more, int row0,
                                     int col0, const Load& load) {
    const Cut cut(load.at(row0 + own.row, col0 + S::FIRST) & 15);
    const bool last = own.piece == S::N - 1;
    unsigned char* const to = own.at(tile, own.piece);
    const unsigned char* const behind =
        last ? more + (S::NUMBER * ROWS + own.row) * 16 : own.at(tile, own.piece + 1);
    const int step = last ? S::ROW_STEP * 16 : S::ROW_STEP * 128;
    const int left = load.cols - (col0 + S::FIRST + own.piece * PIECE);
    const bool edge = Load::CHECKS_COLS && col0 + S::END > load.cols;  // of all threads
    constexpr int BATCH = S::COUNT < 4 ? S::COUNT : 4;  // one by one they would wait for shared memory
#pragma unroll
    for (int first = 0; first < S::COUNT; first += BATCH) {
      Vec<uint32_t, 4> x[BATCH];
#pragma unroll
      for (int i = 0; i < BATCH; ++i)
        if (first + i < S::COUNT && own.has(first + i))
          x[i] = cut(words(to + (first + i) * S::ROW_STEP * 128), words(behind + (first + i) * step));
      if (edge) {  // what other rows have there
#pragma unroll
        for (int w = 0; w < 4; ++w) {
          const uint32_t mask = left >= 2 * w + 2 ? ~0u : left == 2 * w + 1 ? 0xffffu : 0u;
#pragma unroll
          for (int i = 0; i < BATCH; ++i) x[i].x[w] &= mask;
        }
      }
      syncwarp();  // the neighbours have read theirs
#pragma unroll
      for (int i = 0; i < BATCH; ++i)
        if (first + i < S::COUNT && own.has(first + i))
          store<uint32_t, 4>(reinterpret_cast<uint32_t*>(to + (first + i) * S::ROW_STEP * 128), x[i]);
    }
  }

  JM_DEVICE static Vec<uint32_t, 4> words(const unsigned char* p) {
    return load<uint32_t, 4>(reinterpret_cast<const uint32_t*>(p));
  }
};

}  // namespace jaxmono
