// The emulator's scheduler: fibers, collectives, barriers, deadlock detection.
//
// Within a warp, a lane that has to wait switches straight to the next lane; the scheduler is
// entered only when no lane of the warp can go on. C library only: kernels link this statically.
#include <fenv.h>
#include <sched.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#include "emulate/grid.h"
#include "emulate/hopper.h"
#include "emulate/matrix.h"
#include "emulate/switch.h"

namespace jaxmono::emulate {
namespace {

ModuleState* module_states = nullptr;

bool aborted(const Grid& grid) { return __atomic_load_n(&grid.aborted, __ATOMIC_RELAXED); }

// The first message wins.
void abort_with(Grid& grid, const char* format, va_list args) {
  pthread_mutex_lock(&grid.mutex);
  if (!aborted(grid)) {
    if (grid.error_bytes > 0)
      vsnprintf(grid.error, static_cast<size_t>(grid.error_bytes), format, args);
    __atomic_store_n(&grid.aborted, true, __ATOMIC_RELAXED);
  }
  pthread_mutex_unlock(&grid.mutex);
}

constexpr uint64_t CANARY = 0x6a61786d6f6e6f21;

uint64_t& canary(void* in_stack) {
  const uintptr_t base = reinterpret_cast<uintptr_t>(in_stack) & ~(STACK_BYTES - 1);
  return *reinterpret_cast<uint64_t*>(base + CANARY_AT);
}

// Leaves `lane`, which cannot go on, for another lane of its warp or else for the scheduler.
void leave(Warp& w, int lane) {
  int n = lane;
  for (int i = 0; i < 31; ++i) {
    n = (n + w.step) & 31;
    if (w.state[n] == RUNNABLE) {
      jaxmono_switch(&w.sp[lane], w.sp[n]);
      return;
    }
  }
  jaxmono_switch(&w.sp[lane], w.worker->sp);
}

// Now and then, at random: lets other warps run first.
void preempt(Lane& me, uint64_t one_in) {
  Warp& w = *me.warp;
  Worker& worker = *w.worker;
  if (worker.random == 0 || draw(worker.random) % one_in != 0) return;
  w.preempted = true;
  w.ready = true;
  jaxmono_switch(&w.sp[me.lane_id], worker.sp);
}

void check_retired(const Lane& me);

void run_lane() {
  Lane& me = self();
  Warp& w = *me.warp;
  const Launch& launch = *w.worker->grid->launch;
  launch.kernel(launch.params);
  if (canary(&me) != CANARY)
    fail("block %d thread %d needs more than %d KiB of stack", me.block_id, me.thread_id,
         static_cast<int>(STACK_BYTES / 1024));
  check_retired(me);
  w.state[me.lane_id] = EXITED;
  ++me.block->exited;
  --w.worker->live;
  ++w.worker->events;
  leave(w, me.lane_id);
  abort();  // an exited lane is never resumed
}

}  // namespace

void collective(void* arg, Compute* compute, const char* what) {
  Lane& me = self();
  Warp& w = *me.warp;
  const int lane = me.lane_id;
  if (w.arrived == 0) {
    w.compute = compute;
    w.name = what;
  } else if (w.compute != compute) {
    fail("the lanes of warp %d of block %d meet at different collectives: %s and, lane %d, %s",
         w.index, me.block_id, w.name, lane, what);
  }
  w.args[lane] = arg;
  if (++w.arrived < 32) {
    w.state[lane] = IN_COLLECTIVE;
    leave(w, lane);
    return;
  }
  w.arrived = 0;
  memset(w.waits, 0, sizeof w.waits);
  compute(w.args);
  memset(w.state, RUNNABLE, sizeof w.state);
  ++w.worker->events;
  preempt(me, 16);
}

// Lanes that waited for others' words part from those that did not (sync.cuh): on the GPU a barrier of the
// block counts each part for a warp.
static void check_whole(const Warp& w, const char* what) {
  for (int l = 1; l < 32; ++l)
    if (w.waits[l] != w.waits[0])
      fail("warp %d of block %d may come to %s in parts: lanes 0 and %d have not waited at the same places "
           "since all of its lanes met",
           w.index, w.block->index, what, l);
}

void barrier(int id, int threads, const char* what) {
  Lane& me = self();
  Block& block = *me.block;
  if (id < 0 || id >= BARRIERS || threads % 32 != 0 || threads > me.threads)
    fail("%s %d of %d threads: ids are 0..15, counts multiples of 32 up to %d", what, id, threads,
         me.threads);
  Barrier& b = block.barriers[id];
  if (b.arrived != 0 && b.threads != threads)
    fail("barrier %d of block %d is asked for %d and for %d threads", id, block.index, b.threads,
         threads);
  b.threads = threads;
  b.what = what;
  ++me.warp->worker->events;
  const uint8_t waiting = static_cast<uint8_t>(AT_BARRIER + id);
  if (++b.arrived < threads) {
    me.warp->state[me.lane_id] = waiting;
    leave(*me.warp, me.lane_id);
    return;
  }
  b.arrived = 0;
  for (int i = 0; i < block.n_warps; ++i) {
    Warp& w = block.warps[i];
    if (&w == me.warp || memchr(w.state, waiting, sizeof w.state) != nullptr) check_whole(w, what);
    for (int l = 0; l < 32; ++l) {
      if (w.state[l] == waiting) w.state[l] = RUNNABLE, w.ready = true;
    }
  }
  preempt(me, 2);
}

static void poll_for(Lane& me, const Wait& wait) {
  Warp& w = *me.warp;
  w.state[me.lane_id] = POLLING;
  w.wait[me.lane_id] = wait;
  ++w.polling;
  ++w.worker->polling;
  leave(w, me.lane_id);
}

void pause(const char* what) { poll_for(self(), {what, nullptr, 0}); }

void resumed() { ++self().warp->worker->events; }

void join(Ready* ready, const void* predicate) {
  Lane& me = self();
  Warp& w = *me.warp;
  w.joined[me.lane_id] = ready;
  w.predicate[me.lane_id] = predicate;
  w.together |= 1u << me.lane_id;
}

bool all_joined_are_ready() {
  const Warp& w = *self().warp;
  for (int l = 0; l < 32; ++l)
    if ((w.together >> l & 1) != 0 && !w.joined[l](w.predicate[l])) return false;
  return true;
}

void leave() {
  Lane& me = self();
  Warp& w = *me.warp;
  w.together &= ~(1u << me.lane_id);
  const auto where = reinterpret_cast<uintptr_t>(w.joined[me.lane_id]);  // of each kind of wait another
  w.waits[me.lane_id] = 31 * w.waits[me.lane_id] + where;
}

void fail(const char* format, ...) {
  Lane& me = self();
  Warp& w = *me.warp;
  va_list args;
  va_start(args, format);
  abort_with(*w.worker->grid, format, args);
  va_end(args);
  jaxmono_switch(&w.sp[me.lane_id], w.worker->sp);
  abort();  // nothing runs after an abort
}

void grow(Copies& q) {
  const uint32_t capacity = 2 * (q.mask + 1);
  auto* ring = static_cast<Copy*>(malloc(capacity * sizeof(Copy)));
  if (ring == nullptr) fail("out of memory for pending cp.async");
  for (uint32_t i = q.head; i != q.tail; ++i) ring[i & (capacity - 1)] = q.ring[i & q.mask];
  free(q.ring);
  q.ring = ring;
  q.mask = capacity - 1;
}

ModuleState::ModuleState(void* data, size_t bytes) : next(module_states), data(data), bytes(bytes) {
  module_states = this;
}

}  // namespace jaxmono::emulate

#include "emulate/phases.h"
#include "emulate/warpgroup.h"
#include "emulate/schedule.h"
#include "emulate/launch.h"
