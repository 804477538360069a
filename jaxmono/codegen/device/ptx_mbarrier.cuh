// mbarriers: the phases of a ring of tiles between producer and consumer threads of a block. sm_90;
// see ptx.cuh for the list.
//
// A barrier is an 8-byte word of shared memory. A phase completes when `arrivals` arrivals have
// come; the next one begins at once. Phases are told apart by their parity: the first has 0, and a
// wait for parity 1 on a fresh barrier returns immediately.
#pragma once

#ifdef JAXMONO_EMULATE
#include "emulate/mbarrier.h"
#else

#include "jaxmono/ptx_async.cuh"

namespace jaxmono {

JM_DEVICE void mbarrier_init(uint64_t* bar, uint32_t arrivals) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(shared_address(bar)), "r"(arrivals)
               : "memory");
}
JM_DEVICE void mbarrier_fence_init() {
  asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}
JM_DEVICE void mbarrier_arrive(uint64_t* bar) {
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(shared_address(bar)) : "memory");
}
// .noinc: the arrival is one of those that mbarrier_init announced.
JM_DEVICE void cp_async_mbarrier_arrive(uint64_t* bar) {
  asm volatile("cp.async.mbarrier.arrive.noinc.shared::cta.b64 [%0];" ::"r"(shared_address(bar))
               : "memory");
}
JM_DEVICE void mbarrier_wait(uint64_t* bar, uint32_t parity) {
  const uint32_t address = shared_address(bar);
  uint32_t done;
  do {  // try_wait sleeps in hardware for a while before it gives up
    asm volatile(
        "{\n"
        ".reg .pred p;\n"
        "mbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2;\n"
        "selp.u32 %0, 1, 0, p;\n"
        "}"
        : "=r"(done)
        : "r"(address), "r"(parity)
        : "memory");
  } while (done == 0);
}

// Between stores and the wgmmas that read what they wrote. Not behind cp.async whose arrival has been
// waited for: PTX's model asks for it there, too, but what has arrived is in shared memory, and CUTLASS's
// loop for such producers (sm90_mma_multistage_gmma_ss_warpspecialized.hpp) has none. It waits for all
// that a thread has under way, stores of the epilogue too: without, BERT-base b1 takes 1.3 % less time,
// ResNet-50 1.4 to 2.1, RepVGG-A0 b1 4, pairs of convolutions 2 to 8.
JM_DEVICE void fence_proxy_async() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }

}  // namespace jaxmono

#endif
