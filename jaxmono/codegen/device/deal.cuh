// Sums over the lanes of a warp, of which each lane keeps some.
#pragma once
#include "jaxmono/warp.cuh"

namespace jaxmono {

// Sums of COUNT values (a power of two) over the 32 / LOW lanes whose numbers have the same rest by LOW, the
// `row` of lane l being l / LOW. In every round a lane keeps half of its values and gives the other half
// away, until it has one, and from then on its only one. Afterwards v[0] and on are the sums of the values
// from row * COUNT / (32 / LOW) on, at least one; where there are more rows than values, several have the same.
template <int COUNT, int LOW, int STEP = 16, int N>
JM_DEVICE void deal_sums(float (&v)[N]) {
  if constexpr (STEP >= LOW && COUNT == 1) {
    v[0] += shfl_xor(v[0], STEP);
    deal_sums<1, LOW, STEP / 2>(v);
  } else if constexpr (STEP >= LOW) {
    const bool high = (lane_id() & STEP) != 0;
    constexpr int HALF = COUNT / 2;
#pragma unroll
    for (int i = 0; i < HALF; ++i) {
      const float give = high ? v[i] : v[i + HALF], keep = high ? v[i + HALF] : v[i];
      v[i] = keep + shfl_xor(give, STEP);
    }
    deal_sums<HALF, LOW, STEP / 2>(v);
  }
}

}  // namespace jaxmono
