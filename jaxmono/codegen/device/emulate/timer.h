// The host's clock in place of the GPU's (ptx_timer.cuh).
#pragma once
#include <time.h>

#include "emulate/emulate.h"

namespace jaxmono {

inline uint64_t global_timer() {
  timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return static_cast<uint64_t>(now.tv_sec) * 1000000000u + static_cast<uint64_t>(now.tv_nsec);
}

}  // namespace jaxmono
