// One output tile of a contraction on Hopper's wgmma: producer warps fill a ring of swizzled tiles
// by cp.async, two warpgroups of consumers multiply straight from shared memory.
//
//   producers: wait empty[s] -> cp.async A, B into slot s -> full[s] when they have landed
//   consumers: wait full[s]  -> wgmma slot s              -> empty[s] when the products are done
//
// f32 is multiplied as tf32: B from tiles that the producers round (tf32_tile.cuh) before they say that
// a slot is full (they request LAG tiles more before they come back to one), A from registers.
//
// The ring outlives the task: producers request the tiles of the next task while the consumers are in
// the epilogue of this one, and the weights of the next stage before its grid barrier opens. Any view of
// a buffer can be loaded. The same kernels with TMA in place of cp.async took 0.98 to 1.06 of the time
// on an H200 (eight products of 2048 rows and more, three runs; 8192 cubed once 1.11), and with B
// multicast to clusters of two 0.99 to 1.10; 1.6 to 2.9 where the consumers' arrivals at the other block
// had release order at cluster scope, which is a MEMBAR.GPU for each k tile.
//
// Nor did these help: a slot more (staging halved); epilogues on fragments that leave by bulk stores;
// the same through shared memory with half of the bytes (alone from 6 % faster to 5 % slower; models up
// to 15 % slower). Warpgroups with tasks of their own (PINGPONG) pay for epilogues that move much, and
// for short products in kernels of their own (dot_schedule_pingpong.py): with nothing else BERT-base b16 took
// 5 % and b32 25 % more time.
// Nor did the last two or three k tiles in parts of 64 columns, the epilogue of each beside the products of
// the next (1280x3072x768 4 to 6 % slower, 4096x3072x768 3 to 10; of most others ptxas serialises the products).
// Of 33.7 us for 4096x3072x768 products alone take 24.6, the loads beside them 4.0, epilogues 5.1. Of
// 18.9 us for 2048x768x3072 in tiles of 64 x 192 loads without products take 14.4, products without
// loads 14.0: they do not overlap fully. Spread over the GPCs, so that 12 to 30 % more sectors leave L2,
// blocks take as long (three products; 2048x2304x768 5 % less); [k][m] or [k][n] make 0 to 9 %.
#pragma once
#include "jaxmono/gathered.cuh"
#include "jaxmono/marching.cuh"
#include "jaxmono/opaque.cuh"
#include "jaxmono/ptx.cuh"
#include "jaxmono/roles.cuh"
#include "jaxmono/staged_rows.cuh"
#include "jaxmono/swizzled_tile.cuh"
#include "jaxmono/tf32_tile.cuh"
#include "jaxmono/types.cuh"
#include "jaxmono/vec.cuh"
#include "jaxmono/warp.cuh"
#include "jaxmono/wgmma_finish.cuh"
#include "jaxmono/wgmma_operand.cuh"

namespace jaxmono {

// T: bf16, f16, float (tf32) or F8Pair, then k counts pairs. The warpgroups share the tile along m
// (WG_M), n (WG_N) or k (WG_K: each has all of the tile and every other k step, and the sums meet in the
// epilogue; those of wide tiles in HALVES, each warpgroup's columns); one of them is 2. Where all
// are 1 each warpgroup has every second task of a block (PINGPONG). *_K_MAJOR: in memory, and in
// shared memory if T has 16 bits. PANEL: k tiles of A that the consumers compute and keep, as in
// Gemm; 0: A is streamed with B. PANEL_B: the same of B. DEPTH: steps of 32 bytes of k in a slot,
// 4 to a line of shared memory. RESIDENT: k tiles of B, all there are, that the producers load
// once for all of a block's tasks. *_UNALIGNED: loaded by an Unaligned (unaligned_tile.cuh). STAGED: sums
// leave through shared memory, or else as they are (StagedRows::quads).
template <class T, int BM_, int BN_, int SLOTS_, int WG_M, int WG_N, int WG_K, bool A_K_MAJOR,
          bool B_K_MAJOR, int PANEL = 0, int PANEL_B = 0, int DEPTH = 4, int RESIDENT = 0,
          bool A_UNALIGNED = false, bool B_UNALIGNED = false, bool STAGED_ = true>
struct GemmWgmma
    : WgmmaFinish<GemmWgmma<T, BM_, BN_, SLOTS_, WG_M, WG_N, WG_K, A_K_MAJOR, B_K_MAJOR, PANEL, PANEL_B,
                            DEPTH, RESIDENT, A_UNALIGNED, B_UNALIGNED, STAGED_>> {
  static constexpr bool TF32 = is_same<T, float>, B_K = B_K_MAJOR || TF32;
  static constexpr int BM = BM_, BN = BN_, BK = DEPTH * 32 / sizeof(T), SLOTS = SLOTS_;
  static constexpr int N = BN / WG_N, NT = N / 8, STEPS = DEPTH / WG_K, STEP = 32 / sizeof(T);
  // Each warpgroup has tasks of its own, of BLOCKS times 64 rows.
  static constexpr bool PINGPONG = WG_M * WG_N * WG_K == 1;
  static constexpr int BLOCKS = BM / (64 * WG_M);
  static_assert(PINGPONG ? BM % 64 == 0 && BLOCKS * N <= 384 : WG_M * WG_N * WG_K == 2 && BM == 64 * WG_M,
                "two warpgroups of 64 rows, or one of some times 64");
  static_assert(!PINGPONG || (!TF32 && PANEL == 0 && PANEL_B == 0 && RESIDENT == 0), "");
  static_assert(N % 16 == 0 && N <= 256 && SLOTS >= 2 && SLOTS <= MAX_SLOTS, "");
  static_assert(DEPTH == 4 || (!TF32 && PANEL == 0 && PANEL_B == 0 && DEPTH % WG_K == 0), "");
  static_assert(PANEL == 0 || A_K_MAJOR, "a panel is [m][k]");
  static_assert(PANEL_B == 0 || (B_K_MAJOR && PANEL == 0 && !TF32), "or [n][k]");
  static_assert(RESIDENT == 0 || (PANEL == 0 && PANEL_B == 0 && !TF32), "");
  // A slice along n begins at a panel of 64 columns.
  static_assert(B_K || WG_N == 1 || N % 64 == 0, "");

  static constexpr int DEEP_A = PANEL ? PANEL : BK, DEEP_B = PANEL_B ? PANEL_B : BK;
  static constexpr bool A_REGISTERS = TF32 && PANEL == 0;
  using TileA = Conditional<A_REGISTERS, Tf32Left<BM, A_K_MAJOR>,
                            SwizzledTile<T, A_K_MAJOR ? BM : BK, A_K_MAJOR ? DEEP_A : BM>>;
  using TileB = Conditional<TF32, Tf32Right<BN, B_K_MAJOR>,
                            SwizzledTile<T, B_K ? BN : BK, B_K ? DEEP_B : BN>>;
  // Tiles that their producers round or shift when they have landed.
  static constexpr bool MENDS = TF32 || A_UNALIGNED || B_UNALIGNED;
  static_assert(!MENDS || RESIDENT == 0, "");
  static_assert(!(A_UNALIGNED || B_UNALIGNED) || sizeof(T) == 2, "");
  static_assert(!(A_UNALIGNED && PANEL) && !(B_UNALIGNED && PANEL_B), "");

  static constexpr int A_BYTES = PANEL ? 0 : TileA::BYTES;
  static constexpr int TILE_BYTES = A_BYTES + (PANEL_B || RESIDENT ? 0 : TileB::BYTES);
  static constexpr int MORE_A = A_UNALIGNED ? UnalignedTile<T, TileA::ROWS, TileA::COLS>::MORE_BYTES : 0;
  static constexpr int STAGE_BYTES =
      TILE_BYTES + MORE_A + (B_UNALIGNED ? UnalignedTile<T, TileB::ROWS, TileB::COLS>::MORE_BYTES : 0);
  static constexpr int PANEL_BYTES =
      PANEL ? TileA::BYTES : (PANEL_B ? 1 : RESIDENT) * TileB::BYTES;

  // Of wide tiles whose k is shared, each warpgroup finishes half of the columns: the other's sums of
  // these come as fragments, a quarter of the tile at a time.
  static constexpr bool SHARED_K = WG_K == 2, HALVES = SHARED_K && N > 96;
  static constexpr int OWN = HALVES ? NT / 2 : NT, QUARTER = NT / 4;
  static_assert(!HALVES || NT % 4 == 0, "");
  static constexpr int EXCHANGE_BYTES = HALVES ? CONSUMERS * QUARTER * 16 : 0;

  using Staged = StagedRows<OWN, SHARED_K && !HALVES, PINGPONG>;
  static constexpr int PITCH = Staged::PITCH, WINDOW_LINE = 0;
  static constexpr bool STAGED = STAGED_;
  static_assert(STAGED || PINGPONG, "");
  static constexpr int STAGING_BYTES =
      !STAGED ? 0 : 8 * Staged::BYTES > EXCHANGE_BYTES ? 8 * Staged::BYTES : EXCHANGE_BYTES;

  // Layout: panel | ring | staging. A slot: A | B | more lines of an unaligned A | of B.
  static constexpr int SHARED_BYTES = PANEL_BYTES + SLOTS * STAGE_BYTES + STAGING_BYTES;
  JM_DEVICE static unsigned char* ring(unsigned char* smem) { return smem + PANEL_BYTES; }
  JM_DEVICE static unsigned char* slot(unsigned char* smem, int i) {
    return ring(smem) + i * STAGE_BYTES;
  }
  JM_DEVICE static float* staging(unsigned char* smem) {
    return reinterpret_cast<float*>(smem + PANEL_BYTES + SLOTS * STAGE_BYTES);
  }

  // ---- producers -----------------------------------------------------------------------------

  // Tiles on their way while the producers mend one: 96 KB. A slot is free again when the products of
  // the tile behind it have been issued, so at least two must be full or on their way to it.
  static constexpr int FLYING = 96 * 1024 / STAGE_BYTES > 1 ? 96 * 1024 / STAGE_BYTES : 1;
  static constexpr int LAG = !MENDS ? 0 : FLYING < SLOTS - 2 ? FLYING : SLOTS - 2;

  // Requests all k tiles of a task. AHEAD: of the first tiles one operand, the left one if LEFT, is
  // requested before ready() returns, which waits until the other one may be read; where that is a
  // panel, of as many tiles as there is room for. A resident B comes with the block's first task (at.fresh),
  // and has landed when the first k tile of A has. It, too, waits for ready(): what comes behind a single
  // meeting of the block racecheck (2025.3) takes for a race with what consumers read before it (VGG-16 b2).
  // RepVGG-A0 b32 takes 0.9 % more time so, CLIP b16 1.5 % less, others the same.
  template <int AHEAD, bool LEFT = false, class Ready, class LoadA, class LoadB>
  JM_DEVICE static void produce(unsigned char* smem, Roles* roles, Place& at, int row0, int col0,
                                int k0, int tiles, const Ready& ready, const LoadA& load_a,
                                const LoadB& load_b) {
    const int thread = thread_id() - CONSUMERS;
    const auto rows = [&] {
      if constexpr (IsGathered<LoadA>::value)
        return typename TileA::template Rows<PRODUCERS>(thread, row0, load_a);
      else return 0;
    }();
    const Marching<T, TileA, BK, A_K_MAJOR, A_UNALIGNED, TILE_BYTES, LoadA> a(thread, row0, k0, load_a);
    const Marching<T, TileB, BK, B_K, B_UNALIGNED, TILE_BYTES + MORE_A - A_BYTES, LoadB> b(thread, col0, k0,
                                                                                           load_b);
    const auto fetch_a = [&](int i, int t) {
      if constexpr (PANEL == 0) {
        if constexpr (IsGathered<LoadA>::value)
          TileA::template gather<PRODUCERS>(slot(smem, i), thread, rows, k0 / BK + t, load_a);
        else
          a.fill(slot(smem, i), t);
      }
    };
    const auto fill_b = [&](unsigned char* to, int t) { b.fill(to, t); };
    const auto fetch_b = [&](int i, int t) {
      if constexpr (PANEL_B == 0 && RESIDENT == 0) fill_b(slot(smem, i) + A_BYTES, t);
    };
    const auto settle = [&] {
      if constexpr (RESIDENT > 0) {
        if (at.fresh) {
#pragma unroll 1
          for (int t = 0; t < RESIDENT; ++t) fill_b(smem + t * TileB::BYTES, t);
        }
        at.fresh = false;
      }
    };
    const auto first = [&](int i, int t) {
      if constexpr (LEFT) fetch_a(i, t);
      else fetch_b(i, t);
    };
    constexpr bool ALONE = LEFT && PANEL_B && AHEAD;  // as many as there is room for
    constexpr int FIRST = RESIDENT ? 0 : AHEAD < SLOTS && !ALONE ? AHEAD : SLOTS;
    Place from = at;
#pragma unroll 1
    for (int t = 0; t < FIRST && t < tiles; ++t) {
      mbarrier_wait(&roles->empty[from.slot], from.parity() ^ 1);
      first(from.slot, t);
      from.template next<SLOTS>();
    }
    ready();
    settle();
    Place done = at;  // where the tiles are that have been requested and not mended
    const auto mend = [&](unsigned char* to, int t) {
      if constexpr (TF32) TileB::template finish<PRODUCERS>(to + A_BYTES, thread);
      if constexpr (A_UNALIGNED) a.finish(to, t);
      if constexpr (B_UNALIGNED) b.finish(to + A_BYTES, t);
    };
    // half: the first operand has been requested.
    const auto request = [&](int t, auto half) {
      if (LAG == 0 || t < tiles) {
        if constexpr (!decltype(half)::value) {
          mbarrier_wait(&roles->empty[at.slot], at.parity() ^ 1);
          first(at.slot, t);
        }
        if constexpr (LEFT) fetch_b(at.slot, t);
        else fetch_a(at.slot, t);
        if constexpr (!MENDS) cp_async_mbarrier_arrive(&roles->full[at.slot]);
        at.template next<SLOTS>();
      }
      if constexpr (MENDS) {
        cp_async_commit();
        if (t < LAG) return;
        cp_async_wait<LAG>();
        mend(slot(smem, done.slot), t - LAG);
        mbarrier_arrive(&roles->full[done.slot]);
        done.template next<SLOTS>();
      }
    };
    // In loops of their own: with a branch between the operands of a tile BERT-base took 0.6 to 1.2 % more
    // time, ViT-B/16 b1 1.9, RepVGG-A0 b32 3, 2048x512x2048 alone 7.
    int t = 0;
#pragma unroll 1
    for (; t < FIRST && t < tiles; ++t) request(t, Bool<true>{});
#pragma unroll 1
    for (; t < tiles + LAG; ++t) request(t, Bool<false>{});
  }

  // ---- consumers -----------------------------------------------------------------------------

  struct Accumulators {
    float x[BLOCKS * NT][4];

    JM_DEVICE float (&block(int i))[NT][4] {
      if constexpr (BLOCKS == 1) return x;
      else return reinterpret_cast<float (&)[NT][4]>(x[i * NT]);
    }
  };

  // Whether the next task of this block is this warpgroup's; if not, its tiles are left behind.
  JM_DEVICE static bool takes(Place& at, int tiles) {
    const bool mine = static_cast<int>(at.parity(PASS)) == warpgroup();
    at.flip(PASS);
    if (!mine) {
#pragma unroll 1
      for (int t = 0; t < tiles; ++t) at.template next<SLOTS>();
    }
    return mine;
  }

  using Finish = WgmmaFinish<GemmWgmma>;
  using Finish::first_row, Finish::warpgroup;

  // Of the epilogue's source operand: Source::produce(ring(smem), ...) behind `produce`, for `finish` a
  // reader behind `consume`.
  template <class U>
  using Source = SourceTiles<U, BM, Staged::CHUNK, OWN * 8 / Staged::CHUNK, BN / (OWN * 8), STAGE_BYTES,
                             SLOTS>;
  template <class U>
  JM_DEVICE static auto source(unsigned char* smem, Roles* roles, Place& at) {
    static_assert(WG_K == 1 || HALVES, "rows of the tile are not a warp's own");
    return typename Source<U>::Reader(ring(smem), roles, at, OWN * 8 < BN ? warpgroup() : 0,
                                      first_row());
  }

  // HELD: slots that the epilogue's source takes (Source::GROUPS).
  template <int HELD = 0>
  JM_DEVICE static void multiply(unsigned char* smem, Roles* roles, Place& at, int tiles,
                                 Accumulators& acc) {
    // Known to be uniform, so that descriptors are made in uniform registers: by each thread, with an
    // R2UR for each word, a 64 x 64 tile of k = 768 took its products 1.55 us instead of 1.2.
    const int wg = uniform(warpgroup());
    const bool speaks = speaks_for_warpgroup();
    if constexpr (A_REGISTERS)
      through_registers(smem, roles, at, tiles, acc, wg, speaks);
    else
      from_shared<HELD>(smem, roles, at, tiles, acc, wg, speaks);
  }

  // Of a warpgroup's first slices: its rows or columns, its first step of k. The others of a tile are
  // constant distances behind.
  JM_DEVICE static uint64_t first_a(unsigned char* tile, int wg) {
    return operand_slice<TileA, A_K_MAJOR>(tile, WG_M == 2 ? wg * 64 : 0, WG_K == 2 ? wg * STEP : 0);
  }
  JM_DEVICE static uint64_t first_b(unsigned char* tile, int wg) {
    return operand_slice<TileB, B_K>(tile, WG_N == 2 ? wg * N : 0, WG_K == 2 ? wg * STEP : 0);
  }

  // k tiles at the end of a task that the first warpgroup multiplies alone, and then the second one, beside
  // the epilogue of the first; there, so far ahead, it stays. As many slots are kept meanwhile and one
  // more; HELD: which the epilogue's source needs. 2048x3072x768 takes 1.7 to 2.3 % less time on an H200,
  // with a gelu 1.2 to 1.8, models at batch 16 and 32 as long to 1.2 % less; with 3 or 4 tiles about the same,
  // with all slots 0.5 % less to 3 % more than without. Only of tasks with more tiles than slots: the first
  // one is then never two tasks ahead, of which the second one would hear as of none.
  //
  //   first    | tiles n - 4, n - 3 | n - 2, n - 1 |     epilogue
  //   second   | tiles n - 4, n - 3 |              | n - 2, n - 1 |     epilogue
  template <int HELD>
  static constexpr int LEAD = WG_K == 2 || PINGPONG ? 0 : SLOTS - HELD > 2 ? 2 : SLOTS - HELD > 1 ? 1 : 0;

  template <int HELD>
  JM_DEVICE static void from_shared(unsigned char* smem, Roles* roles, Place& at, int tiles,
                                    Accumulators& acc, int wg, bool speaks) {
    const uint64_t a0 = first_a(PANEL ? smem : ring(smem), wg);
    const uint64_t b0 = first_b(PANEL_B || RESIDENT ? smem : ring(smem) + A_BYTES, wg);
    constexpr int A_TILE = BK / TileA::ACROSS * TileA::PANEL, B_TILE = BK / TileB::ACROSS * TileB::PANEL;
    int before = -1;  // the slot whose products may still run
    const int turn = tiles > SLOTS ? tiles - LEAD<HELD> : -1;
    if constexpr (PINGPONG) {  // the first one's first task has nothing in front of it
      mbarrier_wait(&roles->passed[wg], at.parity(PASSED) ^ (wg == 0));
      at.flip(PASSED);
    }
#pragma unroll 1
    for (int t = 0; t < tiles; ++t) {
      if (LEAD<HELD> > 0 && t == turn && wg == 1) {
        mbarrier_wait(&roles->turn, at.parity(TURN));
        at.flip(TURN);
      }
      mbarrier_wait(&roles->full[at.slot], at.parity());
      if constexpr (MENDS) fence_proxy_async();  // the producers have stored what they have mended
      const uint64_t a = wgmma_descriptor_at(a0, PANEL ? t * A_TILE : at.slot * STAGE_BYTES);
      const uint64_t b = wgmma_descriptor_at(b0, PANEL_B    ? t * B_TILE
                                                 : RESIDENT ? t * TileB::BYTES
                                                            : at.slot * STAGE_BYTES);
      wgmma_fence();
#pragma unroll
      for (int s = 0; s < STEPS; ++s)
#pragma unroll
        for (int i = 0; i < BLOCKS; ++i)
          Wgmma<T>::template run<!A_K_MAJOR, !B_K>(
              acc.block(i), operand_slice<TileA, A_K_MAJOR>(a, i * 64, s * WG_K * STEP),
              operand_slice<TileB, B_K>(b, 0, s * WG_K * STEP));
      wgmma_commit();
      wgmma_wait<1>();
      if (before >= 0 && speaks) give_back(roles, before);
      before = at.slot;
      at.template next<SLOTS>();
    }
    // Each warp for itself: of a single tile nothing says that the others have come as far, and the turn
    // could be back before they have looked for it.
    if (PINGPONG && lane_id() == 0) mbarrier_arrive(&roles->passed[1 - wg]);
    if (LEAD<HELD> > 0 && turn >= 0 && wg == 0 && speaks) mbarrier_arrive(&roles->turn);
    wgmma_wait<0>();
    if (before >= 0 && speaks) give_back(roles, before);
  }

  // For the other one, too, that does not read it.
  JM_DEVICE static void give_back(Roles* roles, int slot) {
#pragma unroll
    for (int i = 0; i < (PINGPONG ? 2 : 1); ++i) mbarrier_arrive(&roles->empty[slot]);
  }

  // A through registers. Each warpgroup waits for its own products, and meanwhile the other one's run:
  // fragments of the next tile, loaded before that wait, were spilled by ptxas in large kernels.
  JM_DEVICE static void through_registers(unsigned char* smem, Roles* roles, Place& at, int tiles,
                                          Accumulators& acc, int wg, bool speaks) {
    const int first = TileA::first(first_row()), wk = WG_K == 2 ? warpgroup() : 0;
    const uint64_t b0 = first_b(ring(smem) + A_BYTES, wg);
#pragma unroll 1
    for (int t = 0; t < tiles; ++t) {
      mbarrier_wait(&roles->full[at.slot], at.parity());
      fence_proxy_async();  // the producers' stores before wgmma's reads
      unsigned char* const left = slot(smem, at.slot);
      uint32_t a[STEPS][4];
#pragma unroll
      for (int s = 0; s < STEPS; ++s)
        TileA::fragment(a[s], shared_offset(left) + first, (s * WG_K + wk) * STEP);
#pragma unroll
      for (int s = 0; s < STEPS; ++s)
#pragma unroll
        for (int i = 0; i < 4; ++i) a[s][i] = to_tf32(bitcast<float>(a[s][i]));
      const uint64_t b = wgmma_descriptor_at(b0, at.slot * STAGE_BYTES);
      wgmma_fence();
#pragma unroll
      for (int s = 0; s < STEPS; ++s)
        wgmma_tf32_registers(acc.x, a[s], operand_slice<TileB, true>(b, 0, s * WG_K * STEP));
      wgmma_commit();
      wgmma_wait<0>();
      if (speaks) mbarrier_arrive(&roles->empty[at.slot]);
      at.template next<SLOTS>();
    }
  }
};

}  // namespace jaxmono
