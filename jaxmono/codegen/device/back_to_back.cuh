// Two products back to back by one block on wgmma (Bolt section 3.1): a tile of rows of the first one
// stays in registers as the left operand of the second.
//
//   producers: A, B tiles of the first product; then for each piece of Y tiles of W and, if the epilogue
//              has one, of its source operand: all through one ring, but B and W where they stay
//   consumers: H = A B -> P = f(H) in registers, generated code -> Y = P W, some columns at a time
//
// Threadblock residence: the tile has all columns of H. Register residence: a warp's fragments of H are,
// converted, its fragments of the left operand of the second product, so nothing is exchanged at all.
#pragma once
#include "jaxmono/gemm_wgmma.cuh"
#include "jaxmono/mma.cuh"

namespace jaxmono {

// N: columns of H, which are the k of the second product. V: columns of Y; VC: of them at a time.
// A_K_MAJOR, B_K_MAJOR: of the first product's operands. W_N_MAJOR: W is stored with N neighbouring.
// RESIDENT: k tiles of B, all there are: B and W are loaded once for all of a block's tasks.
template <class T, int N, int V, int VC_, int SLOTS, bool A_K_MAJOR, bool B_K_MAJOR, bool W_N_MAJOR,
          int RESIDENT = 0>
struct BackToBack {
  static constexpr int BM = 128, NP = (N + 15) / 16 * 16, VC = VC_, STEPS = NP / 16;
  using First = GemmWgmma<T, BM, NP, SLOTS, 2, 1, 1, A_K_MAJOR, B_K_MAJOR, 0, 0, 4, RESIDENT>;
  using TileW = SwizzledTile<T, W_N_MAJOR ? VC : 64, W_N_MAJOR ? 64 : VC>;
  using Staged = StagedRows<VC / 8, false>;
  static_assert(VC % 16 == 0 && VC <= 256, "columns of a wgmma");
  static_assert(RESIDENT > 0 || TileW::BYTES <= First::STAGE_BYTES, "a tile of W fits a slot");
  // Tiles of W, 64 rows each: of VC columns; of a slot.
  static constexpr int TILES = (NP + 63) / 64, FIT = First::STAGE_BYTES / TileW::BYTES;
  static constexpr int PER = RESIDENT > 0 || FIT > TILES ? TILES : FIT;

  // Layout: resident B | ring | resident W | staging.
  static constexpr int W_AT = First::PANEL_BYTES + SLOTS * First::STAGE_BYTES;
  static constexpr int STAGING_AT =
      W_AT + (RESIDENT > 0 ? (V + VC - 1) / VC * TILES * TileW::BYTES : 0);
  static constexpr int SHARED_BYTES = STAGING_AT + 8 * Staged::BYTES;

  // Of the epilogue's source operand, U: behind the tiles of W that give the same columns.
  template <class U>
  using Source = SourceTiles<U, BM, Staged::CHUNK, VC / Staged::CHUNK, 1, First::STAGE_BYTES, SLOTS>;

  // AHEAD, ready, load_a, load_b: as in GemmWgmma::produce; W waits as a resident B does where both stay.
  // load_w(to, row, col): of W's tile. load_c: of the source, if there is one.
  template <int AHEAD, class Ready, class LoadA, class LoadB, class LoadW, class... LoadC>
  JM_DEVICE static void produce(unsigned char* smem, Roles* roles, Place& at, int row0, int tiles,
                                const Ready& ready, const LoadA& load_a, const LoadB& load_b,
                                const LoadW& load_w, const LoadC&... load_c) {
    const int thread = thread_id() - CONSUMERS;
    const auto fill = [&](unsigned char* to, int c, int first) {
#pragma unroll 1
      for (int i = first; i < first + PER && i < TILES; ++i, to += TileW::BYTES) {
        if constexpr (W_N_MAJOR) TileW::template fill<PRODUCERS>(to, thread, c, i * 64, load_w);
        else TileW::template fill<PRODUCERS>(to, thread, i * 64, c, load_w);
      }
    };
    if constexpr (RESIDENT > 0) {
      if (at.fresh) {  // landed, as B has, when the first k tile of A has
        ready();
#pragma unroll 1
        for (int c = 0; c < V; c += VC) fill(smem + W_AT + c / VC * TILES * TileW::BYTES, c, 0);
      }
    }
    First::template produce<AHEAD>(smem, roles, at, row0, 0, 0, tiles, ready, load_a, load_b);
#pragma unroll 1
    for (int c = 0; c < V; c += VC) {
      if constexpr (RESIDENT == 0) {
#pragma unroll 1
        for (int first = 0; first < TILES; first += PER) {
          mbarrier_wait(&roles->empty[at.slot], at.parity() ^ 1);
          fill(First::slot(smem, at.slot), c, first);
          cp_async_mbarrier_arrive(&roles->full[at.slot]);
          at.template next<SLOTS>();
        }
      }
      (Source<typename LoadC::Element>::produce(First::ring(smem), roles, at, row0, c, load_c), ...);
    }
  }

  // columns(0, column): what two neighbouring elements of P take by column, requested before the products;
  // middle(row of the tile, column, two neighbouring sums of H, columns) -> two elements of P: generated.
  // fetch(r, c), f(r, c, sums, early), and U's elements if there is a source: as in GemmWgmma::finish.
  template <int LANES, class U = void, class Columns, class Middle, class Fetch, class F>
  JM_DEVICE static void consume(unsigned char* smem, Roles* roles, Place& at, int tiles,
                                const Columns& columns, const Middle& middle, const Fetch& fetch,
                                const F& f) {
    uint32_t p[STEPS][4];
    {
      const int col = lane_id() % 4 * 2;
      decltype(columns(0, 0)) early[2 * STEPS];
#pragma unroll
      for (int j = 0; j < 2 * STEPS; ++j) early[j] = columns(0, j * 8 + col);
      typename First::Accumulators h;
      First::consume(smem, roles, at, tiles, h);
      const int row = First::first_row() + lane_id() / 4;
#pragma unroll
      for (int i = 0; i < STEPS; ++i)
#pragma unroll
        for (int e = 0; e < 4; ++e) {
          const float(&x)[4] = h.x[2 * i + e / 2];
          const int c = i * 16 + e / 2 * 8 + col;
          Vec<float, 2> y = middle(row + e % 2 * 8, c, Vec<float, 2>{x[e % 2 * 2], x[e % 2 * 2 + 1]},
                                   early[2 * i + e / 2]);
          if constexpr (N % 16 != 0) {  // whatever f makes of nothing must not count
            y.x[0] = c < N ? y.x[0] : 0.0f;
            y.x[1] = c + 1 < N ? y.x[1] : 0.0f;
          }
          p[i][e] = is_same<T, bf16> ? floats_to_bf16x2(y.x[0], y.x[1])
                                     : floats_to_f16x2(y.x[0], y.x[1]);
        }
    }
    float* const own =
        reinterpret_cast<float*>(smem + STAGING_AT) + warp_id() * (Staged::BYTES / 4);
    const bool speaks = speaks_for_warpgroup();
#pragma unroll 1
    for (int c0 = 0; c0 < V; c0 += VC) {
      float y[VC / 8][4];
#pragma unroll
      for (int j = 0; j < VC / 8; ++j)
#pragma unroll
        for (int e = 0; e < 4; ++e) y[j][e] = 0.0f;
#pragma unroll
      for (int n = 0; n < STEPS; n += 4 * PER) {
        unsigned char* w = smem + W_AT + c0 / VC * TILES * TileW::BYTES;
        if constexpr (RESIDENT == 0) {
          w = First::slot(smem, at.slot);
          mbarrier_wait(&roles->full[at.slot], at.parity());
        }
        wgmma_fence();
#pragma unroll
        for (int i = 0; i < 4 * PER && n + i < STEPS; ++i)
          wgmma_registers<T, !W_N_MAJOR>(
              y, p[n + i],
              operand_slice<TileW, W_N_MAJOR>(w + i / 4 * TileW::BYTES, 0, i % 4 * 16));
        wgmma_commit();
        wgmma_wait<0>();
        if constexpr (RESIDENT == 0) {
          if (speaks) mbarrier_arrive(&roles->empty[at.slot]);
          at.template next<SLOTS>();
        }
      }
      const auto finish = [&](auto&& source) {
        Staged::template rows<LANES>(
            own, y, [&](int r, int c) { return fetch(First::first_row() + r, c0 + c); },
            [&](int r, int c, const float (&sum)[LANES], const auto&... loaded) {
              f(First::first_row() + r, c0 + c, sum, loaded...);
            },
            source);
      };
      if constexpr (is_same<U, void>) finish(NoSource{});
      else finish(typename Source<U>::Reader(First::ring(smem), roles, at, 0, First::first_row()));
    }
  }
};

}  // namespace jaxmono
