// A warp's accumulators on their way out through shared memory: fragments are scattered over rows, and
// memory wants neighbours.
//
//   fragment          lane 4 g + t:  columns 8 j + 2 t, + 1  of rows g, g + 8      (stored)
//   piece             LANES neighbouring columns of a row                          (loaded)
//
// With 8 floats to a piece, eight lanes would load from every second group of four, two of them from each
// bank. So the even groups of a row are in its first half and the odd ones in the second, which begins
// 4 banks further: stores and loads both fall on all 32.
#pragma once
#include "jaxmono/opaque.cuh"
#include "jaxmono/platform.cuh"
#include "jaxmono/ptx.cuh"
#include "jaxmono/source_tiles.cuh"
#include "jaxmono/types.cuh"
#include "jaxmono/vec.cuh"
#include "jaxmono/warp.cuh"

namespace jaxmono {

// What an epilogue has loaded ahead, where there is nothing; where it reads nothing at all but its sums.
struct NoEarly {};
struct NoReads {};

// Whether that is the same in all rows.
template <class Early, class = void>
struct ByColumn {
  static constexpr bool value = false;
};
template <class Early>
struct ByColumn<Early, typename Early::BY_COLUMN> {
  static constexpr bool value = true;
};

// Of a tile of ROWS x COLUMNS whose sums all THREADS finish together: their pieces of LANES columns, of
// which AHEAD of a thread are in flight. Each half of the sums is staged, the second ROWS rows below.
template <int ROWS, int COLUMNS, int THREADS, int LANES, class Early>
struct SharedPieces {
  static constexpr int PER_ROW = COLUMNS / LANES, COUNT = ROWS * PER_ROW;
  static constexpr int TRIPS = (COUNT + THREADS - 1) / THREADS, AHEAD = TRIPS < 4 ? TRIPS : 4;
  Early early[AHEAD]{};  // as in StagedRows::rows

  JM_DEVICE static int row(int i) { return i / PER_ROW; }
  JM_DEVICE static int column(int i) { return i % PER_ROW * LANES; }
  JM_DEVICE static bool inside(int i) { return COUNT % (AHEAD * THREADS) == 0 || i < COUNT; }
  template <class Fetch>
  JM_DEVICE void request(const Fetch& fetch, int first) {
#pragma unroll
    for (int k = 0; k < AHEAD; ++k) {
      const int i = first + k * THREADS;
      if (inside(i)) early[k] = fetch(row(i), column(i));
    }
  }

  // Calls f(r, c, sums, fetch(r, c)) for all of them; the first have been requested.
  template <class Staged, class Fetch, class F>
  JM_DEVICE void finish(const float* staged, const Fetch& fetch, const F& f) {
    const int thread = fresh(thread_id());
#pragma unroll 1
    for (int base = 0; base < COUNT; base += AHEAD * THREADS) {
      const int first = base + thread;
      if (base > 0) request(fetch, first);
      Vec<float, LANES> sums[AHEAD]{};
#pragma unroll
      for (int k = 0; k < AHEAD; ++k) {
        const int i = first + k * THREADS;
        if (!inside(i)) continue;
        const float* const p = staged + row(i) * Staged::PITCH;
        sums[k] = Staged::template get<LANES>(p, column(i));
        const Vec<float, LANES> y = Staged::template get<LANES>(p + ROWS * Staged::PITCH, column(i));
#pragma unroll
        for (int e = 0; e < LANES; ++e) sums[k].x[e] += y.x[e];
      }
#pragma unroll
      for (int k = 0; k < AHEAD; ++k) {
        const int i = first + k * THREADS;
        if (inside(i)) f(row(i), column(i), sums[k].x, early[k]);
      }
    }
  }
};

// NT fragments of 8 columns each; WHOLE: all are staged at a time, else as many as take little memory. DEEP: a
// warp has all of a tile's epilogue to itself, and loads more at a time (SGD with momentum behind a gradient of
// 4096 x 4096, k = 2048: 132 us of an H200, not 144; more still spilled).
template <int NT, bool WHOLE, bool DEEP = false>
struct StagedRows {
  static constexpr int N = NT * 8;
  static constexpr int CHUNK = WHOLE || N <= 80 ? N
                               : N % 64 == 0    ? 64
                               : N % 80 == 0    ? 80
                                                : N % 48 == 0 ? 48 : 16;
  static_assert(N % CHUNK == 0, "whole chunks");
  static constexpr int PITCH = CHUNK + 8;  // rows of a fragment begin 8 banks apart
  static constexpr int HALF = CHUNK / 2 + 4;
  static constexpr int BYTES = 16 * PITCH * 4;

  // Sums have registers that are named at compile time. When a chunk of columns has gone, the next ones move
  // there. While its pieces are finished ptxas may keep those twice (a product of wav2vec2's training step
  // spilled 41 words): in a source that defines JM_LEAN they stay, and each chunk has code of its own. So
  // BERT-large b16 would take 5 % more time, ViT-B/16 b32 2.
#ifdef JM_LEAN
  static constexpr bool IN_PLACE = true;
#else
  static constexpr bool IN_PLACE = false;
#endif

  // The chunk of columns from c0 on: where sums move, the first of x. EACH = 2: of the first half of x, and
  // behind those of the second half.
  template <int LANES, int EACH = 1>
  JM_DEVICE static void put(float* to, const float (&x)[NT][4], int c0 = 0) {
    constexpr int OWN = CHUNK / 8 / EACH;
    static_assert(NT / EACH % OWN == 0, "whole chunks");
    const int lane = fresh(lane_id()), g = lane / 4, t = lane % 4 * 2;
    float* const row = to + g * PITCH + (LANES == 8 ? t % 4 + t / 4 * HALF : t);
#pragma unroll
    for (int first = 0; first < (IN_PLACE ? NT / EACH : OWN); first += OWN) {
      if (IN_PLACE && CHUNK < N && c0 != first * 8 * EACH) continue;
#pragma unroll
      for (int j = 0; j < CHUNK / 8; ++j) {
        const float (&sums)[4] = x[first + j % OWN + j / OWN * (NT / EACH)];
        float* const p = row + j * (LANES == 8 ? 4 : 8);
        store<float, 2>(p, Vec<float, 2>{sums[0], sums[1]});
        store<float, 2>(p + 8 * PITCH, Vec<float, 2>{sums[2], sums[3]});
      }
    }
  }

  // The piece that begins at column c, a multiple of LANES.
  template <int LANES>
  JM_DEVICE static Vec<float, LANES> get(const float* row, int c) {
    if constexpr (LANES == 8) {
      const Vec<float, 4> x = load<float, 4>(row + c / 2), y = load<float, 4>(row + c / 2 + HALF);
      return {x.x[0], x.x[1], x.x[2], x.x[3], y.x[0], y.x[1], y.x[2], y.x[3]};
    } else {
      return load<float, LANES>(row + c);
    }
  }

  // What f has of it: itself, or of pairs the one that begins at c, and the one of the other half.
  template <int LANES>
  struct Pairs {
    float x[2][LANES];
  };
  template <int LANES, int EACH>
  using Piece = Conditional<EACH == 1, Vec<float, LANES>, Pairs<LANES>>;
  template <int LANES, int EACH>
  JM_DEVICE static Piece<LANES, EACH> piece(const float* row, int c) {
    if constexpr (EACH == 1) {
      return get<LANES>(row, c);
    } else {
      Pairs<LANES> out;
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        const Vec<float, LANES> x = get<LANES>(row, c + i * (CHUNK / 2));
#pragma unroll
        for (int e = 0; e < LANES; ++e) out.x[i][e] = x.x[e];
      }
      return out;
    }
  }

  // Calls f(r, c, sums, fetch(r, c)) for every LANES neighbouring elements of the warp's 16 rows, the
  // threads on neighbouring columns. Fetches, and the sums themselves, are some pieces ahead: one piece
  // at a time a thread mostly waits. What is the same in all rows (ByColumn) is fetched once a chunk, of
  // row 0. own: BYTES of the warp. source: a SourceTiles::Reader, whose elements f has as its last argument.
  // EACH = 2: of pairs of columns, of both halves of x; c counts pairs, and sums are [2][LANES].
  template <int LANES, int EACH = 1, class Fetch, class F, class Source>
  JM_DEVICE static void rows(float* own, float (&x)[NT][4], const Fetch& fetch, const F& f,
                             Source&& source) {
    using Early = decltype(fetch(0, 0));
    constexpr bool PLAIN = is_same<typename NoReference<Source>::type, NoSource>;
    if constexpr (PLAIN && LANES == 8 && EACH == 1 && NT % 4 == 0 && is_same<Early, NoReads>) {
      quads(x, f);
      return;
    }
    constexpr int PER_ROW = CHUNK / EACH / LANES, PIECES = 16 * PER_ROW, TRIPS = (PIECES + WARP - 1) / WARP;
    // Where rows are whole warps or parts of one, a thread stays in its columns: what depends on nothing
    // else (a bias) is loaded once a chunk.
    constexpr bool STAYS = WARP % PER_ROW == 0, ONCE = STAYS && ByColumn<Early>::value;
    // Pieces beside the accumulators: with 128 of those, more would spill.
    constexpr int ROOM = is_same<Early, NoEarly> || is_same<Early, NoReads> || ONCE
                             ? (NT <= 24 ? 5 : 4)
                             : (DEEP ? 128 : NT <= 24 ? 80 : 32) / int(sizeof(Early));
    constexpr int MOST = ROOM / EACH, AHEAD = MOST < 2 ? 1 : TRIPS < MOST ? TRIPS : MOST;
    const int lane = fresh(lane_id());
    const auto row = [&](int i) {
      return STAYS ? i / WARP * (WARP / PER_ROW) + lane / PER_ROW : (i + lane) / PER_ROW;
    };
    const auto column = [&](int i) { return (STAYS ? lane : i + lane) % PER_ROW * LANES; };
#pragma unroll 1
    for (int c0 = 0; c0 < N; c0 += CHUNK) {
      Early same;
      if constexpr (ONCE) same = fetch(0, c0 / EACH + column(0));
      source.begin(c0 / CHUNK);
#pragma unroll 1
      for (int base = 0; base < PIECES; base += AHEAD * WARP) {
        const auto inside = [&](int k) {
          return PIECES % (AHEAD * WARP) == 0 || base + k * WARP + lane < PIECES;
        };
        // {}: what only some threads load would otherwise keep its registers in everything around it, the
        // loop over the tasks and that over equal layers, as if it had come from the pass before
        // (a training step of wav2vec2: 284 and 1628 bytes were spilled, 0 and 244 are).
        Early early[AHEAD]{};
#pragma unroll
        for (int k = 0; k < AHEAD; ++k)
          if (ONCE) early[k] = same;
          else if (inside(k)) early[k] = fetch(row(base + k * WARP), c0 / EACH + column(base + k * WARP));
        if (base == 0) {
          put<LANES, EACH>(own, x, c0);
          syncwarp();
        }
        Piece<LANES, EACH> sums[AHEAD]{};
#pragma unroll
        for (int k = 0; k < AHEAD; ++k)
          if (inside(k))
            sums[k] = piece<LANES, EACH>(own + row(base + k * WARP) * PITCH, column(base + k * WARP));
#pragma unroll
        for (int k = 0; k < AHEAD; ++k) {
          if (!inside(k)) continue;
          const int r = row(base + k * WARP), c = column(base + k * WARP);
          if constexpr (PLAIN) f(r, c0 / EACH + c, sums[k].x, early[k]);
          else f(r, c0 + c, sums[k].x, early[k], source.template get<LANES>(r, c));
        }
      }
      syncwarp();
      source.end(c0 / CHUNK);
      if constexpr (!IN_PLACE) advance<CHUNK / EACH>(x);  // of both halves
    }
  }

  // The same without shared memory: eight neighbours of a row, two of each of four fragments, move to one
  // of the four lanes that have them (`quad_transpose`). Products alone take up to 1.6 % less time, b2b_gemm_4
  // 1.6 to 2.7. With a bias, of which each lane then reads four pieces for the one it had, CLIP b32 took 2 %
  // more and b2b_conv_4 5.
  template <class F>
  JM_DEVICE static void quads(float (&x)[NT][4], const F& f) {
    constexpr int COLUMNS = N <= 96 ? N : N % 64 == 0 ? 64 : 32;  // at a time
    const int lane = fresh(lane_id()), g = lane / 4, t = lane % 4;
#pragma unroll 1
    for (int c0 = 0; c0 < N; c0 += COLUMNS) {
#pragma unroll
      for (int j = 0; j < COLUMNS / 8; j += 4)
#pragma unroll
        for (int h = 0; h < 2; ++h) {
          Vec<float, 2> own[4];
#pragma unroll
          for (int i = 0; i < 4; ++i) own[i] = {x[j + i][2 * h], x[j + i][2 * h + 1]};
          quad_transpose(own);
          const float sums[8] = {own[0].x[0], own[0].x[1], own[1].x[0], own[1].x[1],
                                 own[2].x[0], own[2].x[1], own[3].x[0], own[3].x[1]};
          // opaque: where a tile has all columns, NVVM makes a column by `or`, and took stores of 16 bytes apart
          // (65536x256x60 27 us on an H100, 16 so) before they were one instruction (st_global_whole).
          f(g + 8 * h, j == 0 ? c0 + t * 8 : opaque(c0 + (j + t) * 8), sums, NoReads{});
        }
      advance<COLUMNS>(x);
    }
  }

  // Calls f(r, c, sums) for every LANES neighbouring columns of every TAPS neighbouring rows, or of every 2
  // and the 2 that lie LINE rows below.
  template <int TAPS, int LANES, int LINE = 0, class F>
  JM_DEVICE static void windows(float* own, float (&x)[NT][4], const F& f) {
    constexpr int PER_ROW = CHUNK / LANES, PIECES = 16 / TAPS * PER_ROW;
#pragma unroll 1
    for (int c0 = 0; c0 < N; c0 += CHUNK) {
      put<LANES>(own, x, c0);
      syncwarp();
#pragma unroll 1
      for (int i = fresh(lane_id()); i < PIECES; i += WARP) {
        const int r = i / PER_ROW * (LINE ? 2 : TAPS), c = i % PER_ROW * LANES;
        float sums[TAPS][LANES];
        window<TAPS, LANES, LINE>(sums, own + r * PITCH, c);
        f(r, c0 + c, sums);
      }
      syncwarp();
      if constexpr (!IN_PLACE) advance<CHUNK>(x);
    }
  }

  // LANES neighbouring columns of TAPS rows.
  template <int TAPS, int LANES, int LINE = 0>
  JM_DEVICE static void window(float (&sums)[TAPS][LANES], const float* row, int c) {
#pragma unroll
    for (int t = 0; t < TAPS; ++t) {
      const Vec<float, LANES> piece = get<LANES>(row + (LINE ? t / 2 * LINE + t % 2 : t) * PITCH, c);
#pragma unroll
      for (int e = 0; e < LANES; ++e) sums[t][e] = piece.x[e];
    }
  }

  // The next columns move to where these were: their registers are named at compile time.
  template <int COLUMNS, class Sum>
  JM_DEVICE static void advance(Sum (&x)[NT][4]) {
#pragma unroll
    for (int j = 0; j + COLUMNS / 8 < NT; ++j)
#pragma unroll
      for (int e = 0; e < 4; ++e) x[j][e] = x[j + COLUMNS / 8][e];
  }
};

}  // namespace jaxmono
