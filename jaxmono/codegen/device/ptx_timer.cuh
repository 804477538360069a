// The GPU's clock; see ptx.cuh for the list.
#pragma once

#ifdef JAXMONO_EMULATE
#include "emulate/timer.h"
#else
#include "jaxmono/platform.cuh"

namespace jaxmono {

JM_DEVICE uint64_t global_timer() {
  uint64_t now;
  asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(now));
  return now;
}

}  // namespace jaxmono
#endif
