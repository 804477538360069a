// Waiting for other blocks. Only in a cooperative launch: every block that is waited for runs.
//
//   struct GridBarrier                         a __device__ variable, zero at load, reusable forever
//   void grid_barrier(GridBarrier*)            all threads of all blocks
//   uint32_t grid_arrive(GridBarrier*), void grid_wait(GridBarrier*, uint32_t)   its two halves
//   uint32_t grid_announce(GridBarrier*), void grid_look(GridBarrier*, uint32_t)   what thread 0 does in
//                                              them, behind and before a barrier of the block
//   void counter_signal(uint32_t* c, uint32_t n = 1)   all threads of a block: what it wrote before
//                                              happens before what follows a counter_wait that sees it
//   void counter_wait(uint32_t* c, uint32_t target)    all threads of a block: until *c has reached
//                                              target (wraps: compared by difference)
//   bool still_going(const bool*)              all threads: a bool that another block may have written in front
//                                              of the last grid barrier
//   void wait_until(predicate, what, ns = 0)   one thread; pauses so long, yields in the emulator
//   void wait_together(predicate, what, ns = 0)   the lanes of a warp that are here, until it holds in all of them
#pragma once
#include "jaxmono/opaque.cuh"
#include "jaxmono/ptx.cuh"
#include "jaxmono/warp.cuh"

namespace jaxmono {

#ifdef JAXMONO_EMULATE
// Registered, so that the emulator can zero it after an aborted launch.
struct GridBarrier : emulate::ModuleState {
  uint32_t word = 0;
  GridBarrier() : ModuleState(&word, sizeof word) {}
};

template <class P>
JM_DEVICE void wait_until(const P& ready, const char* what, int = 0) {
  emulate::wait_until(ready, what);
}
#else
struct GridBarrier {
  uint32_t word;
};

template <class P>
JM_DEVICE void wait_until(const P& ready, const char*, int pause = 0) {
  while (!ready())
    if (pause > 0) nanosleep(static_cast<uint32_t>(pause));
}
#endif

// Lanes that come here together go on together. Those that each wait for themselves part, and where a barrier
// of the block is next, ptxas (13.0) may take the warp for whole behind the loop: parts of it pass bar.sync one
// by one (compute-sanitizer's synccheck tells), which counts each for a warp. GPT-2's decode step hung so, with
// nothing changed but how sums are dealt, and a loop whose blocks went on a trip ahead. With barrier.sync, which
// looks whether a warp is whole, GPT-2, OPT-125M and T5-base took 6 to 7 % more of an H100's time, BERT-base 2 to
// 4, ResNet-50 b1 4, Llama-1B and ViT-B/16 none.
//
// Which lanes are here together nobody knows: while some of a warp wait, those that have nothing to wait for go
// on beyond the end of the `if` that parted them (the YIELD in such a loop lets them). They may come here from a
// later trip: then neither those of this trip nor they would go on, if they waited for what these store. CTC's
// gradient hung so: 149 trips of stages without barriers between them. Or they come to a barrier of the block by
// themselves. Therefore the lanes of a warp meet again (codegen/parted.py), and what a task waits for is of
// stages before its own. The emulator takes all lanes of a warp that wait for being together, and reports a
// barrier of the block to which lanes of a warp come that have not waited at the same places.
template <class P>
JM_DEVICE void wait_together(const P& ready, const char* what, int pause = 0) {
#ifdef JAXMONO_EMULATE
  emulate::wait_together(ready, what);
#else
  const uint32_t lanes = active_lanes();
  wait_until([&] { return warp_all(ready(), lanes); }, what, pause);
#endif
}

// The two halves of grid_barrier. Between them a block may work on what no other block touches:
// request weights, say. The ticket means something to thread 0 only.
JM_DEVICE uint32_t grid_announce(GridBarrier* barrier) {
  if (fresh(thread_id()) != 0) return 0;
  // One barrier adds 2^31 in all: the low bits are zero again and the top bit has flipped. So the
  // state fits any later grid size, and nothing overflows.
  const uint32_t blocks = static_cast<uint32_t>(num_blocks());
  return atom_add_acq_rel_gpu(&barrier->word, block_id() == 0 ? 0x80000000u - (blocks - 1) : 1u);
}

JM_DEVICE uint32_t grid_arrive(GridBarrier* barrier) {
  syncthreads();  // all warps have arrived, and their writes precede the release in grid_announce
  return grid_announce(barrier);
}

// Blocks that look without a pause are in the way of those that still arrive: with one of 20 ns BERT-base
// b1 took 0.8 % less time on an H200, ViT-B/16 b1 1.2 %, the T5-base encoder b1 0.5 %; with 100 ns all
// gained less. All of these barriers were slower in a kernel of nothing else (0.85 us): a release without an
// answer 0.95, a fence apart from it 0.95, looks without order and a fence 0.98, two looks at a time 1.05.
JM_DEVICE void grid_look(GridBarrier* barrier, uint32_t ticket) {
  if (fresh(thread_id()) == 0)
    wait_until([&] { return ((ld_acquire_gpu(&barrier->word) ^ ticket) >> 31) != 0; },
               "grid_barrier", 20);
}

JM_DEVICE void grid_wait(GridBarrier* barrier, uint32_t ticket) {
  grid_look(barrier, ticket);
  syncthreads();
}

JM_DEVICE void grid_barrier(GridBarrier* barrier) { grid_wait(barrier, grid_arrive(barrier)); }

JM_DEVICE bool still_going(const bool* flag) {
  // The same in all lanes, and known to be by the compiler: barriers of the block follow.
  return warp_all(*static_cast<const volatile bool*>(flag));
}

JM_DEVICE void counter_signal(uint32_t* counter, uint32_t n = 1) {
  syncthreads();
  if (fresh(thread_id()) == 0) red_add_release_gpu(counter, n);
}

JM_DEVICE void counter_wait(uint32_t* counter, uint32_t target) {
  if (fresh(thread_id()) == 0)
    wait_until([&] { return static_cast<int32_t>(ld_acquire_gpu(counter) - target) >= 0; },
               "counter_wait");
  syncthreads();
}

}  // namespace jaxmono
