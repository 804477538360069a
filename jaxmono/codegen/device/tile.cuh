// Tiles in shared memory, and how 16-byte pieces of an operand get there.
#pragma once
#include "jaxmono/platform.cuh"
#include "jaxmono/ptx.cuh"
#include "jaxmono/types.cuh"

namespace jaxmono {

// ROWS x COLS elements, row-major. A row is an odd number of 16-byte pieces, so that the 8 rows that
// one ldmatrix phase reads lie in 8 different groups of 4 banks, whatever COLS is.
template <class T, int ROWS_, int COLS_>
struct Tile {
  static constexpr int ROWS = ROWS_, COLS = COLS_;
  static constexpr int PIECE = 16 / sizeof(T);  // elements in 16 bytes
  static constexpr int PIECES = COLS / PIECE;
  static constexpr int PITCH = (PIECES | 1) * 16;
  static constexpr int BYTES = ROWS * PITCH;
  static_assert(COLS % PIECE == 0, "a tile row is a whole number of 16-byte pieces");

  JM_DEVICE static T* at(unsigned char* base, int row, int col) {
    return reinterpret_cast<T*>(base + row * PITCH) + col;
  }

  // Calls load(destination, row, col) once for every 16-byte piece, spread over THREADS threads so
  // that neighbouring threads take neighbouring pieces of a row. Rows and pieces advance by addition:
  // dividing for every piece costs more than the copy, and the code must stay small (a stage runs
  // once and then gives the instruction cache to the next).
  template <int THREADS, class Load>
  JM_DEVICE static void fill(unsigned char* base, int row0, int col0, const Load& load) {
    constexpr int TOTAL = ROWS * PIECES;
    constexpr int TRIPS = (TOTAL + THREADS - 1) / THREADS;
    constexpr int ROW_STEP = THREADS / PIECES, PIECE_STEP = THREADS % PIECES;
    int row = static_cast<int>(static_cast<unsigned>(thread_id()) / PIECES);
    int piece = static_cast<int>(static_cast<unsigned>(thread_id()) % PIECES);
#pragma unroll(TRIPS <= 4 ? TRIPS : 4)
    for (int i = 0; i < TRIPS; ++i) {
      if (TOTAL % THREADS == 0 || row < ROWS)
        load(static_cast<void*>(at(base, row, piece * PIECE)), row0 + row, col0 + piece * PIECE);
      row += ROW_STEP;
      piece += PIECE_STEP;
      if (PIECE_STEP != 0 && piece >= PIECES) {
        piece -= PIECES;
        ++row;
      }
    }
  }
};

// 16 bytes of T, for loaders that compute their elements.
template <class T>
struct alignas(16) Piece {
  T x[16 / sizeof(T)];
};

}  // namespace jaxmono
