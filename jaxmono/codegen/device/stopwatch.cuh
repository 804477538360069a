// The GPU's clock, for timing what lies between two launches of a stream.
#pragma once
#include "jaxmono/platform.cuh"
#include "jaxmono/ptx_timer.cuh"

namespace jaxmono {

// Waits so many nanoseconds, then writes the time: its low and its high word. Of one thread.
JM_DEVICE void stopwatch(uint32_t* to, uint32_t wait) {
  const uint64_t begin = global_timer();
  uint64_t now = begin;
  while (now - begin < wait) now = global_timer();
  to[0] = static_cast<uint32_t>(now);
  to[1] = static_cast<uint32_t>(now >> 32);
}

}  // namespace jaxmono
