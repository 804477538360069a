// A warp's rows between memory and shared memory, as they lie (codegen/short_rows.py).
#pragma once
#include "jaxmono/platform.cuh"
#include "jaxmono/types.cuh"
#include "jaxmono/warp.cuh"

namespace jaxmono {

// WORDS words by the lanes of a warp, some loads of each in flight.
template <int WORDS, class T>
JM_DEVICE void copy_words(T* to, const T* from) {
  constexpr int TRIPS = (WORDS + WARP - 1) / WARP, AHEAD = TRIPS < 12 ? TRIPS : 12;
  auto* const out = reinterpret_cast<uint32_t*>(to);
  const auto* const in = reinterpret_cast<const uint32_t*>(from);
  const int lane = lane_id();
#pragma unroll 1
  for (int first = 0; first < TRIPS; first += AHEAD) {
    uint32_t word[AHEAD];
#pragma unroll
    for (int i = 0; i < AHEAD; ++i) {
      const int at = (first + i) * WARP + lane;
      word[i] = at < WORDS ? in[at] : 0u;
    }
#pragma unroll
    for (int i = 0; i < AHEAD; ++i) {
      const int at = (first + i) * WARP + lane;
      if (at < WORDS) out[at] = word[i];
    }
  }
}

}  // namespace jaxmono
