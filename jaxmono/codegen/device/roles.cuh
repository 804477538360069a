// Warps with roles: the first eight of a block compute, four more bring what they compute with.
//
// A kernel that has producers defines JM_TEAM (the consumers' threads): syncthreads() and the grid
// barrier are then the consumers' own. Both roles run through the same stages and tasks, so each
// knows by counting where the other is:
//
//   released   the consumers gave shared memory to the producers: behind every stage, and behind every
//              task of a stage whose tasks use it differently
//   opened     a grid barrier has opened: what other blocks wrote before it may be read
#pragma once
#include "jaxmono/ptx.cuh"
#include "jaxmono/ptx_mbarrier.cuh"
#include "jaxmono/sync.cuh"
#include "jaxmono/warp.cuh"

namespace jaxmono {

constexpr int CONSUMERS = 256, PRODUCERS = 128;
// Registers of a thread of each. A block of 384 threads starts with 168 for each of them; more than
// these 64512 in all (256 x 208 + 128 x 88) would never be granted, and the block would hang. With
// 216 and 72 the producers of convolutions spilled (before gathered.cuh: the rows' places in the image
// took registers). With 200 and 104 attention with a mask in memory does.
constexpr int CONSUMER_REGISTERS = 208, PRODUCER_REGISTERS = 88;
constexpr int MAX_SLOTS = 16;
constexpr int PRODUCER_BARRIER = 4;  // attention has 2 and 3
constexpr int SOURCE_BARRIER = 5;    // and the next: of a warpgroup

// In shared memory for the whole launch.
struct Roles {
  uint64_t full[MAX_SLOTS], empty[MAX_SLOTS];
  uint32_t released, opened;

  JM_DEVICE void init() {  // all threads of the block
    if (thread_id() == 0) {
      for (int i = 0; i < MAX_SLOTS; ++i) {
        mbarrier_init(&full[i], PRODUCERS);
        mbarrier_init(&empty[i], CONSUMERS / 128);
      }
      released = 0;
      opened = 0;
      mbarrier_fence_init();
    }
    sync_all_threads();
  }

  // Consumers, all of them: they are done with shared memory.
  JM_DEVICE void release() {
    syncthreads();
    tell_released();
  }

  // Consumers: a grid barrier, and its halves. Shared memory is released when it is reached. LOADS: the
  // stage behind it has loads, which begin as soon as thread 0 has seen it open; otherwise it is the
  // consumers who are waited for, and they go first.
  template <bool LOADS>
  JM_DEVICE void grid_barrier(GridBarrier* barrier) {
    grid_wait<LOADS>(barrier, grid_arrive(barrier));
  }
  JM_DEVICE uint32_t grid_arrive(GridBarrier* barrier) {
    syncthreads();
    tell_released();
    return grid_announce(barrier);
  }
  template <bool LOADS>
  JM_DEVICE void grid_wait(GridBarrier* barrier, uint32_t ticket) {
    grid_look(barrier, ticket);
    if (LOADS && thread_id() == 0) red_add_release_shared(&opened, 1);
    syncthreads();
    if (!LOADS && thread_id() == 0) red_add_release_shared(&opened, 1);
  }

  // Producers, all of them: until shared memory was given `times` times. The barrier is an order that
  // racecheck knows: without it, or with one consumer's arrival for all at an mbarrier, it takes what they
  // write for a race (compute-sanitizer 2025.3). All look: where one did for all, ptxas spilled 200 bytes
  // more in ViT-B/16 b32, which took 6 % longer.
  JM_DEVICE void await_release(uint32_t times) const {
    hear(&released, times, "consumers");
    named_barrier(PRODUCER_BARRIER, PRODUCERS);
  }
  // Producers: until `times` grid barriers have opened. Each looks: with a barrier behind it the
  // T5-base encoder took 1.4 % longer on an H200, and racecheck does not watch global memory.
  JM_DEVICE void await_open(uint32_t times) const { hear(&opened, times, "the grid barrier"); }

 private:
  // Thread 0, as of all else: told by the last warp, with which thread 0 goes on to the grid barrier at once,
  // BERT-base b1 took 0.5 % longer on an H200 and the T5-base encoder b16 4 %.
  JM_DEVICE void tell_released() {
    if (thread_id() == 0) red_add_release_shared(&released, 1);
  }

  JM_DEVICE static void hear(const uint32_t* count, uint32_t value, const char* what) {
    wait_until([&] { return static_cast<int32_t>(ld_acquire_shared(count) - value) >= 0; }, what);
  }
};

// One role's place in the ring. The bits of `phase` say which phase of a slot's barrier comes next.
// fresh: the producers have loaded nothing yet that stays for the tasks behind this one.
struct Place {
  int slot = 0;
  uint32_t phase = 0;
  bool fresh = true;

  template <int SLOTS>
  JM_DEVICE void next() {
    phase ^= 1u << slot;
    slot = slot + 1 == SLOTS ? 0 : slot + 1;
  }
  JM_DEVICE uint32_t parity() const { return parity(slot); }
  // Of a slot that is not one of the ring, whose phases come one after the other.
  JM_DEVICE uint32_t parity(int of) const { return phase >> of & 1; }
  JM_DEVICE void flip(int of) { phase ^= 1u << of; }
};

}  // namespace jaxmono
