// A vector of a padded array, loaded in pieces that lie inside or outside as one.
#pragma once
#include "jaxmono/vec.cuh"

namespace jaxmono {

// N elements in pieces of P, as they lie in memory: T is not converted on the way.
template <class T, int N, int P>
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
  JM_DEVICE void store(T* p) const { *reinterpret_cast<Whole*>(p) = bitcast<Whole>(*this); }
};

}  // namespace jaxmono
