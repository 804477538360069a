// Warp-level matrix products on shared-memory tiles, for the element types of the tensor cores.
//
// Fragments follow PTX mma: lane = 4*g + t holds accumulator elements (g, 2t) (g, 2t+1) (g+8, 2t)
// (g+8, 2t+1) of each 16x8 tile.
#pragma once
#include "jaxmono/tile.cuh"
#include "jaxmono/vec.cuh"

namespace jaxmono {

// A, B: element types of the operands. Acc: of the sums; integers wrap, so they are unsigned.
template <class A, class B = A>
struct MmaTraits;

template <>
struct MmaTraits<bf16> {
  static constexpr int K = 16;
  using Acc = float;
  template <int MT, int NT>
  JM_DEVICE static void mma(float (&d)[MT][NT][4], const uint32_t (&a)[MT][4],
                            const uint32_t (&b)[NT][2]) {
    mma_tiles_bf16(d, a, b);
  }
};

template <>
struct MmaTraits<f16> {
  static constexpr int K = 16;
  using Acc = float;
  template <int MT, int NT>
  JM_DEVICE static void mma(float (&d)[MT][NT][4], const uint32_t (&a)[MT][4],
                            const uint32_t (&b)[NT][2]) {
    mma_tiles_f16(d, a, b);
  }
};

template <>
struct MmaTraits<float> {  // tf32: operands rounded to 10 mantissa bits, accumulated in f32
  static constexpr int K = 8;
  using Acc = float;
  template <int MT, int NT>
  JM_DEVICE static void mma(float (&d)[MT][NT][4], const uint32_t (&a)[MT][4],
                            const uint32_t (&b)[NT][2]) {
    mma_tiles_tf32(d, a, b);
  }
};

// The least number of column groups per warp with which all warps but idle ones have as many.
constexpr int even_share(int groups, int warps) {
  int share = (groups + warps - 1) / warps;
  while (groups % share != 0) ++share;
  return share;
}

// Hopper multiplies 8-bit floats in wgmma only, and sm_80 not at all; the emulator is a Hopper.
#if !defined(JAXMONO_EMULATE) && (__CUDA_ARCH__ == 890 || __CUDA_ARCH__ >= 1000)
constexpr bool F8_AS_F16 = false;
#else
constexpr bool F8_AS_F16 = true;
#endif

template <class T, int N>
JM_DEVICE void f8_half_to_f16(uint32_t (&out)[N], const uint32_t (&x)[N], int half) {
#pragma unroll
  for (int i = 0; i < N; ++i) out[i] = f8x2_to_f16x2<T>(static_cast<uint16_t>(x[i] >> 16 * half));
}

// f16 has all values of 8-bit floats. Of each register the lower two k make one product, the upper two
// another. Registers for half of the operand that takes less are needed at a time; the compiler's own
// expansion of mma keeps all of both and spills.
template <class A, class B, int MT, int NT>
JM_DEVICE void mma_tiles_f8_as_f16(float (&d)[MT][NT][4], const uint32_t (&a)[MT][4],
                                   const uint32_t (&b)[NT][2]) {
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    if constexpr (2 * MT <= NT) {
      uint32_t x[MT][4], y[2];
#pragma unroll
      for (int i = 0; i < MT; ++i) f8_half_to_f16<A>(x[i], a[i], half);
#pragma unroll
      for (int j = 0; j < NT; ++j) {
        f8_half_to_f16<B>(y, b[j], half);
#pragma unroll
        for (int i = 0; i < MT; ++i) mma_m16n8k16_f16(d[i][j], x[i], y);
      }
    } else {
      uint32_t x[4], y[NT][2];
#pragma unroll
      for (int j = 0; j < NT; ++j) f8_half_to_f16<B>(y[j], b[j], half);
#pragma unroll
      for (int i = 0; i < MT; ++i) {
        f8_half_to_f16<A>(x, a[i], half);
#pragma unroll
        for (int j = 0; j < NT; ++j) mma_m16n8k16_f16(d[i][j], x, y[j]);
      }
    }
  }
}

template <class A, class B>
struct MmaTraits {  // bytes
  static_assert(sizeof(A) == 1 && sizeof(B) == 1, "operands of different sizes");
  static_assert(is_f8<A> == is_f8<B>, "an integer operand and a float one");
  static constexpr int K = 32;
  using Acc = Conditional<is_f8<A>, float, uint32_t>;
  template <int MT, int NT>
  JM_DEVICE static void mma(Acc (&d)[MT][NT][4], const uint32_t (&a)[MT][4],
                            const uint32_t (&b)[NT][2]) {
    if constexpr (is_f8<A> && F8_AS_F16) mma_tiles_f8_as_f16<A, B>(d, a, b);
    else mma_tiles_bytes<A, B>(d, a, b);
  }
};

// Whether element (r, c) of a 16-wide fragment pair is not where it is in the tile: bytes cannot be
// transposed by ldmatrix, only pairs of them. So the first 8 rows of a fragment of the left operand
// are the even rows of the tile, the others the odd ones; of two fragments of the right operand, the
// first has the even columns.
template <class T, bool K_MAJOR>
constexpr bool EVEN_ODD = sizeof(T) == 1 && !K_MAJOR;

// 32 k x 16 columns of bytes at (k, col) of a [k][cols] tile, four neighbouring k in a register:
// even columns and k < 16, odd columns, the same for k >= 16. One ldmatrix and four byte permutations.
// A matrix of it has two rows of each four, chosen so that its 8 rows are in different banks.
JM_DEVICE int transposed_row(int lane) {
  const int mat = lane >> 3, t = lane >> 1 & 3;
  return (mat >> 1) * 16 + t * 4 + ((mat & 1) ^ (t >> 1)) * 2 + (lane & 1);
}
// piece: this lane's, of row transposed_row(lane).
JM_DEVICE void ldmatrix_transposed_bytes(uint32_t (&out)[4], const void* piece) {
  uint32_t x[4];
  ldmatrix_x4_trans(x, piece);
  // Lanes of the upper half of each four hold the later two k in the first matrix.
  const uint32_t even = lane_id() & 2 ? 0x2064u : 0x6420u, odd = even + 0x1111u;
  out[0] = byte_permute(x[0], x[1], even);
  out[1] = byte_permute(x[0], x[1], odd);
  out[2] = byte_permute(x[2], x[3], even);
  out[3] = byte_permute(x[2], x[3], odd);
}
template <class TileT>
JM_DEVICE void load_bytes_transposed(uint32_t (&out)[4], unsigned char* tile, int k, int col) {
  ldmatrix_transposed_bytes(out, TileT::at(tile, k + transposed_row(lane_id()), col));
}

// A 16 x K fragment at (row, k) of the left operand. K_MAJOR: the tile is [rows][k], else [k][rows].
template <class T, class TileT, bool K_MAJOR>
JM_DEVICE void load_a(uint32_t (&a)[4], unsigned char* tile, int row, int k) {
  const int lane = lane_id();
  if constexpr (EVEN_ODD<T, K_MAJOR>) {
    load_bytes_transposed<TileT>(a, tile, k, row);
  } else if constexpr (sizeof(T) <= 2) {  // an 8x8 matrix of 16-bit elements is 8 rows of 16 bytes
    if constexpr (K_MAJOR) {
      ldmatrix_x4(a, TileT::at(tile, row + (lane & 15), k + (lane >> 4) * TileT::PIECE));
    } else {
      const int mat = lane >> 3;
      ldmatrix_x4_trans(a, TileT::at(tile, k + (mat >> 1) * 8 + (lane & 7), row + (mat & 1) * 8));
    }
  } else {
    if constexpr (K_MAJOR) {  // an 8x8 matrix of 16-bit elements is 8 rows of 4 floats
      ldmatrix_x4(a, TileT::at(tile, row + (lane & 15), k + (lane >> 4) * 4));
#pragma unroll
      for (int i = 0; i < 4; ++i) a[i] = to_tf32(bitcast<float>(a[i]));
    } else {
      const int g = lane >> 2, t = lane & 3;
#pragma unroll
      for (int i = 0; i < 4; ++i)
        a[i] = to_tf32(*TileT::at(tile, k + t + (i >> 1) * 4, row + g + (i & 1) * 8));
    }
  }
}

// Whether column c of a warp's NT fragments of the right operand is column c % 8 * NT + c / 8 of the
// tile instead of c. Floats cannot be transposed by ldmatrix: with the fragments interleaved like
// this, a lane's elements of all fragments are neighbours in a row of a [k][cols] tile.
template <class T, bool K_MAJOR, int NT>
constexpr bool INTERLEAVED = sizeof(T) == 4 && !K_MAJOR && NT % 2 == 0;

// NT fragments K x 8 at (k, col), (k, col + 8)... of the right operand.
// K_MAJOR: the tile is [cols][k], else [k][cols].
template <class T, class TileT, bool K_MAJOR, int NT>
JM_DEVICE void load_b(uint32_t (&b)[NT][2], unsigned char* tile, int col, int k) {
  const int lane = lane_id();
  if constexpr (EVEN_ODD<T, K_MAJOR>) {
    static_assert(NT % 2 == 0, "columns of bytes come 16 at a time");
#pragma unroll
    for (int j = 0; j < NT; j += 2) {
      uint32_t r[4];
      load_bytes_transposed<TileT>(r, tile, k, col + j * 8);
      b[j][0] = r[0], b[j][1] = r[2], b[j + 1][0] = r[1], b[j + 1][1] = r[3];
    }
  } else if constexpr (sizeof(T) <= 2) {
    constexpr int P = TileT::PIECE;
    const int mat = lane >> 3;
#pragma unroll
    for (int j = 0; j + 1 < NT; j += 2) {
      uint32_t r[4];
      if constexpr (K_MAJOR) {
        ldmatrix_x4(r, TileT::at(tile, col + j * 8 + (mat >> 1) * 8 + (lane & 7), k + (mat & 1) * P));
      } else {
        ldmatrix_x4_trans(
            r, TileT::at(tile, k + (mat & 1) * 8 + (lane & 7), col + j * 8 + (mat >> 1) * 8));
      }
      b[j][0] = r[0], b[j][1] = r[1], b[j + 1][0] = r[2], b[j + 1][1] = r[3];
    }
    if constexpr (NT % 2 == 1) {
      constexpr int j = NT - 1;
      const int m = mat & 1;  // lanes 16..31 repeat the addresses of lanes 0..15
      if constexpr (K_MAJOR) {
        ldmatrix_x2(b[j], TileT::at(tile, col + j * 8 + (lane & 7), k + m * P));
      } else {
        ldmatrix_x2_trans(b[j], TileT::at(tile, k + m * 8 + (lane & 7), col + j * 8));
      }
    }
  } else if constexpr (INTERLEAVED<T, K_MAJOR, NT>) {
    constexpr int V = NT % 4 == 0 ? 4 : 2;
    const int g = lane >> 2, t = lane & 3;
#pragma unroll
    for (int i = 0; i < 2; ++i)
#pragma unroll
      for (int j = 0; j < NT; j += V) {
        const auto v = load<float, V>(TileT::at(tile, k + t + i * 4, col + g * NT + j));
#pragma unroll
        for (int e = 0; e < V; ++e) b[j + e][i] = to_tf32(v.x[e]);
      }
  } else {
    const int g = lane >> 2, t = lane & 3;
#pragma unroll
    for (int j = 0; j < NT; ++j) {
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        const int c = col + j * 8 + g, kk = k + t + i * 4;
        b[j][i] = to_tf32(K_MAJOR ? *TileT::at(tile, c, kk) : *TileT::at(tile, kk, c));
      }
    }
  }
}

// The operands of one k step of a warp's MT x NT accumulator tiles.
template <int MT, int NT>
struct Fragments {
  uint32_t a[MT][4], b[NT][2];
};

template <class T, class TileA, bool A_K_MAJOR, class TileB, bool B_K_MAJOR, int MT, int NT>
JM_DEVICE void load_fragments(Fragments<MT, NT>& f, unsigned char* tile_a, unsigned char* tile_b,
                              int row, int col, int k_a, int k_b) {
#pragma unroll
  for (int i = 0; i < MT; ++i) load_a<T, TileA, A_K_MAJOR>(f.a[i], tile_a, row + i * 16, k_a);
  load_b<T, TileB, B_K_MAJOR, NT>(f.b, tile_b, col, k_b);
}

template <class T, class TB = T, int MT, int NT>
JM_DEVICE void multiply(typename MmaTraits<T, TB>::Acc (&acc)[MT][NT][4],
                        const Fragments<MT, NT>& f) {
  MmaTraits<T, TB>::mma(acc, f.a, f.b);
}

// Writes a warp's accumulators to rows, PITCH of them apart. INTERLEAVE: as the right operand was
// loaded. A_EVEN_ODD, B_EVEN_ODD: EVEN_ODD of the operands.
template <int PITCH, bool INTERLEAVE, bool A_EVEN_ODD = false, bool B_EVEN_ODD = false, class Acc,
          int MT, int NT>
JM_DEVICE void store_accumulators(Acc* out, const Acc (&acc)[MT][NT][4], int row, int col) {
  const int g = lane_id() >> 2, t = lane_id() & 3;
#pragma unroll
  for (int i = 0; i < MT; ++i)
#pragma unroll
    for (int j = 0; j < NT; ++j)
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        const int r = row + i * 16 + (A_EVEN_ODD ? 2 * g + e / 2 : g + e / 2 * 8);
        const int n = 2 * t + e % 2;
        const int c = INTERLEAVE ? n * NT + j : B_EVEN_ODD ? j / 2 * 16 + 2 * n + j % 2 : j * 8 + n;
        out[r * PITCH + col + c] = acc[i][j][e];
      }
}

}  // namespace jaxmono
