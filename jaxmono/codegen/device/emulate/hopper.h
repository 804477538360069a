// What the runtime does for mbarrier.h and wgmma.h.
#pragma once
#include "emulate/emulate.h"

namespace jaxmono::emulate {

// ---- phases.h: bar is a word of shared memory --------------------------------------------------

void mbarrier_init(void* bar, uint32_t arrivals);
void mbarrier_arrive(void* bar);
void mbarrier_arrive_later(void* bar);  // when this thread's copies have happened
void mbarrier_wait(void* bar, uint32_t parity);
void mbarrier_expect_later(void* bar);  // one more arrival, of copies that this thread has requested
void fence_proxy_async();

// ---- warpgroup.h -------------------------------------------------------------------------------

enum WgmmaForm : uint32_t {
  WGMMA_F16 = 1, WGMMA_A_MN = 2, WGMMA_B_MN = 4, WGMMA_ZERO = 8, WGMMA_A_REGISTERS = 16,
  WGMMA_F8 = 32, WGMMA_A_OTHER = 64, WGMMA_B_OTHER = 128, WGMMA_TF32 = 256,
  WGMMA_INTEGERS = 512  // s8, or the other: u8; of WGMMA_F8 e4m3, or e5m2
};

struct Wgmma {
  float* d;  // [columns / 8][4]; integers are as wide
  uint64_t a, b;
  const uint32_t* registers;  // in place of a
  uint32_t columns, form;
};
struct WgmmaWait {
  uint32_t newest;
  bool done;
};
Compute wgmma_fence, wgmma_issue, wgmma_commit, wgmma_wait;
// The rest of a wait that was not done: until the other warps have issued what it waits for.
void wgmma_await(uint32_t newest);

}  // namespace jaxmono::emulate
