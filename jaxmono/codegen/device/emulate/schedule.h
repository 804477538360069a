// Which warp runs next, what happens when none can, and the message when none ever will.
#pragma once
#include "emulate/grid.h"

namespace jaxmono::emulate {
namespace {

// In order: the warp after the last one, same block first, so that caches stay warm. At random:
// random priorities that are redrawn now and then; so some warps and blocks run far ahead of others,
// which is what a missing barrier needs in order to show.
Warp* pick(Worker& worker) {
  if (worker.random == 0) {
    for (int i = 0; i <= worker.n_blocks; ++i) {
      const int at = (worker.last_block + i) % worker.n_blocks;
      Block& block = *worker.blocks[at];
      for (int j = 1; j <= block.n_warps; ++j) {
        const int w = (worker.last_warp + j) % block.n_warps;
        if (!block.warps[w].ready) continue;
        worker.last_block = at, worker.last_warp = w;
        return &block.warps[w];
      }
    }
    return nullptr;
  }
  Warp* best = nullptr;
  uint64_t best_priority = 0;
  for (int i = 0; i < worker.n_blocks; ++i) {
    Block& block = *worker.blocks[i];
    for (int j = 0; j < block.n_warps; ++j) {
      Warp& w = block.warps[j];
      const uint64_t priority = static_cast<uint64_t>(block.priority) << 32 | w.priority;
      if (!w.ready || (best != nullptr && priority <= best_priority)) continue;
      best = &w, best_priority = priority;
    }
  }
  if (best != nullptr) {
    if (draw(worker.random) % 8 == 0) best->priority = static_cast<uint32_t>(draw(worker.random));
    if (draw(worker.random) % 64 == 0)
      best->block->priority = static_cast<uint32_t>(draw(worker.random));
    best->step = static_cast<int>(draw(worker.random) % 32 | 1);
  }
  return best;
}

// Runs a warp until none of its lanes can go on.
void enter(Worker& worker, Warp& w) {
  int lane = worker.random == 0 ? 0 : static_cast<int>(draw(worker.random) % 32);
  for (int i = 0; i < 32 && w.state[lane] != RUNNABLE; ++i) lane = (lane + 1) & 31;
  w.ready = w.preempted = false;
  if (w.state[lane] != RUNNABLE) return;
  jaxmono_switch(&worker.sp, w.sp[lane]);
  w.ready = w.preempted;
}

// Lets every polling lane look once. True if any thread got somewhere.
bool poll(Worker& worker) {
  if (worker.polling == 0) return false;
  const uint64_t before = worker.events;
  for (int i = 0; i < worker.n_blocks; ++i)
    for (int j = 0; j < worker.blocks[i]->n_warps && !aborted(*worker.grid); ++j) {
      Warp& w = worker.blocks[i]->warps[j];
      if (w.polling == 0) continue;
      for (int l = 0; l < 32; ++l) {
        if (w.state[l] == POLLING) w.state[l] = RUNNABLE;
      }
      worker.polling -= w.polling;
      w.polling = 0;
      enter(worker, w);
    }
  return worker.events != before;
}

// Whether two lanes of a block wait for the same thing.
bool alike(const Warp& a, int i, const Warp& b, int j) {
  if (a.state[i] != b.state[j]) return false;
  if (a.state[i] == IN_COLLECTIVE) return &a == &b || a.name == b.name;
  if (a.state[i] != POLLING && a.state[i] != WAITING) return true;
  return a.wait[i].what == b.wait[j].what && a.wait[i].mbarrier == b.wait[j].mbarrier &&
         a.wait[i].parity == b.wait[j].parity;
}

struct Text {
  char* at;
  size_t left;
  __attribute__((format(printf, 2, 3))) void add(const char* format, ...) {
    va_list args;
    va_start(args, format);
    const int n = vsnprintf(at, left, format, args);
    va_end(args);
    const size_t used = n < 0 ? 0 : static_cast<size_t>(n) < left ? static_cast<size_t>(n) : left - 1;
    at += used, left -= used;
  }
};

void describe_lane(Text& text, const Block& block, const Warp& w, int lane) {
  const uint8_t state = w.state[lane];
  if (state == IN_COLLECTIVE) {
    text.add("%s (%d of 32 lanes arrived)", w.name, w.arrived);
  } else if (state == POLLING || state == WAITING) {
    const Wait& wait = w.wait[lane];
    text.add("%s", wait.what);
    if (wait.mbarrier == nullptr) return;
    Mbarrier bar;
    memcpy(&bar, wait.mbarrier, sizeof bar);
    const unsigned char* at = static_cast<const unsigned char*>(wait.mbarrier);
    text.add(" for parity %u at shared memory offset %d (%d of %d arrivals)", wait.parity,
             static_cast<int>(at - block.shared), bar.expected - bar.pending, bar.expected);
  } else if (state >= AT_BARRIER) {
    const Barrier& b = block.barriers[state - AT_BARRIER];
    text.add("%s %d (%d of %d threads arrived)", b.what, state - AT_BARRIER, b.arrived, b.threads);
  } else {
    text.add(state == EXITED ? "has exited" : "runs");
  }
}

// "block 0 threads 0-31: syncthreads 0 (32 of 64 threads arrived); ..."
void report_deadlock(Grid& grid) {
  char message[1500];
  Text text = {message, sizeof message};
  int lines = 0;
  text.add("deadlock: no thread can go on.");
  for (int i = 0; i < grid.launch->blocks; ++i) {
    const Block& block = grid.blocks[i];
    const int threads = block.n_warps * 32;
    if (block.exited == threads) continue;
    for (int first = 0, t = 1; t <= threads; ++t) {
      const Warp& a = block.warps[first / 32];
      if (t < threads && alike(a, first % 32, block.warps[t / 32], t % 32)) continue;
      if (++lines <= 12) {
        text.add("%s block %d threads %d-%d: ", lines == 1 ? "" : ";", i, first, t - 1);
        describe_lane(text, block, a, first % 32);
      }
      first = t;
    }
  }
  if (lines > 12) text.add("; and %d more", lines - 12);
  if (grid.error_bytes > 0)
    snprintf(grid.error, static_cast<size_t>(grid.error_bytes), "%s", message);
}

// Nothing of this worker can run. Waits until a poll succeeds; a deadlock is when all workers are
// idle and each has polled in vain after the last moment at which any of them did anything.
void idle(Worker& worker) {
  Grid& grid = *worker.grid;
  pthread_mutex_lock(&grid.mutex);
  ++grid.idle;
  for (int spins = 0; !aborted(grid); ++spins) {
    const uint64_t round = grid.round;
    const bool all_idle = grid.idle + grid.finished == grid.n_workers;
    pthread_mutex_unlock(&grid.mutex);
    const bool progress = poll(worker);
    if (!progress && !all_idle) {
      if (spins < 64) sched_yield();
      else {
        const timespec pause = {0, 50000};
        nanosleep(&pause, nullptr);
      }
    }
    pthread_mutex_lock(&grid.mutex);
    if (progress) {
      ++grid.round;
      grid.confirmed = 0;
      break;
    }
    if (!all_idle || round != grid.round || worker.confirmed_round == round) continue;
    worker.confirmed_round = round;
    if (++grid.confirmed < grid.idle || aborted(grid)) continue;
    report_deadlock(grid);
    __atomic_store_n(&grid.aborted, true, __ATOMIC_RELAXED);
  }
  --grid.idle;
  pthread_mutex_unlock(&grid.mutex);
}

void run_worker(Worker& worker) {
  Grid& grid = *worker.grid;
  while (worker.live > 0 && !aborted(grid)) {
    if (worker.random != 0 && worker.polling > 0 && draw(worker.random) % 16 == 0) poll(worker);
    if (Warp* w = pick(worker)) enter(worker, *w);
    else if (worker.live > 0 && !poll(worker)) idle(worker);
  }
  pthread_mutex_lock(&grid.mutex);
  ++grid.finished;
  ++grid.round;  // its last writes may be what others wait for
  grid.confirmed = 0;
  pthread_mutex_unlock(&grid.mutex);
}

}  // namespace
}  // namespace jaxmono::emulate
