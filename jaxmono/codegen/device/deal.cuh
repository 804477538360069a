// Values of the lanes of a warp combined, of which each lane keeps some.
#pragma once
#include "jaxmono/warp.cuh"

namespace jaxmono {

// f over COUNT values (a power of two) of the 32 / LOW lanes whose numbers have the same rest by LOW, the
// `row` of lane l being l / LOW. In every round a lane keeps half of its values and gives the other half
// away, until it has one, and from then on its only one. Afterwards v[0] and on are the results of the values
// from row * COUNT / (32 / LOW) on, at least one; where there are more rows than values, several have the same.
template <int COUNT, int LOW, int STEP = 16, class T, int N, class F>
JM_DEVICE void deal(T (&v)[N], const F& f) {
  if constexpr (STEP >= LOW && COUNT == 1) {
    const T other = shfl_xor(v[0], STEP);
    v[0] = (lane_id() & STEP) != 0 ? f(other, v[0]) : f(v[0], other);
    deal<1, LOW, STEP / 2>(v, f);
  } else if constexpr (STEP >= LOW) {
    const bool high = (lane_id() & STEP) != 0;
    constexpr int HALF = COUNT / 2;
#pragma unroll
    for (int i = 0; i < HALF; ++i) {
      const T give = high ? v[i] : v[i + HALF], keep = high ? v[i + HALF] : v[i];
      v[i] = f(keep, shfl_xor(give, STEP));
    }
    deal<HALF, LOW, STEP / 2>(v, f);
  }
}

// Sums, for which the order of two does not matter.
template <int COUNT, int LOW, int N>
JM_DEVICE void deal_sums(float (&v)[N]) {
  deal<COUNT, LOW>(v, [](float a, float b) { return a + b; });
}

}  // namespace jaxmono
