// The products of a stream of weights on tensor cores (gemv.cuh), of the pieces that a thread has requested
// itself: weights are the 16 rows of a product, x its 8 columns. Which element of k is which column of a
// fragment is free, if it is the same for weights and x, so a lane's piece is a fragment as it lies ([n][k]), or
// after pairing neighbouring rows ([k][n]); nothing is exchanged.
//
//   [n][k]   lane (g, t) has rows g and g + 8, 8 elements of k from 8 t: two products of 16 k
//   [k][n]   lane (g, t) has columns 8 g .. 8 g + 7 of 64, rows 4 t .. 4 t + 3: four products of 16 n
//
// Of bytes (W) a piece has 16 elements, and takes 48 instructions up to 8 rows, 32 of them conversions (f16: 40, 24):
//
//   [n][k]   lane (g, t) has rows g and g + 8, 16 elements of k from 16 t: four products of 16 k
//   [k][n]   lane (g, t) has columns 16 g .. 16 g + 15 of 128, rows 4 t .. 4 t + 3: eight products of 16 n
// Of integers of 4 bits it has 32:
//
//   [n][k]   lane (g, t) has 32 elements of k from 32 t: eight products of 16 k, each of four elements of a word
//   [k][n]   lane (g, t) has columns 32 g .. 32 g + 31 of 256, rows 4 t .. 4 t + 3: 16 products of 16 n
#pragma once
#include "jaxmono/bytes.cuh"
#include "jaxmono/four_bits.cuh"
#include "jaxmono/mma.cuh"
#include "jaxmono/tile.cuh"
#include "jaxmono/vec.cuh"
#include "jaxmono/warp.cuh"

namespace jaxmono {

// G: the Gemv, with parameters of these names.
template <class G, class T, class W, int M, int U, bool K_MAJOR>
struct GemvMma {
  using Sums = typename G::Sums;
  using Step = typename G::Step;
  using Words4 = Piece<uint32_t>;
  static constexpr int E = G::E, EX = G::EX, BN = G::BN, XN = G::XN, WN = G::WN, WC = G::WC;

  // first: of k, in its group.
  JM_DEVICE static void multiply(Sums& acc, unsigned char* smem, int slot, const Step& at, int first) {
    Words4 w[U];
#pragma unroll
    for (int u = 0; u < U; ++u) w[u] = *reinterpret_cast<const Words4*>(G::piece(smem, slot, u));
    if constexpr (G::FOURS) {
      multiply_fours(acc, smem, w, at, first);
    } else if constexpr (sizeof(W) == 1) {
      multiply_bytes(acc, smem, w, at, first);
    } else if constexpr (K_MAJOR) {
#pragma unroll
      for (int c = 0; c < U / 2; ++c) {
        const int k = at.k + G::own_col() + G::col_step(2 * c);
#pragma unroll
        for (int i = 0; i < XN; ++i) {
          const Words4 f = *reinterpret_cast<const Words4*>(G::x(smem, x_row(i), k));
#pragma unroll
          for (int h = 0; h < 4; h += 2) {
            const uint32_t a[4] = {w[2 * c].x[h], w[2 * c + 1].x[h], w[2 * c].x[h + 1],
                                   w[2 * c + 1].x[h + 1]};
            const uint32_t b[2] = {f.x[h], f.x[h + 1]};
            product(acc[i], a, b);
          }
        }
      }
    } else {
      const int k = at.k + G::own_row();
      Words2 f[XN];
#pragma unroll
      for (int i = 0; i < XN; ++i) f[i] = *reinterpret_cast<const Words2*>(G::x(smem, x_row(i), k));
#pragma unroll
      for (int j = 0; j < 4; ++j) {  // columns 2 j and 2 j + 1 of the piece: rows g and g + 8
        const uint32_t a[4] = {low_halves(w[0].x[j], w[1].x[j]), high_halves(w[0].x[j], w[1].x[j]),
                               low_halves(w[2].x[j], w[3].x[j]), high_halves(w[2].x[j], w[3].x[j])};
#pragma unroll
        for (int i = 0; i < XN; ++i) {
          float(&d)[4] = *reinterpret_cast<float(*)[4]>(&acc[i][j * 4]);
          const uint32_t b[2] = {f[i].x[0], f[i].x[1]};
          product(d, a, b);
        }
      }
    }
  }

  // A lane has of rows g and g + 8 the columns 2 t, 2 t + 1.
  JM_DEVICE static void finish_rows(unsigned char* smem, const Sums& acc, int first) {
#pragma unroll
    for (int i = 0; i < XN; ++i)
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        const int n = first + e / 2 * 8, m = i * 8 + lane_id() % 4 * 2 + e % 2;
        if (n < BN && m < M) G::sums(smem)[(warp_id() / WN * M + m) * BN + n] = acc[i][e];
      }
  }

  JM_DEVICE static void finish_columns(unsigned char* smem, const Sums& acc) {
    syncthreads();  // nobody reads the ring any more: the sums replace it
#pragma unroll
    for (int i = 0; i < XN; ++i)
#pragma unroll
      for (int e = 0; e < 2; ++e) {
        const int m = i * 8 + lane_id() % 4 * 2 + e;
        if (m >= M) continue;
        Vec<float, E> out;
#pragma unroll
        for (int c = 0; c < E; ++c) out.x[c] = acc[i][c / 2 * 4 + c % 2 * 2 + e];
        store<float, E>(G::sums(smem) + (warp_id() / WC * M + m) * BN + G::own_col(), out);
      }
  }

 private:
  struct alignas(8) Words2 {
    uint32_t x[2];
  };

  JM_DEVICE static void product(float (&d)[4], const uint32_t (&a)[4], const uint32_t (&b)[2]) {
    if constexpr (is_same<T, bf16>) mma_m16n8k16_bf16(d, a, b);
    else mma_m16n8k16_f16(d, a, b);
  }
  // The fragment's column of x that this lane reads; past the last row it repeats that.
  JM_DEVICE static int x_row(int column) {
    const int m = column * 8 + lane_id() / 4;
    return M % 8 == 0 || m < M ? m : M - 1;
  }
  // [k][n]: of x, what is multiplied with four rows.
  JM_DEVICE static void beside_columns(Words2 (&f)[XN], unsigned char* smem, const Step& at) {
#pragma unroll
    for (int i = 0; i < XN; ++i)
      f[i] = *reinterpret_cast<const Words2*>(G::x(smem, x_row(i), at.k + G::own_row()));
  }
  // The same of bytes, which become fragments where they lie.
  JM_DEVICE static void multiply_bytes(Sums& acc, unsigned char* smem, const Words4 (&w)[U],
                                       const Step& at, int first) {
    if constexpr (K_MAJOR) {
#pragma unroll
      for (int c = 0; c < U / 2; ++c) {
        const int k = at.k + G::own_col() + G::col_step(2 * c);
        const uint32_t scale[2] = {twice_of(scale_of_row(smem, at, 0, first, k)),
                                   twice_of(scale_of_row(smem, at, 1, first, k))};
        Words4 f[XN][2];
#pragma unroll
        for (int i = 0; i < XN; ++i)
#pragma unroll
          for (int h = 0; h < 2; ++h)
            f[i][h] = *reinterpret_cast<const Words4*>(G::x(smem, x_row(i), k + h * EX));
#pragma unroll
        for (int h = 0; h < 4; ++h) {
          const uint32_t p = w[2 * c].x[h], q = w[2 * c + 1].x[h];
          const uint32_t a[4] = {by(pair_of_word<T, W>(p, 0), scale[0]), by(pair_of_word<T, W>(q, 0), scale[1]),
                                 by(pair_of_word<T, W>(p, 1), scale[0]), by(pair_of_word<T, W>(q, 1), scale[1])};
#pragma unroll
          for (int i = 0; i < XN; ++i) {
            const uint32_t b[2] = {f[i][h / 2].x[h % 2 * 2], f[i][h / 2].x[h % 2 * 2 + 1]};
            product(acc[i], a, b);
          }
        }
      }
    } else {
      Words2 f[XN];
      beside_columns(f, smem, at);
#pragma unroll
      for (int j = 0; j < 8; ++j) {
        const Words2 scale = scales_of_columns(smem, at, first, 2 * j);
        uint32_t a[4];
#pragma unroll
        for (int e = 0; e < 4; ++e)  // column 2 j + e % 2, rows 0 and 1 or 2 and 3
          a[e] = by(pair_of_words<T, W>(w[e / 2 * 2].x[j / 2], w[e / 2 * 2 + 1].x[j / 2],
                                        j % 2 * 2 + e % 2), scale.x[e % 2]);
#pragma unroll
        for (int i = 0; i < XN; ++i) {
          float(&d)[4] = *reinterpret_cast<float(*)[4]>(&acc[i][j * 4]);
          const uint32_t b[2] = {f[i].x[0], f[i].x[1]};
          product(d, a, b);
        }
      }
    }
  }
  // The same of integers of 4 bits.
  JM_DEVICE static void multiply_fours(Sums& acc, unsigned char* smem, const Words4 (&w)[U],
                                       const Step& at, int first) {
    using I = typename W::Element;
    if constexpr (K_MAJOR) {
#pragma unroll
      for (int c = 0; c < U / 2; ++c) {
        const int k = at.k + G::own_col() + G::col_step(2 * c);
        const float scale[2] = {scale_of_row(smem, at, 0, first, k), scale_of_row(smem, at, 1, first, k)};
        const uint32_t both[2] = {twice_of(scale[0]), twice_of(scale[1])};
        float sums[XN][4] = {};  // of 128 k
#pragma unroll
        for (int h = 0; h < 4; ++h) {
          Words4 f[XN];
#pragma unroll
          for (int i = 0; i < XN; ++i)
            f[i] = *reinterpret_cast<const Words4*>(G::x(smem, x_row(i), k + h * EX));
          const uint32_t p = w[2 * c].x[h], q = w[2 * c + 1].x[h];
#pragma unroll
          for (int j = 0; j < 4; j += 2) {
            const uint32_t a[4] = {
                by(pair_of_fours<T, I>(p >> 4 * j), both[0]), by(pair_of_fours<T, I>(q >> 4 * j), both[1]),
                by(pair_of_fours<T, I>(p >> (4 * j + 4)), both[0]),
                by(pair_of_fours<T, I>(q >> (4 * j + 4)), both[1])};
#pragma unroll
            for (int i = 0; i < XN; ++i) {
              const uint32_t b[2] = {f[i].x[j], f[i].x[j + 1]};
              if constexpr (G::SCALES_SUMS) product(sums[i], a, b);
              else product(acc[i], a, b);
            }
          }
        }
        if constexpr (G::SCALES_SUMS)
#pragma unroll
          for (int i = 0; i < XN; ++i)
#pragma unroll
            for (int e = 0; e < 4; ++e) acc[i][e] = fmaf(scale[e / 2], sums[i][e], acc[i][e]);
      }
    } else {
      Words2 f[XN];
      beside_columns(f, smem, at);
#pragma unroll
      for (int h = 0; h < 8; ++h) {  // halves of words: four columns of two rows
        const uint32_t half = h % 2 ? 0x7632u : 0x5410u;
        const uint32_t p = byte_permute(w[0].x[h / 2], w[1].x[h / 2], half);
        const uint32_t q = byte_permute(w[2].x[h / 2], w[3].x[h / 2], half);
#pragma unroll
        for (int j = 0; j < 2; ++j) {
          const Words2 scale = scales_of_columns(smem, at, first, 4 * h + 2 * j);
          const uint32_t a[4] = {
              by(pair_of_fours<T, I>(p >> 8 * j), scale.x[0]), by(pair_of_fours<T, I>(p >> (8 * j + 4)), scale.x[1]),
              by(pair_of_fours<T, I>(q >> 8 * j), scale.x[0]), by(pair_of_fours<T, I>(q >> (8 * j + 4)), scale.x[1])};
#pragma unroll
          for (int i = 0; i < XN; ++i) {
            float(&d)[4] = *reinterpret_cast<float(*)[4]>(&acc[i][(2 * h + j) * 4]);
            const uint32_t b[2] = {f[i].x[0], f[i].x[1]};
            product(d, a, b);
          }
        }
      }
    }
  }
  // Weights times their scale, rounded as T.
  JM_DEVICE static uint32_t by(uint32_t pair, uint32_t scale) {
    if constexpr (!G::SCALED || G::SCALES_SUMS) return pair;
    else return pairs_product<T>(pair, scale);
  }
  JM_DEVICE static uint32_t twice_of(float scale) {
    if constexpr (G::SCALED && !G::SCALES_SUMS) return twice<T>(scale);
    else return 0;
  }
  // [n][k]: of this lane's row g or g + 8 and what a piece that begins at k has.
  JM_DEVICE static float scale_of_row(unsigned char* smem, const Step& at, int half, int first, int k) {
    if constexpr (G::SCALED) {
      return to_float(G::scales(smem)[G::own_scale_at(at.n + G::own_row() + half * 8, k, first)]);
    } else {
      return 0.0f;
    }
  }
  // [k][n]: of the columns c and c + 1 of this lane's piece.
  JM_DEVICE static Words2 scales_of_columns(unsigned char* smem, const Step& at, int first, int c) {
    if constexpr (G::SCALED && !G::SCALES_SUMS) {
      const int k = at.k + G::own_row();
      const Vec<float, 2> two = load<float, 2>(
          G::scales(smem) + G::own_scale_at(G::own_col(), k, first) + c / 4 * (BN / E * 4) + c % 4);
      return {twice<T>(two.x[0]), twice<T>(two.x[1])};
    } else {
      return {};
    }
  }
  JM_DEVICE static uint32_t low_halves(uint32_t a, uint32_t b) { return (a & 0xffffu) | b << 16; }
  JM_DEVICE static uint32_t high_halves(uint32_t a, uint32_t b) {
    return a >> 16 | (b & 0xffff0000u);
  }
};

}  // namespace jaxmono
