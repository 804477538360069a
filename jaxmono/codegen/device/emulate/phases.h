// mbarriers: phases, waits, and the arrivals that belong to cp.async.
#pragma once
#include "emulate/grid.h"
#include "emulate/hopper.h"
#include "emulate/ptx.h"

namespace jaxmono::emulate {
namespace {

Mbarrier& mbarrier_at(const Lane& me, void* word, const char* what) {
  auto& bar = *static_cast<Mbarrier*>(word);
  if ((bar.phase & ~1) != MBARRIER)
    fail("%s: there is no mbarrier at shared memory offset %td of block %d (thread %d): not "
         "initialised, no block barrier since, or overwritten",
         what, static_cast<unsigned char*>(word) - me.shared, me.block_id, me.thread_id);
  return bar;
}

void arrive(Lane& me, Mbarrier& bar) {
  ++me.warp->worker->events;
  if (--bar.pending != 0) return;
  bar.pending = bar.expected;
  bar.phase ^= 1;
}

// Makes the copies happen that arrive at `bar`, each thread's up to its first arrival; at random,
// also those behind it.
void land_copies(Lane& me, const Mbarrier& bar) {
  uint64_t& random = me.warp->worker->random;
  for (int t = 0; t < me.threads; ++t) {
    Copies& q = *lane_of(*me.block, t).copies;
    if (q.arrivals == 0) continue;
    uint32_t end = q.head;
    while (end != q.tail && q.ring[end & q.mask].to != &bar) ++end;
    if (end == q.tail) continue;
    const uint32_t last = random != 0 && draw(random) % 4 == 0 ? q.tail : end + 1;
    while (q.head != last) land(q);
  }
}

bool phase_complete(Lane& me, Mbarrier& bar, uint32_t parity) {
  if ((bar.phase & 1u) == parity && bar.landing != 0) land_copies(me, bar);
  return (bar.phase & 1u) != parity;
}

}  // namespace

void landed(void* word) {
  Lane& me = self();
  Mbarrier& bar = mbarrier_at(me, word, "cp_async_mbarrier_arrive");
  --bar.landing;
  arrive(me, bar);
}

void mbarrier_init(void* word, uint32_t arrivals) {
  if (arrivals == 0 || arrivals > 0xffff)
    fail("mbarrier_init for %u arrivals: 1 to 65535", arrivals);
  const auto n = static_cast<uint16_t>(arrivals);
  *static_cast<Mbarrier*>(word) = {n, n, 0, MBARRIER};
}

void mbarrier_arrive(void* word) {
  Lane& me = self();
  arrive(me, mbarrier_at(me, word, "mbarrier_arrive"));
  preempt(me, 8);
}

void mbarrier_arrive_later(void* word) {
  Lane& me = self();
  Mbarrier& bar = mbarrier_at(me, word, "cp_async_mbarrier_arrive");
  Copies& q = *me.copies;
  if (q.head == q.tail) {
    arrive(me, bar);
  } else {
    ++bar.landing;
    ++q.arrivals;
    if (q.tail - q.head > q.mask) grow(q);
    q.ring[q.tail++ & q.mask] = {word, nullptr, 0, q.groups};
  }
  choose_early(q);
  preempt(me, 32);
}

void mbarrier_expect_later(void* word) {
  ++mbarrier_at(self(), word, "tma_load").pending;
  mbarrier_arrive_later(word);
}

void mbarrier_wait(void* word, uint32_t parity) {
  Lane& me = self();
  Mbarrier& bar = mbarrier_at(me, word, "mbarrier_wait");
  if (parity > 1) fail("mbarrier_wait for parity %u: it is 0 or 1", parity);
  if (!phase_complete(me, bar, parity)) {
    do poll_for(me, {"mbarrier_wait", word, parity});
    while (!phase_complete(me, bar, parity));
    resumed();
  }
  preempt(me, 32);
}

void fence_proxy_async() {
  Lane& me = self();
  if (me.block->view != me.shared) memcpy(me.block->view, me.shared, me.shared_bytes);
}

}  // namespace jaxmono::emulate
