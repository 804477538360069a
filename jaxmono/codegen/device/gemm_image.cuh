// A convolution on Hopper's wgmma whose image stays in shared memory while the taps pass: implicit GEMM
// without the copies that gathered rows (gemm_wgmma.cuh) make of an image, one for each tap.
//
//   positions     of the padded image, a number each; a tile's are copied once for BK channels, a line of
//                 128 bytes for 64 of them
//   output tile   BM of them: eight neighbours make eight rows of wgmma, those of a warpgroup's eights lie
//                 GROUP apart
//   tap (y, x)    the same rows, y * DOWN + x * RIGHT positions further on: a descriptor may begin at any line
//
//   producers: weights of tap 0, 1, ... (ring); with the last ones the image of the next channels
//   consumers: wait for an image; for each tap: wait for its weights, multiply, give the slot back
//
// A 3x3 convolution reads 1.4 images of 8 x 16 positions so, not 9, and as many fewer bytes pass through
// shared memory. As [8 channels][position], pieces that are not permuted, the products are as fast, but
// cp.async takes 15 times as long: it writes lines (H200: 22.5 KB of 128 threads in 6250 cycles, 417 so).
#pragma once
#include "jaxmono/marching.cuh"
#include "jaxmono/opaque.cuh"
#include "jaxmono/ptx.cuh"
#include "jaxmono/roles.cuh"
#include "jaxmono/staged_rows.cuh"
#include "jaxmono/swizzled_tile.cuh"
#include "jaxmono/types.cuh"
#include "jaxmono/warp.cuh"
#include "jaxmono/wgmma_finish.cuh"
#include "jaxmono/wgmma_operand.cuh"

namespace jaxmono {

// How the positions of a tile lie (codegen/image.py). POSITIONS: that are copied. SECOND: the first one of
// the second warpgroup, where they share the rows. COPY: bytes that are aligned at all positions. INNER:
// channels that are in memory, where the others are zeros; 0: all of them are.
template <int POSITIONS_, int TAPS_Y_, int TAPS_X_, int DOWN_, int RIGHT_, int GROUP_, int SECOND_,
          int COPY_ = 16, int INNER_ = 0>
struct ImageShape {
  static constexpr int COPY = COPY_, INNER = INNER_;
  static constexpr int POSITIONS = POSITIONS_, TAPS_Y = TAPS_Y_, TAPS_X = TAPS_X_, DOWN = DOWN_;
  static constexpr int RIGHT = RIGHT_, GROUP = GROUP_, SECOND = SECOND_;
  static constexpr int TAPS = TAPS_Y * TAPS_X;
};

// T: bf16 or f16. BK: channels of an image, and of a slot of the ring. CHUNKS: images of all channels.
// IMAGES: buffers, 2 or 4. SLOTS: 0 if all weights stay, which producers load once for all of a block's tasks.
// SPLIT: blocks that share the channels of a tile.
template <class T, int BM_, int BN_, int BK_, int SLOTS_, int IMAGES, int WG_M, int WG_N, bool B_K,
          int CHUNKS, class Shape, int SPLIT = 1>
struct GemmImage
    : WgmmaFinish<GemmImage<T, BM_, BN_, BK_, SLOTS_, IMAGES, WG_M, WG_N, B_K, CHUNKS, Shape, SPLIT>> {
  static constexpr int BM = BM_, BN = BN_, BK = BK_, SLOTS = SLOTS_;
  static constexpr int N = BN / WG_N, NT = N / 8, TAPS = Shape::TAPS;
  static_assert(WG_M * WG_N == 2 && BM == 64 * WG_M, "two warpgroups of 64 rows");
  static_assert(IMAGES == 2 || IMAGES == 4, "their number counts modulo 4");
  static_assert(N % 16 == 0 && N <= 256 && BK % 16 == 0, "");
  static_assert(SLOTS != 1 && SLOTS + IMAGES <= MAX_SLOTS, "the images have barriers of the ring's");
  static constexpr bool RESIDENT = SLOTS == 0;
  static constexpr int OWN_CHUNKS = CHUNKS / SPLIT;  // of a task
  static_assert(CHUNKS % SPLIT == 0 && (SPLIT == 1 || !RESIDENT), "");
  static_assert(B_K || WG_N == 1 || N % 64 == 0, "a slice along n begins at a panel of 64 columns");
  static constexpr bool SHARED_K = false, HALVES = false;  // of WgmmaFinish
  static constexpr int OWN = NT, WINDOW_LINE = 8;

  using TileA = SwizzledTile<T, (Shape::POSITIONS + 7) / 8 * 8, BK>;
  using TileB = SwizzledTile<T, B_K ? BN : BK, B_K ? BK : BN>;
  static constexpr int STAGE_BYTES = TileB::BYTES, PANEL_BYTES = IMAGES * TileA::BYTES;
  static constexpr int TILES_B = RESIDENT ? CHUNKS * TAPS : SLOTS;
  using Staged = StagedRows<OWN, false>;
  static constexpr int PITCH = Staged::PITCH, STAGING_BYTES = 8 * Staged::BYTES;

  // Layout: images | ring, or all weights in the order of their products | staging.
  static constexpr int SHARED_BYTES = PANEL_BYTES + TILES_B * STAGE_BYTES + STAGING_BYTES;
  JM_DEVICE static unsigned char* slot(unsigned char* smem, int i) {
    return smem + PANEL_BYTES + i * STAGE_BYTES;
  }
  JM_DEVICE static float* staging(unsigned char* smem) {
    return reinterpret_cast<float*>(slot(smem, TILES_B));
  }

  // Both roles: the buffer of the image that comes next, and its barriers' number.
  JM_DEVICE static int next_image(const Place& at) {
    return static_cast<int>(at.phase >> IMAGE & (IMAGES - 1));
  }
  JM_DEVICE static void pass_image(Place& at) {
    at.flip(SLOTS + next_image(at));
    at.phase = (at.phase & ~(3u << IMAGE)) | (at.phase + (1u << IMAGE) & 3u << IMAGE);
  }

  // ---- producers -----------------------------------------------------------------------------

  // Eight threads copy a position, a warp four. Where they are, each thread finds once a task for one of
  // PER times four, and hands to the eight.
  static constexpr int STEP = PRODUCERS / 8, PER = 8;
  static constexpr int COUNT = (Shape::POSITIONS + STEP - 1) / STEP, PARTS = (COUNT + PER - 1) / PER;
  // Taps before the image of the next channels: of two buffers its own is free when the consumers have seen
  // a tap of these ones.
  static constexpr int SOON = IMAGES > 2 ? 0 : SLOTS + 1 < TAPS ? SLOTS + 1 : TAPS - 1;

  // AHEAD: taps whose weights are requested before a grid barrier opens. ready(): waits for it. place(p):
  // the first element of position p of the tile, less than 0 where it is zeros. from: element 0. own: the
  // first of this task's chunks.
  template <int AHEAD, class Ready, class Where, class LoadB>
  JM_DEVICE static void produce(unsigned char* smem, Roles* roles, Place& at, int col0, const Ready& ready,
                                const T* from, const Where& place, const LoadB& load_b, int own = 0) {
    const int thread = thread_id() - CONSUMERS;
    const Marching<T, TileB, BK, B_K, false, 0, LoadB> b(thread, col0, 0, load_b);
    const auto weights = [&](int chunk, int tap) {
      if constexpr (RESIDENT) {
        b.fill(slot(smem, chunk * TAPS + tap), tap * CHUNKS + chunk);
      } else {
        mbarrier_wait(&roles->empty[at.slot], at.parity() ^ 1);
        b.fill(slot(smem, at.slot), tap * CHUNKS + own + chunk);
        cp_async_mbarrier_arrive(&roles->full[at.slot]);
        at.template next<SLOTS>();
      }
    };
    int places[PARTS];
    const int lane = fresh(lane_id()), first = static_cast<int>(static_cast<unsigned>(thread) / 8) - lane / 8;
#pragma unroll
    for (int i = 0; i < PARTS; ++i) places[i] = place((i * PER + lane / 4) * STEP + first + lane % 4);
    const auto picture = [&](int chunk) {
      const int number = next_image(at);
      mbarrier_wait(&roles->empty[SLOTS + number], at.parity(SLOTS + number) ^ 1);
      copy(smem + number * TileA::BYTES, first + lane / 8, lane, places, from, (own + chunk) * BK);
      cp_async_mbarrier_arrive(&roles->full[SLOTS + number]);
      pass_image(at);
    };
    if constexpr (RESIDENT) {
      ready();
      if (at.fresh) {  // landed when the first image has
#pragma unroll 1
        for (int t = 0; t < CHUNKS * TAPS; ++t) weights(t / TAPS, t % TAPS);
        at.fresh = false;
      }
#pragma unroll 1
      for (int chunk = 0; chunk < CHUNKS; ++chunk) picture(chunk);
      return;
    }
    constexpr int FIRST = AHEAD < SLOTS ? AHEAD < TAPS ? AHEAD : TAPS : SLOTS < TAPS ? SLOTS : TAPS;
    int chunk = 0, tap = 0;
    if (at.closed()) {
#pragma unroll 1
      for (; tap < FIRST; ++tap) weights(0, tap);
    }
    ready();
    picture(0);
#pragma unroll 1
    for (; chunk < OWN_CHUNKS; ++chunk, tap = 0) {
      int next = chunk + 1;
#pragma unroll 1
      for (; tap < TAPS || next < OWN_CHUNKS; ++tap) {
        if (tap < TAPS) weights(chunk, tap);
        if (tap < SOON || next == OWN_CHUNKS) continue;
        picture(next);
        next = OWN_CHUNKS;
      }
    }
  }

  // row: of this thread's first position. places: as above. k: the first channel.
  JM_DEVICE static void copy(unsigned char* image, int row, int lane, const int (&places)[PARTS],
                             const T* from, int k) {
    static_assert(STEP % 8 == 0, "one permutation for all lines of a thread");
    const int c0 = lane % 8 * TileA::PIECE;
    T* const to = TileA::at(image, row, c0);
    from += k + c0;
#pragma unroll
    for (int part = 0; part < PARTS; ++part) {
#pragma unroll  // by 4 or 2 some convolutions take 3 to 6 % longer
      for (int i = 0; i < PER; ++i) {
        const int found = shfl_idx(places[part], i * 4 + lane / 8), down = (part * PER + i) * STEP;
        if (down + STEP > Shape::POSITIONS && row + down >= Shape::POSITIONS) continue;
        const T* const here = from + found;
#pragma unroll
        for (int c = 0; c < BK; c += TileA::ACROSS)
          if (c + TileA::ACROSS <= BK || c + c0 < BK)
            piece(to + (c / TileA::ACROSS * TileA::PANEL + down * 128) / int(sizeof(T)), here + c,
                  found >= 0, Shape::INNER - k - c - c0);
      }
    }
  }

  // Eight channels; of those that are not all in memory the first `left` of them.
  JM_DEVICE static void piece(T* to, const T* from, bool there, int left) {
    if constexpr (Shape::COPY == 16) {
      cp_async_16(to, from, there && (Shape::INNER == 0 || left > 0));
    } else {
#pragma unroll
      for (int e = 0; e < 8; e += Shape::COPY / 2) {
        if constexpr (Shape::COPY == 8) cp_async_8(to + e, from + e, there && e < left);
        else cp_async_4(to + e, from + e, there && e < left);
      }
    }
  }

  // ---- consumers -----------------------------------------------------------------------------

  static constexpr bool PINGPONG = false, STAGED = true;
  static constexpr int BLOCKS = 1;
  struct Accumulators {
    float x[NT][4];

    JM_DEVICE float (&block(int))[NT][4] { return x; }
  };

  template <int HELD = 0>
  JM_DEVICE static void multiply(unsigned char* smem, Roles* roles, Place& at, int, Accumulators& acc) {
    static_assert(HELD == 0, "sources come through a ring whose slots they fit");
    const int wg = uniform(WgmmaFinish<GemmImage>::warpgroup());
    const uint64_t a0 = wgmma_descriptor(smem + (WG_M == 2 ? wg * (Shape::SECOND * 128) : 0), 16,
                                         Shape::GROUP * 128);
    const uint64_t b0 = operand_slice<TileB, B_K>(slot(smem, 0), WG_N == 2 ? wg * N : 0, 0);
    if constexpr (RESIDENT) by_image(roles, at, acc, wg, a0, b0);
    else by_tap(roles, at, acc, a0, b0);
  }

 private:
  JM_DEVICE static int await_image(Roles* roles, Place& at) {
    const int number = next_image(at);
    mbarrier_wait(&roles->full[SLOTS + number], at.parity(SLOTS + number));
    pass_image(at);
    return number;
  }

  JM_DEVICE static void products(Accumulators& acc, uint64_t a, uint64_t b) {
    wgmma_fence();
#pragma unroll
    for (int s = 0; s < BK / 16; ++s)
      wgmma<T, false, !B_K>(acc.x, operand_slice<TileA, true>(a, 0, s * 16),
                            operand_slice<TileB, B_K>(b, 0, s * 16));
    wgmma_commit();
  }

  // Products of taps that may be in flight behind those that are issued: of small ones a third has to wait
  // for a warp that waits for the first. Not in kernels for which ptxas has not the registers then, and lets
  // all products wait for each other (three of the six of Stable Diffusion's UNet, and none so).
#ifdef JM_IN_TURN
  static constexpr int LAG = 1;
#else
  static constexpr int LAG = SLOTS > 3 && Shape::TAPS_X > 1 && BK * N <= 64 * 96 ? 2 : 1;
#endif

  JM_DEVICE static void by_tap(Roles* roles, Place& at, Accumulators& acc, uint64_t a0, uint64_t b0) {
    const bool speaks = speaks_for_warpgroup();
    at.phase = opaque(at.phase);  // in the uniform datapath its ops would wait longer for each other
    const auto give_back = [&](int taps) {  // the slot of so many taps ago
      const int i = at.slot - taps;
      if (speaks) mbarrier_arrive(&roles->empty[i < 0 ? i + SLOTS : i]);
    };
    int number = 0;
#pragma unroll 1
    for (int chunk = 0; chunk < OWN_CHUNKS; ++chunk) {
      number = await_image(roles, at);
      uint64_t a = wgmma_descriptor_at(a0, number * TileA::BYTES);
#pragma unroll 1
      for (int y = 0; y < Shape::TAPS_Y; ++y) {
#pragma unroll
        for (int x = 0; x < Shape::TAPS_X; ++x) {
          mbarrier_wait(&roles->full[at.slot], at.parity());
          products(acc, wgmma_descriptor_at(a, x * Shape::RIGHT * 128),
                   wgmma_descriptor_at(b0, at.slot * STAGE_BYTES));
          wgmma_wait<LAG>();
          const bool later = chunk > 0 || y > 0;  // products of taps before are done
          if (x >= LAG || later) give_back(LAG);
          if (x == LAG - 1 && y == 0 && chunk > 0 && speaks)  // and of the image before
            mbarrier_arrive(&roles->empty[SLOTS + (number - 1 & (IMAGES - 1))]);
          at.template next<SLOTS>();
        }
        a = wgmma_descriptor_at(a, Shape::DOWN * 128);
      }
    }
    wgmma_wait<0>();
    if (LAG == 2) give_back(2);
    give_back(1);
    if (speaks) mbarrier_arrive(&roles->empty[SLOTS + number]);
  }

  // All weights stay: nothing is waited for between the taps of an image. The second warpgroup begins when
  // the products of the first one are done, and from then on multiplies beside its epilogue.
  JM_DEVICE static void by_image(Roles* roles, Place& at, Accumulators& acc, int wg, uint64_t a0,
                                 uint64_t b0) {
    at.phase = opaque(at.phase);
#pragma unroll 1
    for (int chunk = 0; chunk < CHUNKS; ++chunk) {
      const int number = await_image(roles, at);
      if (wg == 1) mbarrier_wait(&roles->turns[number], at.parity(TURNS + number));
      at.flip(TURNS + number);
      uint64_t a = wgmma_descriptor_at(a0, number * TileA::BYTES);
      uint64_t b = wgmma_descriptor_at(b0, chunk * TAPS * STAGE_BYTES);
#pragma unroll 1
      for (int y = 0; y < Shape::TAPS_Y; ++y) {
#pragma unroll
        for (int x = 0; x < Shape::TAPS_X; ++x)
          products(acc, wgmma_descriptor_at(a, x * Shape::RIGHT * 128),
                   wgmma_descriptor_at(b, x * STAGE_BYTES));
        a = wgmma_descriptor_at(a, Shape::DOWN * 128);
        b = wgmma_descriptor_at(b, Shape::TAPS_X * STAGE_BYTES);
      }
      wgmma_wait<0>();
      if (wg == 0 && speaks_for_warpgroup()) mbarrier_arrive(&roles->turns[number]);
      if (speaks_for_warpgroup()) mbarrier_arrive(&roles->empty[SLOTS + number]);
    }
  }
};

}  // namespace jaxmono
