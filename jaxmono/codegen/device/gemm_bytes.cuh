// One output tile of a contraction whose weights are stored as bytes: by rows of bytes (integers with sums in
// s32, 8-bit floats), or widened to the 16 bits of the rows, from 4 bits (four_bits.cuh), too, and with scales of
// groups of k; or as f32, rounded to these; or as 16 bits in rows that begin anywhere. They are the left operand of
// wgmma, in registers (weights_left.cuh, byte_weights.cuh, float_weights.cuh, unaligned_weights.cuh): it reads bytes
// along k only, and JAX's x @ w has weights [k][n].
//
// Producers bring both operands by cp.async, weights as they lie in memory.
#pragma once
#include "jaxmono/byte_weights.cuh"
#include "jaxmono/float_weights.cuh"
#include "jaxmono/marching.cuh"
#include "jaxmono/unaligned_weights.cuh"
#include "jaxmono/weights_left.cuh"

namespace jaxmono {

template <class W, class X, int BN, bool W_K_MAJOR, int LINES>
struct WeightsOf {
  using Type = ByteWeights<W, X, BN, W_K_MAJOR, LINES>;
};
template <class X, int BN, bool W_K_MAJOR, int LINES>
struct WeightsOf<float, X, BN, W_K_MAJOR, LINES> {
  using Type = FloatWeights<X, BN, W_K_MAJOR, LINES>;
};
template <class T, int ROW, int FIRST, class X, int BN, int LINES>
struct WeightsOf<ShiftedRows<T, ROW, FIRST>, X, BN, false, LINES> {
  using Type = UnalignedWeights<ShiftedRows<T, ROW, FIRST>, X, BN, LINES>;
};
template <class W, class X, int BN, bool W_K_MAJOR, int LINES>
using StoredWeights = typename WeightsOf<W, X, BN, W_K_MAJOR, LINES>::Type;

// W, X: types of the weights and the rows. W_K_MAJOR: weights are [n][k]. LINES: of 128 bytes of a row in a
// k tile. The others: as of WeightsLeft.
template <class W, class X, int BM, int BN, int SLOTS, int WG_M, int WG_N, int WG_K, bool W_K_MAJOR,
          int LINES = 1, int PANEL = 0>
struct GemmBytes
    : WeightsLeft<StoredWeights<W, X, BN, W_K_MAJOR, LINES>, SwizzledTile<X, BM, LINES * 128 / sizeof(X)>, BM,
                  BN, SLOTS, WG_M, WG_N, WG_K, PANEL> {
  using Weights = StoredWeights<W, X, BN, W_K_MAJOR, LINES>;
  using TileX = SwizzledTile<X, BM, Weights::BK>;
  using Left = WeightsLeft<Weights, TileX, BM, BN, SLOTS, WG_M, WG_N, WG_K, PANEL>;
  static constexpr int BK = Weights::BK;

  // Requests a task's scales into the L2, by the producers. PER: elements of k that share one. address(n, k), of the
  // whole operand: where it is; a column's (W_K_MAJOR), or a row's, lie beside each other.
  template <int N, int K, int PER, class Of>
  JM_DEVICE static void touch_scales(int n0, int k0, int tiles, const Of& address) {
    constexpr int LINE = 32;
    const int groups = (tiles * BK + PER - 1) / PER, lines = W_K_MAJOR ? (groups + LINE - 1) / LINE : BN / LINE;
#pragma unroll 1
    for (int i = fresh(thread_id()) - CONSUMERS; i < lines * (W_K_MAJOR ? BN : groups); i += PRODUCERS) {
      const int row = i / lines, at = i % lines * LINE;
      const int n = n0 + (W_K_MAJOR ? row : at), k = k0 + (W_K_MAJOR ? at : row) * PER;
      if (n < N && k < K) prefetch_l2(address(n, k));
    }
  }

  // Of the first AHEAD tiles the weights do not wait for ready(), beside a panel of as many as there is room
  // for.
  template <int AHEAD, class Ready, class LoadX, class LoadW>
  JM_DEVICE static void produce(unsigned char* smem, Roles* roles, Place& at, int m0, int n0, int k0,
                                int tiles, const Ready& ready, const LoadX& load_x,
                                const LoadW& load_w) {
    const int thread = fresh(thread_id()) - CONSUMERS;
    constexpr int PER = Weights::PER;
    const auto from = Weights::Tile::template begin<PRODUCERS>(thread, W_K_MAJOR ? n0 : k0,
                                                               (W_K_MAJOR ? k0 : n0) / PER, load_w);
    const auto x = [&] {
      if constexpr (PANEL > 0) return 0;
      else return Marching<X, TileX, BK, true, false, 0, LoadX>(thread, m0, k0, load_x);
    }();
    const auto fill = [&](int slot, int t) {
      const int k = k0 + t * BK;
      unsigned char* const to = Left::slot(smem, slot);
      const auto ahead = [&] {
        if constexpr (IsStrided<LoadW>::value) return from + t * (W_K_MAJOR ? BK / PER : BK * LoadW::PITCH);
        else return 0;
      }();
      Weights::Tile::template fill<PRODUCERS>(to, thread, W_K_MAJOR ? n0 : k,
                                              (W_K_MAJOR ? k : n0) / PER, load_w, ahead);
    };
    constexpr int FIRST = PANEL && AHEAD ? SLOTS : AHEAD < SLOTS ? AHEAD : SLOTS;
    Left::template request<FIRST>(roles, at, tiles, ready, fill, [&](int slot, int t) {
      if constexpr (PANEL == 0) x.fill(Left::slot(smem, slot) + Weights::BYTES, t);
    });
  }
};

}  // namespace jaxmono
