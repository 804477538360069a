// Integer arithmetic of generated addresses.
#pragma once
#include "jaxmono/platform.cuh"

namespace jaxmono {

#ifdef JAXMONO_EMULATE  // built into CUDA
template <class I>
JM_DEVICE I min(I a, I b) {
  return b < a ? b : a;
}
template <class I>
JM_DEVICE I max(I a, I b) {
  return a < b ? b : a;
}
#endif

template <class T>
struct IndexBits;
template <>
struct IndexBits<int> {
  using type = unsigned;
};
template <>
struct IndexBits<long long> {
  using type = unsigned long long;
};

// x / D and x % D for x >= 0. Unsigned division by a constant is a multiply and a shift.
template <long long D, class I>
JM_DEVICE I udiv(I x) {
  using U = typename IndexBits<I>::type;
  return static_cast<I>(static_cast<U>(x) / static_cast<U>(D));
}

template <long long D, class I>
JM_DEVICE I umod(I x) {
  using U = typename IndexBits<I>::type;
  return static_cast<I>(static_cast<U>(x) % static_cast<U>(D));
}

// low <= x < high as one comparison.
template <class I>
JM_DEVICE bool within(I x, I low, I high) {
  using U = typename IndexBits<I>::type;
  return static_cast<U>(x) - static_cast<U>(low) < static_cast<U>(high) - static_cast<U>(low);
}

// An offset that may be read, whatever x is: the nearest one in a buffer of N elements.
template <long long N, class I>
JM_DEVICE I clamp_offset(I x) {
  return min(max(x, static_cast<I>(0)), static_cast<I>(N - 1));
}

// Of two halves of a dimension of which BLOCK/2 elements come in turns: where element x lies in its half; which
// of all 2 N it is, 2 N if there is none.
template <int BLOCK, class I>
JM_DEVICE I pair_place(I x) {
  return udiv<BLOCK>(x) * (BLOCK / 2) + umod<BLOCK / 2>(x);
}
template <int BLOCK, long long N, class I>
JM_DEVICE I pair_column(I x) {
  const I place = pair_place<BLOCK>(x);
  return place < N ? umod<2>(udiv<BLOCK / 2>(x)) * static_cast<I>(N) + place : static_cast<I>(2 * N);
}

// Rounding down, for any x.
template <long long D, class I>
JM_DEVICE I floordiv(I x) {
  const I q = x / static_cast<I>(D);
  return x % static_cast<I>(D) < 0 ? q - 1 : q;
}

template <long long D, class I>
JM_DEVICE I floormod(I x) {
  const I r = x % static_cast<I>(D);
  return r < 0 ? r + static_cast<I>(D) : r;
}

// An index read from memory, of any integer type, clamped as StableHLO clamps starts. low >= 0.
template <class I, class X>
JM_DEVICE I clamp_index(X x, I low, I high) {
  if constexpr (static_cast<X>(-1) < static_cast<X>(1)) {
    const long long y = static_cast<long long>(x);
    return y < low ? low : y > high ? high : static_cast<I>(y);
  } else {
    const unsigned long long y = static_cast<unsigned long long>(x);
    if (y > static_cast<unsigned long long>(high)) return high;
    return static_cast<I>(y) < low ? low : static_cast<I>(y);
  }
}

}  // namespace jaxmono
