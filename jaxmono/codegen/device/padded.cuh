// A vector of a padded array, loaded in pieces that lie inside or outside as one.
#pragma once
#include "jaxmono/vec.cuh"

namespace jaxmono {

// N elements in pieces of P, as they lie in memory: T is not converted on the way.
template <class T, int N, int P, bool SMALL = (sizeof(T) * P < 4)>
struct PaddedVec {
  using Piece = typename Raw<T, P>::Piece;
  using Whole = typename Raw<T, N>::Piece;
  static_assert(sizeof(T) * N <= 16 && N % P == 0, "one store");
  Piece piece[N / P];

  // Elements i ..< i + P from p, which is aligned to them; `fill` where they are not there, and then
  // nothing is read.
  JM_DEVICE void load(int i, const T* p, bool there, T fill) {
    Raw<T, P> outside;
    outside.v = splat<P>(fill);
    piece[i / P] = ld_global_if(reinterpret_cast<const Piece*>(p), there, outside.piece[0]);
  }
  JM_DEVICE void round(int exponent_bits, int mantissa_bits) {  // of floats
#pragma unroll
    for (int i = 0; i < N / P; ++i) {
      Raw<T, P> raw;
      raw.piece[0] = piece[i];
      raw.v = v_reduce_precision(raw.v, exponent_bits, mantissa_bits);
      piece[i] = raw.piece[0];
    }
  }
  JM_DEVICE void store(T* p) const { *reinterpret_cast<Whole*>(p) = bitcast<Whole>(*this); }
};

// Pieces of 1 or 2 bytes: a register each until they are stored.
template <class T, int N, int P>
struct PaddedVec<T, N, P, true> {
  using Piece = typename Raw<T, P>::Piece;
  using Whole = typename Raw<T, N>::Piece;
  static_assert(sizeof(T) * N <= 16 && N % P == 0, "one store");
  static constexpr int WORD = N / P * sizeof(Piece) < 4 ? N / P : 4 / sizeof(Piece);  // pieces of it
  struct Words {
    uint32_t x[N / P / WORD];
  };
  uint32_t piece[N / P];

  JM_DEVICE void load(int i, const T* p, bool there, T fill) {
    Raw<T, P> outside;
    outside.v = splat<P>(fill);
    piece[i / P] = ld_global_if_small(reinterpret_cast<const Piece*>(p), there,
                                      static_cast<uint32_t>(outside.piece[0]));
  }
  JM_DEVICE void store(T* p) const {
    Words words{};
#pragma unroll
    for (int i = 0; i < N / P; ++i)
      words.x[i / WORD] |= piece[i] << (i % WORD * 8 * sizeof(Piece));
    if constexpr (sizeof(Whole) < 4)
      *reinterpret_cast<Whole*>(p) = static_cast<Whole>(words.x[0]);
    else
      *reinterpret_cast<Whole*>(p) = bitcast<Whole>(words);
  }
};

}  // namespace jaxmono
