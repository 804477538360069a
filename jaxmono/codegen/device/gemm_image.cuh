// A convolution on Hopper's wgmma whose image stays in shared memory while the taps pass: implicit GEMM
// without the copies that gathered rows (gemm_wgmma.cuh) make of an image, one for each tap.
//
//   positions     of the padded image, a number each; a tile's are copied once for CHANNELS channels, as
//                 [8 channels][position], pieces of 16 bytes that are not permuted
//   output tile   BM of them: eight neighbours make eight rows of wgmma, those of a warpgroup's eights lie
//                 GROUP apart
//   tap (y, x)    the same rows, y * DOWN + x * RIGHT positions further on: a descriptor may begin anywhere
//
//   producers: weights of tap 0, 1, ... (ring)    image of the first channels | of the next ones
//   consumers: wait for an image; for each tap: wait for its weights, multiply, give the slot back
//
// A 3x3 convolution reads 1.4 images of 8 x 16 positions from L2 so, not 9; 64 rows and 64 columns multiply
// as fast as with permuted lines (H200: 256 cycles for 2 x 64 x 64 x 64, 1024 for 2 x 64 x 256 x 64,
// wherever the rows begin).
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
// the second warpgroup, where they share the rows.
template <int POSITIONS_, int TAPS_Y_, int TAPS_X_, int DOWN_, int RIGHT_, int GROUP_, int SECOND_>
struct ImageShape {
  static constexpr int POSITIONS = POSITIONS_, TAPS_Y = TAPS_Y_, TAPS_X = TAPS_X_, DOWN = DOWN_;
  static constexpr int RIGHT = RIGHT_, GROUP = GROUP_, SECOND = SECOND_;
  static constexpr int TAPS = TAPS_Y * TAPS_X;
  // Odd: the pieces of a position fall on different banks.
  static constexpr int PITCH = POSITIONS | 1;
};

// T: bf16 or f16. BK: channels of an image, and of a slot of the ring. CHUNKS: images of all channels.
template <class T, int BM_, int BN_, int BK_, int SLOTS_, int WG_M, int WG_N, bool B_K, int CHUNKS,
          class Shape>
struct GemmImage : WgmmaFinish<GemmImage<T, BM_, BN_, BK_, SLOTS_, WG_M, WG_N, B_K, CHUNKS, Shape>> {
  static constexpr int BM = BM_, BN = BN_, BK = BK_, SLOTS = SLOTS_;
  static constexpr int N = BN / WG_N, NT = N / 8, PIECES = BK / 8, TAPS = Shape::TAPS;
  static constexpr int IMAGES = 2;
  static_assert(WG_M * WG_N == 2 && BM == 64 * WG_M, "two warpgroups of 64 rows");
  static_assert(N % 16 == 0 && N <= 256 && BK % 16 == 0, "");
  static_assert(SLOTS >= 2 && SLOTS + IMAGES <= MAX_SLOTS, "the images have barriers of the ring's");
  static_assert(B_K || WG_N == 1 || N % 64 == 0, "a slice along n begins at a panel of 64 columns");
  static constexpr bool SHARED_K = false, HALVES = false;  // of WgmmaFinish
  static constexpr int OWN = NT;

  using TileB = SwizzledTile<T, B_K ? BN : BK, B_K ? BK : BN>;
  static constexpr int STAGE_BYTES = TileB::BYTES, IMAGE_BYTES = Shape::PITCH * PIECES * 16;
  static constexpr int PANEL_BYTES = (IMAGES * IMAGE_BYTES + 1023) / 1024 * 1024;
  using Staged = StagedRows<OWN, false>;
  static constexpr int PITCH = Staged::PITCH, STAGING_BYTES = 8 * Staged::BYTES;

  // Layout: images | ring | staging.
  static constexpr int SHARED_BYTES = PANEL_BYTES + SLOTS * STAGE_BYTES + STAGING_BYTES;
  JM_DEVICE static unsigned char* slot(unsigned char* smem, int i) {
    return smem + PANEL_BYTES + i * STAGE_BYTES;
  }
  JM_DEVICE static float* staging(unsigned char* smem) {
    return reinterpret_cast<float*>(slot(smem, SLOTS));
  }

  // Both roles: the buffer of the image that comes next, and its barriers' number.
  JM_DEVICE static int next_image(const Place& at) { return static_cast<int>(at.parity(IMAGE)); }
  JM_DEVICE static void pass_image(Place& at) {
    at.flip(SLOTS + next_image(at));
    at.flip(IMAGE);
  }

  // ---- producers -----------------------------------------------------------------------------

  // AHEAD: taps whose weights are requested before ready() returns, which waits until the image may be
  // read. image(to, position of the tile, channel): copies 8 channels, or zeros.
  template <int AHEAD, class Ready, class Image, class LoadB>
  JM_DEVICE static void produce(unsigned char* smem, Roles* roles, Place& at, int col0, const Ready& ready,
                                const Image& image, const LoadB& load_b) {
    const int thread = thread_id() - CONSUMERS;
    const Marching<T, TileB, BK, B_K, false, 0, LoadB> b(thread, col0, 0, load_b);
    const auto weights = [&](int chunk, int tap) {
      mbarrier_wait(&roles->empty[at.slot], at.parity() ^ 1);
      b.fill(slot(smem, at.slot), tap * CHUNKS + chunk);
      cp_async_mbarrier_arrive(&roles->full[at.slot]);
      at.template next<SLOTS>();
    };
    const auto picture = [&](int chunk) {
      const int number = next_image(at);
      mbarrier_wait(&roles->empty[SLOTS + number], at.parity(SLOTS + number) ^ 1);
      unsigned char* const to = smem + number * IMAGE_BYTES;
#pragma unroll 2
      for (int i = thread; i < Shape::POSITIONS * PIECES; i += PRODUCERS) {
        const int position = static_cast<int>(static_cast<unsigned>(i) / PIECES);
        const int piece = static_cast<int>(static_cast<unsigned>(i) % PIECES);
        image(static_cast<void*>(to + (piece * Shape::PITCH + position) * 16), position,
              chunk * BK + piece * 8);
      }
      cp_async_mbarrier_arrive(&roles->full[SLOTS + number]);
      pass_image(at);
    };
    constexpr int FIRST = AHEAD < SLOTS ? AHEAD < TAPS ? AHEAD : TAPS : SLOTS < TAPS ? SLOTS : TAPS;
#pragma unroll 1
    for (int tap = 0; tap < FIRST; ++tap) weights(0, tap);
    ready();
    picture(0);
    int chunk = 0, tap = FIRST;
#pragma unroll 1
    for (int t = FIRST; t < CHUNKS * TAPS; ++t, ++tap) {
      if (tap == TAPS) {
        tap = 0;
        picture(++chunk);
      }
      weights(chunk, tap);
    }
  }

  // ---- consumers -----------------------------------------------------------------------------

  struct Accumulators {
    float x[NT][4];
  };

  JM_DEVICE static int warpgroup() { return fresh(warp_id()) / 4; }
  JM_DEVICE static int first_row() {
    const int warp = fresh(warp_id());
    return (WG_M == 2 ? warp / 4 * 64 : 0) + warp % 4 * 16;
  }
  JM_DEVICE static int first_col() { return WG_N == 2 ? warpgroup() * N : 0; }
  JM_DEVICE static int own_col() { return first_col(); }

  template <int HELD = 0>
  JM_DEVICE static void multiply(unsigned char* smem, Roles* roles, Place& at, int tiles,
                                 Accumulators& acc) {
    static_assert(HELD == 0, "sources come through a ring whose slots they fit");
    const int wg = uniform(warpgroup());
    const bool speaks = speaks_for_warpgroup();
    const uint64_t a0 = wgmma_descriptor<16>(smem + (WG_M == 2 ? wg * (Shape::SECOND * 16) : 0),
                                             Shape::PITCH * 16, Shape::GROUP * 16);
    const uint64_t b0 = operand_slice<TileB, B_K>(slot(smem, 0), WG_N == 2 ? wg * N : 0, 0);
    int before = -1, passed = -1;  // the slot and the image whose products may still run
    int number = 0, tap = 0, across = 0, from = 0;
#pragma unroll 1
    for (int t = 0; t < tiles; ++t) {
      if (tap == 0) {
        number = next_image(at);
        mbarrier_wait(&roles->full[SLOTS + number], at.parity(SLOTS + number));
        pass_image(at);
      }
      mbarrier_wait(&roles->full[at.slot], at.parity());
      const uint64_t a = wgmma_descriptor_at(a0, number * IMAGE_BYTES + from * 16);
      const uint64_t b = wgmma_descriptor_at(b0, at.slot * STAGE_BYTES);
      wgmma_fence();
#pragma unroll
      for (int s = 0; s < BK / 16; ++s)
        wgmma<T, false, !B_K>(acc.x, wgmma_descriptor_at(a, s * 2 * Shape::PITCH * 16),
                              operand_slice<TileB, B_K>(b, 0, s * 16));
      wgmma_commit();
      wgmma_wait<1>();
      if (before >= 0 && speaks) mbarrier_arrive(&roles->empty[before]);
      if (passed >= 0 && speaks) mbarrier_arrive(&roles->empty[SLOTS + passed]);
      passed = -1;
      before = at.slot;
      at.template next<SLOTS>();
      from += Shape::RIGHT;
      if (++across == Shape::TAPS_X) {
        across = 0;
        from += Shape::DOWN - Shape::TAPS_X * Shape::RIGHT;
      }
      if (++tap == TAPS) {
        tap = 0;
        from = 0;
        passed = number;
      }
    }
    wgmma_wait<0>();
    if (before >= 0 && speaks) mbarrier_arrive(&roles->empty[before]);
    if (passed >= 0 && speaks) mbarrier_arrive(&roles->empty[SLOTS + passed]);
  }
};

}  // namespace jaxmono
