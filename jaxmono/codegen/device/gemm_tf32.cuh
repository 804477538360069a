// One output tile of a contraction of f32 as tf32: the weights are the left operand of wgmma and pass
// through registers (weights_left.cuh); x comes by the tensor memory accelerator, or is gathered.
//
// wgmma cuts the low 13 bits of an f32 off, and reads 32-bit elements along k only. In registers rounding
// is an instruction an element, and any layout of the weights can be read; the accelerator rounds x on its
// way into shared memory, which then nobody has to pass through once more: 128 x 256 x 32 products, 1024
// clocks, pass 1024 lines of 128 bytes. gemm_wgmma.cuh, for operands that the accelerator cannot take so,
// rounds and transposes them there, 1536 lines; on an H100 2048 cubed takes 70 us so, and 49 here,
// 1280x3072x768 31 and 23, 1280x768x3072 33 and 28, 1280x768x768 13.2 and 11.6.
//
// With clusters of two blocks that load the rows for each other (multicast) tiles of 256 rows and 128 columns
// took 0.95 to 1.10 of the time, smaller ones that would be chosen 1.03 to 1.2, BERT-base b32 0.99, BERT-large
// b16 1.03. (Not for the launch: a kernel of nothing else takes as long in clusters of two or four, cooperative
// or not.) Low bands of tiles are worth more (_F32_BAND in dot_wgmma.py).
//
// The accelerator knows rows at constant distances. A convolution's are gathered by the producers, who do
// not round: they have to lie rounded in memory (fusion/round_rows.py).
#pragma once
#include "jaxmono/tensor_maps.cuh"
#include "jaxmono/tf32_tile.cuh"
#include "jaxmono/weights_left.cuh"

namespace jaxmono {

// Weights of f32: rounded in registers.
template <int BN, bool K_MAJOR>
struct Tf32Weights : Tf32Left<BN, K_MAJOR> {
  using Tile = Tf32Left<BN, K_MAJOR>;
  using Row = float;
  using Sum = float;
  static constexpr int BK = 32, STEP = 8, STEPS = 4;
  static constexpr bool TOGETHER = false;
  static constexpr int EACH = 1;

  // at: shared_offset(tile) + first(column).
  template <int COUNT>
  JM_DEVICE static void fragments(uint32_t (&x)[COUNT][4], int at) {
#pragma unroll
    for (int s = 0; s < COUNT; ++s) Tile::fragment(x[s], at, s * STEP);
#pragma unroll
    for (int s = 0; s < COUNT; ++s)
#pragma unroll
      for (int i = 0; i < 4; ++i) x[s][i] = to_tf32(bitcast<float>(x[s][i]));
  }
  template <int NT>
  JM_DEVICE static void multiply(float (&sums)[NT][4], const uint32_t (&own)[4], uint64_t x) {
    wgmma_tf32_registers(sums, own, x);
  }
};

// W_K_MAJOR: weights are [n][k]. The others: as of WeightsLeft.
template <int BM, int BN, int SLOTS, int WG_M, int WG_N, bool W_K_MAJOR>
struct GemmTf32 : WeightsLeft<Tf32Weights<BN, W_K_MAJOR>, SwizzledTile<float, BM, 32>, BM, BN, SLOTS, WG_M,
                              WG_N, 1> {
  using TileW = Tf32Weights<BN, W_K_MAJOR>;
  using TileX = SwizzledTile<float, BM, 32>;
  using Left = WeightsLeft<TileW, TileX, BM, BN, SLOTS, WG_M, WG_N, 1>;
  static_assert(SLOTS < TensorMaps::SLOTS, "");
  static constexpr int BK = 32, STAGE_BYTES = TileW::BYTES + TileX::BYTES;

  // Of the first AHEAD tiles the weights do not wait for ready().
  template <int AHEAD, class Ready, class LoadX, class LoadW>
  JM_DEVICE static void produce(unsigned char* smem, Roles* roles, Place& at, int m0, int n0, int k0,
                                int tiles, const Ready& ready, const LoadX& load_x,
                                const LoadW& load_w) {
    const int thread = fresh(thread_id()) - CONSUMERS;
    const float* from = nullptr;
    if constexpr (IsStrided<LoadW>::value)
      from = opaque(TileW::template begin<PRODUCERS>(thread, W_K_MAJOR ? n0 : k0, W_K_MAJOR ? k0 : n0,
                                                     load_w));
    const auto fill = [&](int slot, int t) {
      const int k = k0 + t * BK;
      unsigned char* const to = smem + slot * STAGE_BYTES;
      if constexpr (IsStrided<LoadW>::value)
        TileW::template fill<PRODUCERS>(to, thread, W_K_MAJOR ? n0 : k, W_K_MAJOR ? k : n0, load_w,
                                        from + t * (W_K_MAJOR ? BK : BK * LoadW::PITCH));
      else
        TileW::template fill<PRODUCERS>(to, thread, W_K_MAJOR ? n0 : k, W_K_MAJOR ? k : n0, load_w);
    };
    constexpr bool GATHERED = IsGathered<LoadX>::value;
    // Of the last tile only rows that there are, by eights (a swizzle): those outside the matrix cost the
    // accelerator more than others. 2048x8192x2048 in tiles of 224 rows took 275 us so, and 211 without.
    const int box = [&] {
      if constexpr (GATHERED) return 0;
      else return LoadX::CHECKS_ROWS ? min(BM, (load_x.rows - m0 + 7) / 8 * 8) : BM;
    }();
    const auto source = [&] {  // the rows' places, or the map of all
      if constexpr (GATHERED) return typename TileX::template Rows<PRODUCERS>(thread, m0, load_x);
      else return thread < WARP ? tensor_map(roles, load_x, box) : nullptr;
    }();
    constexpr int FIRST = AHEAD < SLOTS ? AHEAD : SLOTS;
    const auto opened = [&] {
      ready();
      if (!GATHERED && thread == 0)
        fence_proxy_async_all();  // behind what blocks wrote, and what the ring's place held
    };
    Left::template request<FIRST>(roles, at, tiles, opened, fill, [&](int slot, int t) {
      unsigned char* const to = smem + slot * STAGE_BYTES + TileW::BYTES;
      if constexpr (GATHERED)
        TileX::template gather<PRODUCERS>(to, thread, source, k0 / BK + t, load_x);
      else if (thread == 0)
        tma_load(to, source, m0, k0 + t * BK, box, &roles->full[slot]);
    });
  }
};

}  // namespace jaxmono
