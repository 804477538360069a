// The products of a stream of weights in multiply-adds (gemv.cuh), of the pieces that a thread has requested
// itself, in f32:
//
//   [n][k]   U rows' pieces times a piece of x: the lanes of a warp share the sums of M x U
//   [k][n]   U rows' pieces times U elements of x: a thread has sums of a piece's columns
#pragma once
#include "jaxmono/bytes.cuh"
#include "jaxmono/deal.cuh"
#include "jaxmono/four_bits.cuh"
#include "jaxmono/tile.cuh"
#include "jaxmono/types.cuh"
#include "jaxmono/vec.cuh"
#include "jaxmono/warp.cuh"

namespace jaxmono {

// G: the Gemv, with parameters of these names.
template <class G, class T, class W, int M, int U, bool K_MAJOR>
struct GemvFma {
  using Sums = typename G::Sums;
  using Step = typename G::Step;
  static constexpr int E = G::E, EX = G::EX, BN = G::BN, C = G::C, WN = G::WN, LANE_ROWS = G::LANE_ROWS;
  static constexpr bool BYTES = G::BYTES, PACKED = G::PACKED;

  // COUNT elements in f32. bf16 by words: from halves the compiler makes three instructions of every
  // second element, which was a quarter of the stream's loop.
  template <int COUNT>
  JM_DEVICE static Vec<float, COUNT> wide(const T* p) {
    if constexpr (is_same<T, bf16>) {
      struct alignas(2 * COUNT) Words {
        uint32_t x[COUNT / 2];
      };
      const Words v = *reinterpret_cast<const Words*>(p);
      Vec<float, COUNT> out;
#pragma unroll
      for (int i = 0; i < COUNT / 2; ++i) {
        out.x[2 * i] = bitcast<float>(v.x[i] << 16);
        out.x[2 * i + 1] = bitcast<float>(v.x[i] & 0xffff0000u);
      }
      return out;
    } else {
      return jaxmono::load<float, COUNT>(p);
    }
  }

  // A piece of weights.
  JM_DEVICE static Vec<float, E> weights(const unsigned char* p) {
    if constexpr (G::FOURS) {
      Vec<float, E> out;
      four_bits_to_floats<typename W::Element>(out.x, reinterpret_cast<const Piece<uint32_t>*>(p)->x);
      return out;
    } else if constexpr (BYTES) {
      Vec<float, E> out;
      bytes_to_floats<W>(out.x, reinterpret_cast<const Piece<uint32_t>*>(p)->x);
      return out;
    } else if constexpr (G::ROUNDS) {
      return rounded<T>(jaxmono::load<float, E>(reinterpret_cast<const W*>(p)));
    } else {
      return wide<E>(reinterpret_cast<const T*>(p));
    }
  }

  // first: of k, in its group.
  JM_DEVICE static void multiply(Sums& acc, unsigned char* smem, int slot, const Step& at, int first) {
    if (!G::active()) return;
    if constexpr (G::SCALED) return multiply_scaled(acc, smem, slot, at, first);
    Vec<float, E> w[U];
#pragma unroll
    for (int u = 0; u < U; ++u)
      w[u] = weights(G::piece(smem, slot, u));
    const int k = at.k + (K_MAJOR ? G::own_col() : G::own_row());
#pragma unroll
    for (int m = 0; m < M; ++m) {
      if constexpr (K_MAJOR) {
        const Vec<float, E> f = beside(smem, m, at);
#pragma unroll
        for (int e = 0; e < E; ++e)
#pragma unroll
          for (int u = 0; u < U; ++u) acc[m][u] = fmaf(f.x[e], w[u].x[e], acc[m][u]);
      } else {
        const Vec<float, U> f = wide<U>(G::x(smem, m, k));
#pragma unroll
        for (int u = 0; u < U; ++u)
#pragma unroll
          for (int e = 0; e < E; ++e) acc[m][e] = fmaf(f.x[u], w[u].x[e], acc[m][e]);
      }
    }
  }

  // [n][k]: the lanes' sums of M x U values.
  JM_DEVICE static void finish_rows(unsigned char* smem, const Sums& acc, int first) {
    constexpr int V = M * U <= 1    ? 1
                      : M * U <= 2  ? 2
                      : M * U <= 4  ? 4
                      : M * U <= 8  ? 8
                      : M * U <= 16 ? 16 : 32;
    float v[V];
#pragma unroll
    for (int i = 0; i < V; ++i) v[i] = i < M * U ? acc[i / U % M][i % U] : 0.0f;
    deal_sums<V, 1>(v);
    constexpr int SHARE = 32 / V;  // lanes that have the same value
    const int i = lane_id() / SHARE, n = first + i % U;
    if (lane_id() % SHARE == 0 && i < M * U && n < BN)
      G::sums(smem)[(warp_id() / WN * M + i / U) * BN + n] = v[0];
  }

  // [k][n]: the sums of a piece's columns, of the rows of a warp or of every thread.
  // FREE: nobody reads the ring any more, which the sums replace.
  template <bool FREE = false>
  JM_DEVICE static void finish_columns(unsigned char* smem, Sums& acc) {
    if constexpr (PACKED && LANE_ROWS * C == 32 && M <= 2) {
      if constexpr (!FREE) syncthreads();
      deal_columns(smem, acc);
      return;
    }
    if constexpr (PACKED) {
      const int row = lane_id() / C;
#pragma unroll
      for (int left = LANE_ROWS; left > 1; left = (left + 1) / 2) {
        const int half = (left + 1) / 2;
#pragma unroll
        for (int m = 0; m < M; ++m)
#pragma unroll
          for (int e = 0; e < E; ++e) {
            const float other = shfl_idx(acc[m][e], (lane_id() + half * C) & 31);
            if (row + half < left) acc[m][e] += other;
          }
      }
    }
    if constexpr (!FREE) syncthreads();
    const int part = PACKED ? warp_id() : thread_id() / C;
    if (PACKED ? lane_id() < C : G::active()) {
#pragma unroll
      for (int m = 0; m < M; ++m) {
        Vec<float, E> out;
#pragma unroll
        for (int e = 0; e < E; ++e) out.x[e] = acc[m][e];
        store<float, E>(G::sums(smem) + (part * M + m) * BN + G::own_col(), out);
      }
    }
  }

 private:
  // A piece's products, or those of a column's rows, are summed before they are scaled: one more for each.
  JM_DEVICE static void multiply_scaled(Sums& acc, unsigned char* smem, int slot, const Step& at, int first) {
    const int k = at.k + (K_MAJOR ? G::own_col() : G::own_row());
    const auto* const scales = G::scales(smem);
    if constexpr (K_MAJOR) {
#pragma unroll
      for (int u = 0; u < U; ++u) {
        const Vec<float, E> w = weights(G::piece(smem, slot, u));
        const float scale = to_float(scales[G::own_scale_at(at.n + G::own_row() + u, k, first)]);
#pragma unroll
        for (int m = 0; m < M; ++m) {
          const Vec<float, E> f = beside(smem, m, at);
          float sum = 0.0f;
#pragma unroll
          for (int e = 0; e < E; ++e) sum = fmaf(f.x[e], w.x[e], sum);
          acc[m][u] = fmaf(scale, sum, acc[m][u]);
        }
      }
    } else {
      Vec<float, E> sums[M];
#pragma unroll
      for (int u = 0; u < U; ++u) {
        const Vec<float, E> w = weights(G::piece(smem, slot, u));
#pragma unroll
        for (int m = 0; m < M; ++m) {
          const float f = wide<U>(G::x(smem, m, k)).x[u];
#pragma unroll
          for (int e = 0; e < E; ++e) sums[m].x[e] = u ? fmaf(f, w.x[e], sums[m].x[e]) : f * w.x[e];
        }
      }
      const auto* const own = scales + G::own_scale_at(G::own_col(), k, first);
#pragma unroll
      for (int e = 0; e < E; e += 4) {
        const Vec<float, 4> scale = jaxmono::load<float, 4>(own + e * (BN / E));
#pragma unroll
        for (int m = 0; m < M; ++m)
#pragma unroll
          for (int i = 0; i < 4; ++i) acc[m][e + i] = fmaf(scale.x[i], sums[m].x[e + i], acc[m][e + i]);
      }
    }
  }
  // Of x, what a piece of weights [n][k] is multiplied with. SPAN is a multiple of what changes places.
  JM_DEVICE static Vec<float, E> beside(unsigned char* smem, int m, const Step& at) {
    if constexpr (BYTES) {
      Vec<float, E> out;
#pragma unroll
      for (int i = 0; i < E; i += EX) {
        const Vec<float, EX> part = wide<EX>(G::x(smem, m, G::own_col() + i) + at.k);
#pragma unroll
        for (int e = 0; e < EX; ++e) out.x[i + e] = part.x[e];
      }
      return out;
    } else {
      return wide<E>(G::x(smem, m, at.k + G::own_col()));
    }
  }

  // A warp's rows are a power of two.
  JM_DEVICE static void deal_columns(unsigned char* smem, const Sums& acc) {
    constexpr int V = M * E, LEFT = V > LANE_ROWS ? V / LANE_ROWS : 1;
    constexpr int SHARE = V < LANE_ROWS ? LANE_ROWS / V : 1;  // rows of lanes that have the same value
    float v[V];
#pragma unroll
    for (int i = 0; i < V; ++i) v[i] = acc[i / E][i % E];
    deal_sums<V, C>(v);
    const int row = lane_id() / C, first = row / SHARE * LEFT;
    if (row % SHARE != 0) return;
    float* const to = G::sums(smem) + warp_id() * M * BN + G::own_col();
#pragma unroll
    for (int i = 0; i < LEFT; ++i) to[(first + i) / E * BN + (first + i) % E] = v[i];
  }
};

}  // namespace jaxmono
