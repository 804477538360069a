// A tile of 16-bit elements in shared memory as wgmma reads it, and the threads that fill it.
#pragma once
#include "jaxmono/ptx.cuh"
#include "jaxmono/types.cuh"

namespace jaxmono {

// An operand whose element (row, col) is first[row * ROW + col]. CHECK_*: what lies at or beyond
// `rows` and `cols` is zero.
template <class T, long long ROW, bool CHECK_ROWS, bool CHECK_COLS>
struct Strided {
  static constexpr bool IS_STRIDED = true;
  static constexpr long long PITCH = ROW;
  const T* first;
  int rows, cols;

  JM_DEVICE bool has(int row, int col) const {
    return (!CHECK_ROWS || row < rows) && (!CHECK_COLS || col < cols);
  }
  JM_DEVICE const T* at(int row, int col) const { return first + (row * ROW + col); }
  JM_DEVICE void operator()(void* to, int row, int col) const {
    cp_async_16(to, at(row, col), has(row, col));
  }
};

template <class, class = void>
struct IsStrided {
  static constexpr bool value = false;
};
template <class L>
struct IsStrided<L, decltype(void(L::IS_STRIDED))> {
  static constexpr bool value = true;
};

// ROWS x COLS elements of 16 bits as panels of 64 columns. A panel row has 128 bytes, whose 16-byte
// pieces are permuted by the row: the 128-byte swizzle of wgmma. Tiles begin at multiples of 1024.
template <class T, int ROWS_, int COLS_>
struct SwizzledTile {
  static constexpr int ROWS = ROWS_, COLS = COLS_;
  static constexpr int PIECES = COLS / 8;
  static constexpr int PANEL = ROWS * 128;
  static constexpr int BYTES = (COLS + 63) / 64 * PANEL;
  static_assert(sizeof(T) == 2 && ROWS % 8 == 0 && COLS % 8 == 0, "rows of eight, 16-byte pieces");

  JM_DEVICE static T* at(unsigned char* base, int row, int col) {
    return reinterpret_cast<T*>(base + col / 64 * PANEL + row * 128 +
                                ((col / 8 ^ row) & 7) * 16) + col % 8;
  }

  // As Tile::fill, by THREADS threads of which this is number `thread`.
  template <int THREADS, class Load>
  JM_DEVICE static void fill(unsigned char* base, int thread, int row0, int col0,
                             const Load& load) {
    if constexpr (IsStrided<Load>::value) {
      straight<THREADS, 0>(base, thread, row0, col0, load);
    } else if constexpr (PIECES > 8 && THREADS % PIECES != 0) {
      // Panel by panel: 8 pieces divide THREADS.
      constexpr int PANELS = (COLS + 63) / 64;
#pragma unroll 1  // unrolled, the addresses do not fit the producers' registers
      for (int p = 0; p < PANELS; ++p)
        columns<THREADS, (COLS - 64 < 0 ? COLS : 64)>(base, thread, row0, col0, p * 64, load);
    } else {
      columns<THREADS, COLS>(base, thread, row0, col0, 0, load);
    }
  }

 private:
  template <int THREADS, int WIDTH, class Load>
  JM_DEVICE static void columns(unsigned char* base, int thread, int row0, int col0, int first,
                                const Load& load) {
    constexpr int N = WIDTH / 8, TRIPS = (ROWS * N + THREADS - 1) / THREADS;
    constexpr int ROW_STEP = THREADS / N, PIECE_STEP = THREADS % N;
    int row = static_cast<int>(static_cast<unsigned>(thread) / N);
    int piece = static_cast<int>(static_cast<unsigned>(thread) % N);
    if constexpr (PIECE_STEP == 0 && ROW_STEP % 8 == 0) {  // the same piece of each row: one swizzle
      const int col = first + piece * 8;
      unsigned char* const to = reinterpret_cast<unsigned char*>(at(base, row, col));
#pragma unroll(TRIPS <= 8 ? TRIPS : 8)
      for (int i = 0; i < TRIPS; ++i)
        if ((ROWS * N % THREADS == 0 || row + i * ROW_STEP < ROWS) &&
            (COLS % WIDTH == 0 || col < COLS))
          load(static_cast<void*>(to + i * (ROW_STEP * 128)), row0 + row + i * ROW_STEP, col0 + col);
    } else {
#pragma unroll(TRIPS <= 8 ? TRIPS : 8)
      for (int i = 0; i < TRIPS; ++i) {
        const int col = first + piece * 8;
        if ((ROWS * N % THREADS == 0 || row < ROWS) && (COLS % WIDTH == 0 || col < COLS))
          load(static_cast<void*>(at(base, row, col)), row0 + row, col0 + col);
        row += ROW_STEP;
        piece += PIECE_STEP;
        if (PIECE_STEP != 0 && piece >= N) {
          piece -= N;
          ++row;
        }
      }
    }
  }

  // Strips of 64, 32, 16 or 8 columns, of which a thread has one 16-byte piece in every ROW_STEP-th
  // row: a multiple of 8 rows, so the swizzle is the same in all of them, and constant distances from
  // two addresses do for the whole strip. That is 3 instructions a piece; `columns` takes 8 to 15,
  // with which four producer warps brought 68 KB per microsecond on an H200, less than small tiles
  // consume.
  template <int THREADS, int FIRST, class Load>
  JM_DEVICE static void straight(unsigned char* base, int thread, int row0, int col0,
                                 const Load& load) {
    if constexpr (FIRST < COLS) {
      constexpr int LEFT = COLS - FIRST;
      constexpr int WIDTH = LEFT >= 64 ? 64 : LEFT >= 32 ? 32 : LEFT >= 16 ? 16 : 8;
      constexpr int N = WIDTH / 8, ROW_STEP = THREADS / N;
      static_assert(THREADS % N == 0 && ROW_STEP % 8 == 0, "one swizzle for all rows of a thread");
      const int row = static_cast<int>(static_cast<unsigned>(thread) / N);
      const int col = FIRST + static_cast<int>(static_cast<unsigned>(thread) % N) * 8;
      unsigned char* const to = reinterpret_cast<unsigned char*>(at(base, row, col));
      const T* const from = load.at(row0 + row, col0 + col);
#pragma unroll
      for (int i = 0; i < (ROWS + ROW_STEP - 1) / ROW_STEP; ++i) {
        if (ROWS % ROW_STEP == 0 || row + i * ROW_STEP < ROWS)
          cp_async_16(to + i * ROW_STEP * 128, from + i * ROW_STEP * Load::PITCH,
                      load.has(row0 + row + i * ROW_STEP, col0 + col));
      }
      straight<THREADS, FIRST + WIDTH>(base, thread, row0, col0, load);
    }
  }
};

}  // namespace jaxmono
