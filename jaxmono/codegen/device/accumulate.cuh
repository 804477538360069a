// Sums, and largest or smallest elements, in memory that several blocks add to, in any order. Who reads it
// is behind a grid barrier, as of anything that other blocks write; whoever wrote what it begins with, too.
#pragma once
#include "jaxmono/ptx.cuh"
#include "jaxmono/vec.cuh"

namespace jaxmono {

// p[i] + x[i] for N neighbours, if wanted. Four f32 are one instruction on sm_90: the memory system has
// requests of 16 bytes in place of four.
template <class T, int N, class X>
JM_DEVICE void accumulate_add(T* p, const Vec<X, N>& x, bool wanted) {
  if (!wanted) return;
  if constexpr (is_same<T, float> && N % 4 == 0) {
#pragma unroll
    for (int i = 0; i < N; i += 4) red_add_4(p + i, x.x[i], x.x[i + 1], x.x[i + 2], x.x[i + 3]);
  } else {
#pragma unroll
    for (int i = 0; i < N; ++i) red_add(p + i, static_cast<T>(x.x[i]));
  }
}
template <class T, int N, class X>
JM_DEVICE void accumulate_add(T* p, const X& x, bool wanted) {
  accumulate_add<T, N>(p, splat<N>(x), wanted);
}

// Of integers: floats would have NaN and zeros of two signs.
template <class T, int N, class X>
JM_DEVICE void accumulate_maximum(T* p, const Vec<X, N>& x, bool wanted) {
  if (!wanted) return;
#pragma unroll
  for (int i = 0; i < N; ++i) red_max(p + i, static_cast<T>(x.x[i]));
}
template <class T, int N, class X>
JM_DEVICE void accumulate_maximum(T* p, const X& x, bool wanted) {
  accumulate_maximum<T, N>(p, splat<N>(x), wanted);
}

template <class T, int N, class X>
JM_DEVICE void accumulate_minimum(T* p, const Vec<X, N>& x, bool wanted) {
  if (!wanted) return;
#pragma unroll
  for (int i = 0; i < N; ++i) red_min(p + i, static_cast<T>(x.x[i]));
}
template <class T, int N, class X>
JM_DEVICE void accumulate_minimum(T* p, const X& x, bool wanted) {
  accumulate_minimum<T, N>(p, splat<N>(x), wanted);
}

}  // namespace jaxmono
