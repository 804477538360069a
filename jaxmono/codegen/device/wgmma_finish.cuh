// How the sums of a tile of wgmma begin, and leave the registers of two warpgroups: by rows, by windows of
// rows, as fragments, or shared with the blocks of other parts of k.
#pragma once
#include "jaxmono/opaque.cuh"
#include "jaxmono/platform.cuh"
#include "jaxmono/ptx_wgmma.cuh"
#include "jaxmono/roles.cuh"
#include "jaxmono/split_k.cuh"
#include "jaxmono/staged_rows.cuh"
#include "jaxmono/types.cuh"
#include "jaxmono/vec.cuh"
#include "jaxmono/warp.cuh"

namespace jaxmono {

// G: a GemmWgmma or GemmImage, which has these as its own; Sums: its Accumulators.
template <class G>
struct WgmmaFinish {
  // Of a thread: its warpgroup; the first row of its warp (of PINGPONG in each block of 64 rows), and the first
  // column of its sums and of those that it finishes, in the tile.
  JM_DEVICE static int warpgroup() { return fresh(warp_id()) / 4; }
  JM_DEVICE static int first_row() {
    const int warp = fresh(warp_id());
    return (G::BM == 128 && !G::PINGPONG ? warp / 4 * 64 : 0) + warp % 4 * 16;
  }
  JM_DEVICE static int first_col() { return G::N < G::BN ? warpgroup() * G::N : 0; }
  JM_DEVICE static int own_col() { return G::HALVES ? warpgroup() * (G::N / 2) : first_col(); }

  // HELD: slots that the epilogue's source takes (Source::GROUPS).
  template <int HELD = 0, class Sums>
  JM_DEVICE static void consume(unsigned char* smem, Roles* roles, Place& at, int tiles, Sums& acc) {
#pragma unroll
    for (int j = 0; j < G::BLOCKS * G::NT; ++j)
#pragma unroll
      for (int e = 0; e < 4; ++e) acc.x[j][e] = 0.0f;
    G::template multiply<HELD>(smem, roles, at, tiles, acc);
  }

  // The same, and bias(c), of 16 bits each, is added to columns c and c + 1 of the tile. It is asked for
  // before the products; of PINGPONG, behind which the other warpgroup's go on, when they are done.
  template <int HELD = 0, class Sums, class Columns>
  JM_DEVICE static void consume(unsigned char* smem, Roles* roles, Place& at, int tiles, Sums& acc,
                                const Columns& bias) {
    using Two = decltype(bias(0));
    const int column = first_col() + fresh(lane_id()) % 4 * 2;
    const auto add = [&](int j, const Two& two) {
      const Vec<float, 2> x = convert<float>(two);
#pragma unroll
      for (int i = 0; i < G::BLOCKS; ++i)
#pragma unroll
        for (int e = 0; e < 4; ++e) acc.x[i * G::NT + j][e] += x.x[e % 2];
    };
    if constexpr (G::PINGPONG) {
      consume<HELD>(smem, roles, at, tiles, acc);
      wgmma_results(acc.x);
      constexpr int EACH = G::NT % 8 == 0 ? 8 : 2;  // asked for at once: more would take registers of sums
#pragma unroll
      for (int first = 0; first < G::NT; first += EACH) {
        Two two[EACH];
#pragma unroll
        for (int j = 0; j < EACH; ++j) two[j] = bias(column + 8 * (first + j));
#pragma unroll
        for (int j = 0; j < EACH; ++j) add(first + j, two[j]);
      }
    } else {
      const bool adds = !G::SHARED_K || warpgroup() == 0;
      Two two[G::NT];
#pragma unroll
      for (int j = 0; j < G::NT; ++j) {
        two[j] = bias(column + 8 * j);
        if (!adds) two[j] = {};
      }
      consume<HELD>(smem, roles, at, tiles, acc);
      wgmma_results(acc.x);
#pragma unroll
      for (int j = 0; j < G::NT; ++j) add(j, two[j]);
    }
  }

  // Where the warpgroups share k: requests what the first pieces of the epilogue load, fetch(r, c), before
  // `consume`, so that it comes while the sums are made. (Larger tiles were slower with it: BERT-base b16
  // 993 -> 1033 us, ResNet-50 b32 1253 -> 1356 with 1.4 KB of spills.)
  template <int LANES, class Fetch>
  JM_DEVICE static auto first(const Fetch& fetch) {
    static_assert(G::SHARED_K && !G::HALVES && LANES > 0, "small tiles");
    SharedPieces<G::BM, G::N, CONSUMERS, LANES, decltype(fetch(0, 0))> p;
    p.request(fetch, fresh(thread_id()));
    return p;
  }

  // Calls f(r, c, sums, fetch(r, c)) for every LANES neighbouring elements of the tile, the threads of a
  // warp on neighbouring columns. Staged through shared memory: fragments are scattered over rows.
  template <int LANES, class Sums, class Fetch, class F>
  JM_DEVICE static void finish(unsigned char* smem, Sums& acc, const Fetch& fetch, const F& f) {
    finish<LANES>(smem, acc, fetch, f, NoSource{});
  }

  // source: a Reader, if f has a source's elements as its last argument. EACH: as in `finish_pairs`.
  template <int LANES, int EACH = 1, class Sums, class Fetch, class F, class S>
  JM_DEVICE static void finish(unsigned char* smem, Sums& acc, const Fetch& fetch, const F& f,
                               S&& source) {
    if constexpr (G::HALVES) {
      float own[G::OWN][4];
      if (warpgroup() == 0) exchange<0>(smem, acc, own);
      else exchange<1>(smem, acc, own);
      rows<LANES, EACH>(smem, own, fetch, f, source);
      syncthreads();
    } else if constexpr (G::SHARED_K) {
      static_assert(EACH == 1, "a thread has both sums of a pair");
      finish_shared<LANES>(smem, acc, first<LANES>(fetch), fetch, f);
    } else {
#pragma unroll
      for (int i = 0; i < G::BLOCKS; ++i) rows<LANES, EACH>(smem, acc.block(i), fetch, f, source, i * 64);
    }
  }

  // The same for every LANES neighbouring pairs of columns (StagedRows): f(r, c, sums, fetch(r, c)) with
  // sums[2][LANES], c in pairs. Of the columns that a thread finishes both halves are one of a pair each.
  template <int LANES, class Sums, class Fetch, class F>
  JM_DEVICE static void finish_pairs(unsigned char* smem, Sums& acc, const Fetch& fetch, const F& f) {
    finish<LANES, 2>(smem, acc, fetch, f, NoSource{});
  }

  // EACH: columns that a stored one takes.
  template <int LANES, int EACH, int OWN, class Fetch, class F, class S>
  JM_DEVICE static void rows(unsigned char* smem, float (&x)[OWN][4], const Fetch& fetch, const F& f,
                             S& source, int row = 0) {
    static_assert(G::STAGED || (LANES == 8 && OWN % 4 == 0 && is_same<decltype(fetch(0, 0)), NoReads>),
                  "no room for sums on their way");
    G::Staged::template rows<LANES, EACH>(
        G::staging(smem) + fresh(warp_id()) * 16 * G::PITCH, x,
        [&](int r, int c) { return fetch(row + first_row() + r, own_col() / EACH + c); },
        [&](int r, int c, const auto& sum, const auto&... loaded) {
          f(row + first_row() + r, own_col() / EACH + c, sum, loaded...);
        },
        source);
  }

  // As `finish`, for every LANES neighbouring columns of TAPS neighbouring rows, or (G::WINDOW_LINE) of
  // windows of two lines of places: f(r, c, sums) with sums[TAPS][LANES].
  template <int TAPS, int LANES, class Sums, class F>
  JM_DEVICE static void finish_windows(unsigned char* smem, Sums& acc, const F& f) {
    static_assert(!G::PINGPONG, "both warpgroups have a tile");
    const auto own_rows = [&](float (&x)[G::OWN][4]) {
      G::Staged::template windows<TAPS, LANES, G::WINDOW_LINE>(
          G::staging(smem) + fresh(warp_id()) * 16 * G::PITCH, x,
          [&](int r, int c, const float (&sums)[TAPS][LANES]) {
            f(first_row() + r, own_col() + c, sums);
          });
    };
    if constexpr (G::HALVES) {
      float own[G::OWN][4];
      if (warpgroup() == 0) exchange<0>(smem, acc, own);
      else exchange<1>(smem, acc, own);
      own_rows(own);
      syncthreads();
    } else if constexpr (G::SHARED_K) {
      constexpr int PER_ROW = G::N / LANES;
      G::Staged::template put<LANES>(G::staging(smem) + fresh(warp_id()) * 16 * G::PITCH, acc.x);
      syncthreads();
#pragma unroll 1
      for (int i = fresh(thread_id()); i < G::BM / TAPS * PER_ROW; i += CONSUMERS) {
        const int r = i / PER_ROW * TAPS, c = i % PER_ROW * LANES;
        float sums[TAPS][LANES], others[TAPS][LANES];
        G::Staged::template window<TAPS, LANES>(sums, G::staging(smem) + r * G::PITCH, c);
        G::Staged::template window<TAPS, LANES>(others, G::staging(smem) + (64 + r) * G::PITCH, c);
#pragma unroll
        for (int t = 0; t < TAPS; ++t)
#pragma unroll
          for (int e = 0; e < LANES; ++e) sums[t][e] += others[t][e];
        f(r, c, sums);
      }
      syncthreads();
    } else {
      own_rows(acc.x);
    }
  }

  // Where SPLIT blocks share k: as `finish`, each block for its share of every warpgroup's columns. The
  // others' sums of these come as fragments, which a thread there has of the same elements, through
  // `parts`: CONSUMERS * NT * 4 floats for each block of the tile. arrivals: the tile's counter.
  template <int SPLIT, int LANES, class Sums, class Fetch, class F>
  JM_DEVICE static void finish_split(unsigned char* smem, const Sums& acc, int split, float* parts,
                                     uint32_t* arrivals, const Fetch& fetch, const F& f) {
    constexpr int SHARE = G::NT / SPLIT;
    static_assert(!G::SHARED_K && !G::PINGPONG && G::NT % SPLIT == 0, "whole fragments");
    using Out = StagedRows<SHARE, false>;
    static_assert(Out::BYTES <= G::Staged::BYTES, "");
    // Of the fragments that block `from` leaves for block `to`, a thread's share of number j.
    const auto place = [&](int from, int to, int j) {
      return parts + (((from * SPLIT + to) * SHARE + j) * CONSUMERS + thread_id()) * 4;
    };
    float own[SHARE][4]{};  // as in StagedRows::rows
#pragma unroll
    for (int to = 0; to < SPLIT; ++to) {
#pragma unroll
      for (int j = 0; j < SHARE; ++j) {
        const float (&x)[4] = acc.x[to * SHARE + j];
        if (to != split) {
          store<float, 4>(place(split, to, j), Vec<float, 4>{x[0], x[1], x[2], x[3]});
        } else {
#pragma unroll
          for (int e = 0; e < 4; ++e) own[j][e] = x[e];
        }
      }
    }
    group_barrier<SPLIT>(arrivals);
#pragma unroll
    for (int j = 0; j < SHARE; ++j) {
      Vec<float, 4> sum{};
#pragma unroll
      for (int from = 0; from < SPLIT; ++from) {  // in this order whichever block adds
        Vec<float, 4> x{own[j][0], own[j][1], own[j][2], own[j][3]};
        if (from != split) x = load<float, 4>(place(from, split, j));
#pragma unroll
        for (int e = 0; e < 4; ++e) sum.x[e] = from == 0 ? x.x[e] : sum.x[e] + x.x[e];
      }
#pragma unroll
      for (int e = 0; e < 4; ++e) own[j][e] = sum.x[e];
    }
    const int column = first_col() + split * SHARE * 8;
    Out::template rows<LANES>(
        G::staging(smem) + fresh(warp_id()) * 16 * Out::PITCH, own,
        [&](int r, int c) { return fetch(first_row() + r, column + c); },
        [&](int r, int c, const float (&sum)[LANES], const auto& early) {
          f(first_row() + r, column + c, sum, early);
        },
        NoSource{});
  }

  // Where the warpgroups share k: calls f(r, c, sums) for every LANES (2 or 4) neighbouring elements of the
  // sums, each warpgroup for half of the columns. For f32 outputs, of which four lanes then write whole
  // sectors: of 32 bytes of a row, or of twice 32.
  template <int LANES, class Sums, class F>
  JM_DEVICE static void finish_fragments(unsigned char* smem, const Sums& acc, const F& f) {
    static_assert(G::SHARED_K && !G::HALVES && G::NT % LANES == 0, "small tiles");
    if (warpgroup() == 0) halves<0, LANES>(smem, acc, f);
    else halves<1, LANES>(smem, acc, f);
    syncthreads();
  }

  // The part of warpgroup HALF; what the other one has of it comes as fragments, which a thread there has
  // of the same elements.
  //
  //   a row's      lane 0   lane 1   lane 2   lane 3           lane 0   lane 1   lane 2   lane 3
  //   fragment j   0 1      2 3      4 5      6 7      ->      0 1 2 3           4 5 6 7             } LANES = 4:
  //   j + 1        0 1      2 3      4 5      6 7                       0 1 2 3           4 5 6 7    } one store
  template <int HALF, int LANES, class Sums, class F>
  JM_DEVICE static void halves(unsigned char* smem, const Sums& acc, const F& f) {
    constexpr int COUNT = G::NT / 2;
    static_assert(COUNT * CONSUMERS * 16 <= G::STAGING_BYTES, "");
    float* const mine = G::staging(smem) + thread_id() * 4;
    const float* const other = G::staging(smem) + (thread_id() ^ 128) * 4;
#pragma unroll
    for (int j = 0; j < COUNT; ++j) {
      const float (&x)[4] = acc.x[(1 - HALF) * COUNT + j];
      store<float, 4>(mine + j * CONSUMERS * 4, Vec<float, 4>{x[0], x[1], x[2], x[3]});
    }
    syncthreads();
    const int row = first_row() + lane_id() / 4, t = lane_id() % 4;
    const int column = HALF * (G::N / 2) + (LANES == 4 ? t % 2 * 8 + t / 2 * 4 : t * 2);
    float x[COUNT][4];
#pragma unroll
    for (int j = 0; j < COUNT; ++j) {
      const Vec<float, 4> y = load<float, 4>(other + j * CONSUMERS * 4);
#pragma unroll
      for (int e = 0; e < 4; ++e) x[j][e] = acc.x[HALF * COUNT + j][e] + y.x[e];
    }
    const bool odd = t % 2 != 0;
#pragma unroll
    for (int j = 0; j < COUNT; j += LANES / 2) {
#pragma unroll
      for (int h = 0; h < 4; h += 2) {
        if constexpr (LANES == 4) {
          const float (&a)[4] = x[j], (&b)[4] = x[j + 1];
          const auto got = shfl_xor(Vec<float, 2>{odd ? a[h] : b[h], odd ? a[h + 1] : b[h + 1]}, 1);
          const float sums[4] = {odd ? got.x[0] : a[h], odd ? got.x[1] : a[h + 1],
                                 odd ? b[h] : got.x[0], odd ? b[h + 1] : got.x[1]};
          f(row + 4 * h, column + j * 8, sums);
        } else {
          const float sums[2] = {x[j][h], x[j][h + 1]};
          f(row + 4 * h, column + j * 8, sums);
        }
      }
    }
  }

  // own: the sums of warpgroup HALF's columns, of both warpgroups.
  template <int HALF, class Sums, int OWN>
  JM_DEVICE static void exchange(unsigned char* smem, const Sums& acc, float (&own)[OWN][4]) {
    float* const mine = G::staging(smem) + (HALF * G::QUARTER * 128 + thread_id() % 128) * 4;
    const float* const other = mine + (1 - 2 * HALF) * G::QUARTER * 128 * 4;
#pragma unroll
    for (int q = 0; q < 2; ++q) {
#pragma unroll
      for (int j = 0; j < G::QUARTER; ++j) {
        const float (&x)[4] = acc.x[(1 - HALF) * OWN + q * G::QUARTER + j];
        store<float, 4>(mine + j * 512, Vec<float, 4>{x[0], x[1], x[2], x[3]});
      }
      syncthreads();
#pragma unroll
      for (int j = 0; j < G::QUARTER; ++j) {
        const Vec<float, 4> y = load<float, 4>(other + j * 512);
        const float (&x)[4] = acc.x[HALF * OWN + q * G::QUARTER + j];
#pragma unroll
        for (int e = 0; e < 4; ++e) own[q * G::QUARTER + j][e] = x[e] + y.x[e];
      }
      syncthreads();
    }
  }

  // Both warpgroups have sums of all elements: they meet in shared memory. now: of `first`.
  template <int LANES, class Sums, class P, class Fetch, class F>
  JM_DEVICE static void finish_shared(unsigned char* smem, Sums& acc, P now, const Fetch& fetch,
                                      const F& f) {
    G::Staged::template put<LANES>(G::staging(smem) + fresh(warp_id()) * 16 * G::PITCH, acc.x);
    syncthreads();
    now.template finish<typename G::Staged>(G::staging(smem), fetch, f);
    syncthreads();
  }
};

}  // namespace jaxmono
