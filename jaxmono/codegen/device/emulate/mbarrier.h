// The functions of ptx_mbarrier.cuh on the host.
//
// A word counts down the arrivals of its phase. An arrival that belongs to cp.async comes when the
// thread's earlier copies happen: by the seed at once, or only when somebody waits for the barrier.
// fence_proxy_async: with some seeds wgmma reads a second copy of shared memory, which only cp.async
// and a fence bring up to date, so that a missing one shows.
#pragma once
#include "emulate/hopper.h"
#include "emulate/ptx.h"

namespace jaxmono {
inline void mbarrier_init(uint64_t* bar, uint32_t arrivals) {
  emulate::check_shared(emulate::self(), bar, 8, "mbarrier_init");
  emulate::mbarrier_init(bar, arrivals);
}
inline void mbarrier_fence_init() {}
inline void mbarrier_arrive(uint64_t* bar) {
  emulate::check_shared(emulate::self(), bar, 8, "mbarrier_arrive");
  emulate::mbarrier_arrive(bar);
}
inline void cp_async_mbarrier_arrive(uint64_t* bar) {
  emulate::check_shared(emulate::self(), bar, 8, "cp_async_mbarrier_arrive");
  emulate::mbarrier_arrive_later(bar);
}
inline void mbarrier_wait(uint64_t* bar, uint32_t parity) {
  emulate::check_shared(emulate::self(), bar, 8, "mbarrier_wait");
  emulate::mbarrier_wait(bar, parity);
}
inline void fence_proxy_async() { emulate::fence_proxy_async(); }

}  // namespace jaxmono
