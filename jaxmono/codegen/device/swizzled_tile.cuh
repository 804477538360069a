// A tile in shared memory as wgmma reads it, and the threads that fill it.
#pragma once
#include "jaxmono/gathered.cuh"
#include "jaxmono/index.cuh"
#include "jaxmono/opaque.cuh"
#include "jaxmono/ptx.cuh"
#include "jaxmono/types.cuh"

namespace jaxmono {

// An operand whose element (row, col) is first[row * ROW + col]. CHECK_*: what lies at or beyond
// `rows` and `cols` is zero. COPY: bytes that are aligned in every row, of which 16 are copied at a time.
// RAGGED: the last 16 bytes of a row are a part.
template <class T, long long ROW, bool CHECK_ROWS, bool CHECK_COLS, int COPY = 16, bool RAGGED = false>
struct Strided {
  using Element = T;
  static constexpr bool IS_STRIDED = true;
  static constexpr long long PITCH = ROW;
  const T* first;
  int rows, cols;

  static constexpr bool STEADY = true;  // a piece further along is a constant distance behind
  // Elements between rows that are so many apart.
  JM_DEVICE static constexpr long long down(int n) { return n * ROW; }
  static constexpr bool CHECKS_ROWS = CHECK_ROWS;
  JM_DEVICE static constexpr bool checks() { return CHECK_ROWS || CHECK_COLS; }
  JM_DEVICE bool has(int row, int col) const {
    return (!CHECK_ROWS || row < rows) && (!CHECK_COLS || col < cols);
  }
  JM_DEVICE const T* at(int row, int col) const { return first + (row * ROW + col); }
  JM_DEVICE void operator()(void* to, int row, int col) const {
    copy(to, at(row, col), row, col);
  }
  // from: at(row, col).
  JM_DEVICE void copy(void* to, const T* from, int row, int col) const {
    if constexpr (RAGGED) {
      static_assert(COPY == 16 && CHECK_COLS, "");
      const int left = (cols - col) * int(sizeof(T));
      cp_async_part_16(to, from, has(row, col) ? left < 16 ? left : 16 : 0);
    } else if constexpr (COPY == 16) {
      cp_async_16(to, from, has(row, col));
    } else {
      constexpr int STEP = COPY / sizeof(T);
      unsigned char* const bytes = static_cast<unsigned char*>(to);
#pragma unroll
      for (int e = 0; e < 16 / int(sizeof(T)); e += STEP) {
        if constexpr (COPY == 8) cp_async_8(bytes + e * sizeof(T), from + e, has(row, col + e));
        else cp_async_4(bytes + e * sizeof(T), from + e, has(row, col + e));
      }
    }
  }
};

// The same of two operands, the halves of a wider one: of every BLOCK rows (IN_ROWS) or columns the first half
// is of the first one, the others of the second (pair_column).
template <class T, long long ROW, int BLOCK, bool IN_ROWS, bool CHECK_ROWS, bool CHECK_COLS>
struct Paired {
  using Element = T;
  static constexpr bool IS_STRIDED = true, STEADY = IN_ROWS;
  static constexpr long long PITCH = ROW;
  static constexpr int HALF = BLOCK / 2;
  const T *first, *second;
  int rows, cols;  // of each half, if they are what is paired

  // Of a row at the beginning of a block, or as many behind it as HALF is a multiple of.
  JM_DEVICE long long down(int n) const {
    return IN_ROWS ? pair_place<BLOCK>(n) * ROW + (n / HALF % 2 ? second - first : 0) : n * ROW;
  }
  JM_DEVICE static constexpr bool checks() { return CHECK_ROWS || CHECK_COLS; }
  JM_DEVICE bool has(int row, int col) const {
    return (!CHECK_ROWS || (IN_ROWS ? pair_place<BLOCK>(row) : row) < rows) &&
           (!CHECK_COLS || (IN_ROWS ? col : pair_place<BLOCK>(col)) < cols);
  }
  JM_DEVICE const T* at(int row, int col) const {
    const int both = IN_ROWS ? row : col, place = pair_place<BLOCK>(both);
    return (umod<2>(udiv<HALF>(both)) ? second : first) + (IN_ROWS ? place * ROW + col : row * ROW + place);
  }
  JM_DEVICE void copy(void* to, const T* from, int row, int col) const {
    cp_async_16(to, from, has(row, col));
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

template <class L, bool = IsStrided<L>::value>
struct IsSteady {
  static constexpr bool value = false;
};
template <class L>
struct IsSteady<L, true> {
  static constexpr bool value = L::STEADY;
};

// Pieces of a row that a strip of threads takes at a time, where so many are left.
constexpr int strip_pieces(int left) { return left >= 8 ? 8 : left >= 4 ? 4 : left >= 2 ? 2 : 1; }

// ROWS x COLS elements of 8, 16 or 32 bits as panels of 128, 64 or 32 columns. A panel row has 128 bytes, whose
// 16-byte pieces are permuted by the row: the 128-byte swizzle of wgmma. Tiles begin at multiples of
// 1024.
template <class T, int ROWS_, int COLS_>
struct SwizzledTile {
  static constexpr int ROWS = ROWS_, COLS = COLS_;
  static constexpr int PIECE = 16 / sizeof(T), ACROSS = 8 * PIECE;  // columns of a piece, of a panel
  static constexpr int PIECES = COLS / PIECE;
  static constexpr int PANEL = ROWS * 128;
  static constexpr int BYTES = (COLS + ACROSS - 1) / ACROSS * PANEL;
  static_assert(sizeof(T) == 1 || sizeof(T) == 2 || sizeof(T) == 4, "");
  static_assert(ROWS % 8 == 0 && COLS % PIECE == 0, "rows of eight, 16-byte pieces");

  JM_DEVICE static T* at(unsigned char* base, int row, int col) {
    return reinterpret_cast<T*>(base + col / ACROSS * PANEL + row * 128 +
                                ((col / PIECE ^ row) & 7) * 16) + col % PIECE;
  }

  // The rows of a gathered operand that a thread has a piece of, the same in each; found once a task.
  template <int THREADS>
  struct Rows {
    static constexpr int STEP = THREADS / 8, COUNT = ROWS / STEP;
    static_assert(STEP % 8 == 0 && ROWS % STEP == 0, "one swizzle for all rows");
    GatheredRow of[COUNT];

    template <class Load>
    JM_DEVICE Rows(int thread, int row0, const Load& load) {
#pragma unroll
      for (int i = 0; i < COUNT; ++i)
        of[i] = load.rows(row0 + static_cast<int>(static_cast<unsigned>(thread) / 8) + i * STEP);
    }
  };

  // As `fill`, of rows that were found before.
  template <int THREADS, class Load>
  JM_DEVICE static void gather(unsigned char* base, int thread, const Rows<THREADS>& rows, int tile,
                               const Load& load) {
    const int row = static_cast<int>(static_cast<unsigned>(thread) / 8);
#pragma unroll
    for (int first = 0; first < COLS; first += ACROSS) {
      const int col = first + thread % 8 * PIECE;
      if (first + ACROSS > COLS && col >= COLS) break;
      unsigned char* const to = reinterpret_cast<unsigned char*>(at(base, row, col));
      // The tile's number is the same in all threads, but ptxas must not know it: it would make the
      // column's offset and needs in the uniform datapath, whose ops wait for each other longer (31 of them
      // in a tile of VGG-16 b32's, 12 so).
      const int own = static_cast<int>(static_cast<unsigned>(opaque(thread)) / THREADS);
      const auto column = load.columns(tile + own, col);
      const auto from = opaque(column.from);
#pragma unroll
      for (int i = 0; i < Rows<THREADS>::COUNT; ++i)
        cp_async_16(to + i * (Rows<THREADS>::STEP * 128), from + rows.of[i].offset,
                    (rows.of[i].outside & column.needs) == 0);
    }
  }

  // Of a Strided operand, where this thread begins in the tile at (row0, col0); a tile of BYTES further
  // along lies a constant distance behind.
  template <int THREADS, class Load>
  JM_DEVICE static const T* begin(int thread, int row0, int col0, const Load& load) {
    const unsigned t = static_cast<unsigned>(thread);
    return load.at(row0 + static_cast<int>(t / 8), col0 + static_cast<int>(t % 8) * PIECE);
  }

  // As Tile::fill, by THREADS threads of which this is number `thread`.
  template <int THREADS, class Load>
  JM_DEVICE static void fill(unsigned char* base, int thread, int row0, int col0,
                             const Load& load) {
    if constexpr (IsStrided<Load>::value)
      fill<THREADS>(base, thread, row0, col0, load, begin<THREADS>(thread, row0, col0, load));
    else any<THREADS>(base, thread, row0, col0, load);
  }

  // from: of `begin`.
  template <int THREADS, class Load>
  JM_DEVICE static void fill(unsigned char* base, int thread, int row0, int col0, const Load& load,
                             const T* from) {
    straight<THREADS, 0>(base, thread, row0, col0, load, from);
  }

 private:
  template <int THREADS, class Load>
  JM_DEVICE static void any(unsigned char* base, int thread, int row0, int col0, const Load& load) {
    if constexpr (PIECES > 8 && THREADS % PIECES != 0) {
      // Panel by panel: 8 pieces divide THREADS.
      constexpr int PANELS = (COLS + ACROSS - 1) / ACROSS;
#pragma unroll 1  // unrolled, the addresses do not fit the producers' registers
      for (int p = 0; p < PANELS; ++p)
        columns<THREADS, (COLS < ACROSS ? COLS : ACROSS)>(base, thread, row0, col0, p * ACROSS, load);
    } else {
      columns<THREADS, COLS>(base, thread, row0, col0, 0, load);
    }
  }

  template <int THREADS, int WIDTH, class Load>
  JM_DEVICE static void columns(unsigned char* base, int thread, int row0, int col0, int first,
                                const Load& load) {
    constexpr int N = WIDTH / PIECE, TRIPS = (ROWS * N + THREADS - 1) / THREADS;
    constexpr int ROW_STEP = THREADS / N, PIECE_STEP = THREADS % N;
    int row = static_cast<int>(static_cast<unsigned>(thread) / N);
    int piece = static_cast<int>(static_cast<unsigned>(thread) % N);
    if constexpr (PIECE_STEP == 0 && ROW_STEP % 8 == 0) {  // the same piece of each row: one swizzle
      const int col = first + piece * PIECE;
      unsigned char* const to = reinterpret_cast<unsigned char*>(at(base, row, col));
#pragma unroll(TRIPS <= 8 ? TRIPS : 8)
      for (int i = 0; i < TRIPS; ++i)
        if ((ROWS * N % THREADS == 0 || row + i * ROW_STEP < ROWS) &&
            (COLS % WIDTH == 0 || col < COLS))
          load(static_cast<void*>(to + i * (ROW_STEP * 128)), row0 + row + i * ROW_STEP, col0 + col);
    } else {
#pragma unroll(TRIPS <= 8 ? TRIPS : 8)
      for (int i = 0; i < TRIPS; ++i) {
        const int col = first + piece * PIECE;
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

  // Strips of 8, 4, 2 or 1 pieces, of which a thread has one 16-byte piece in every ROW_STEP-th
  // row: a multiple of 8 rows, so the swizzle is the same in all of them, and constant distances from
  // two addresses do for the whole strip. That is 3 instructions a piece; `columns` takes 8 to 15,
  // with which four producer warps brought 68 KB per microsecond on an H200, less than small tiles
  // consume.
  template <int THREADS, int FIRST, class Load>
  JM_DEVICE static void straight(unsigned char* base, int thread, int row0, int col0, const Load& load,
                                 const T* begins) {
    if constexpr (FIRST < COLS) {
      constexpr int N = strip_pieces((COLS - FIRST) / PIECE), WIDTH = N * PIECE;
      constexpr int ROW_STEP = THREADS / N;
      static_assert(THREADS % N == 0 && ROW_STEP % 8 == 0, "one swizzle for all rows of a thread");
      const int row = static_cast<int>(static_cast<unsigned>(thread) / N);
      const int col = FIRST + static_cast<int>(static_cast<unsigned>(thread) % N) * PIECE;
      unsigned char* const to = reinterpret_cast<unsigned char*>(at(base, row, col));
      const T* const from = N == 8 && Load::STEADY ? begins + FIRST : load.at(row0 + row, col0 + col);
      constexpr int COUNT = (ROWS + ROW_STEP - 1) / ROW_STEP;
#pragma unroll(Load::checks() ? at_once(COUNT) : COUNT)
      for (int i = 0; i < COUNT; ++i) {
        if (ROWS % ROW_STEP == 0 || row + i * ROW_STEP < ROWS)
          load.copy(to + i * ROW_STEP * 128, from + load.down(i * ROW_STEP),
                    row0 + row + i * ROW_STEP, col0 + col);
      }
      straight<THREADS, FIRST + WIDTH>(base, thread, row0, col0, load, begins);
    }
  }
};

}  // namespace jaxmono
