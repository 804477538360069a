// Memory and OS threads of a launch.
#pragma once
#include <sys/mman.h>

#include <new>

#include "emulate/grid.h"

namespace jaxmono::emulate {
namespace {

constexpr size_t COPIES = 64;  // cp.async that a thread can have pending before its ring grows
constexpr size_t SHARED_ALIGN = 1024;
constexpr size_t RED_ZONE = 1024;  // after shared memory: whoever writes here has overrun it
constexpr unsigned char POISON = 0xff;  // NaN in every float type

size_t shared_stride(const Launch& launch) {
  return (launch.shared_bytes + RED_ZONE + SHARED_ALIGN - 1) / SHARED_ALIGN * SHARED_ALIGN;
}

void start_lane(Grid& grid, Block& block, Warp& w, int lane, uint64_t& random) {
  const Launch& launch = *grid.launch;
  const int thread = w.index * 32 + lane;
  unsigned char* base = block.stacks + static_cast<size_t>(thread) * STACK_BYTES;
  const uintptr_t shift = colour(reinterpret_cast<uintptr_t>(base));
  auto& copies = *new (base + shift + sizeof(Lane)) Copies{};
  copies.ring = static_cast<Copy*>(malloc(COPIES * sizeof(Copy)));
  copies.mask = COPIES - 1;
  copies.view = block.view - block.shared;
  copies.random = random == 0 ? 0 : static_cast<uint32_t>(draw(random)) | 1;
  new (base + shift) Lane{&w,
                          &block,
                          block.shared,
                          thread,
                          block.index,
                          launch.blocks,
                          launch.threads,
                          static_cast<uint16_t>(lane),
                          static_cast<uint16_t>(w.index),
                          static_cast<uint32_t>(launch.shared_bytes),
                          &copies};
  canary(base) = CANARY;
  w.state[lane] = RUNNABLE;
  w.sp[lane] = fresh_stack(base + STACK_BYTES - shift, run_lane);
}

void start_block(Grid& grid, Block& block, Worker& worker) {
  const Launch& launch = *grid.launch;
  memset(block.shared, POISON, shared_stride(launch));
  if (worker.random != 0 && draw(worker.random) % 4 == 0)
    memset(block.view, POISON, launch.shared_bytes);
  else
    block.view = block.shared;
  for (int i = 0; i < block.n_warps; ++i) {
    Warp& w = block.warps[i];
    w.worker = &worker;
    w.block = &block;
    w.index = i;
    w.together = 0;
    memset(w.waits, 0, sizeof w.waits);
    w.step = 1;
    w.ready = true;
    if (worker.random != 0) w.priority = static_cast<uint32_t>(draw(worker.random));
    for (int l = 0; l < 32; ++l) start_lane(grid, block, w, l, worker.random);
  }
  if (worker.random != 0) block.priority = static_cast<uint32_t>(draw(worker.random));
  worker.live += launch.threads;
}

void* worker_main(void* arg) {
  auto& worker = *static_cast<Worker*>(arg);
  for (int i = 0; i < worker.n_blocks; ++i) start_block(*worker.grid, *worker.blocks[i], worker);
  run_worker(worker);
  return nullptr;
}

void check_overruns(Grid& grid) {
  const Launch& launch = *grid.launch;
  for (int i = 0; i < launch.blocks && !grid.aborted; ++i)
    for (size_t at = launch.shared_bytes; at < shared_stride(launch); ++at)
      if (grid.blocks[i].shared[at] != POISON) {
        snprintf(grid.error, static_cast<size_t>(grid.error_bytes),
                 "block %d wrote past its %zu bytes of shared memory, at byte %zu", i,
                 launch.shared_bytes, at);
        grid.aborted = true;
        break;
      }
}

int processors() {
  cpu_set_t set;
  return sched_getaffinity(0, sizeof set, &set) == 0 ? CPU_COUNT(&set) : 1;
}

// Everything that a launch allocates, in one mapping that the kernel returns at the end.
struct Memory {
  unsigned char* base;
  size_t bytes;
};

Memory layout(Grid& grid, bool place, Memory memory) {
  const Launch& launch = *grid.launch;
  size_t used = 0;
  const auto take = [&](size_t bytes, size_t align) {
    used = (used + align - 1) / align * align;
    unsigned char* p = place ? memory.base + used : nullptr;
    used += bytes;
    return p;
  };
  const size_t blocks = static_cast<size_t>(launch.blocks);
  const size_t warps = static_cast<size_t>(launch.threads) / 32;
  unsigned char* stacks = take(blocks * warps * 32 * STACK_BYTES, STACK_BYTES);
  unsigned char* shared = take(blocks * shared_stride(launch), SHARED_ALIGN);
  unsigned char* views = take(blocks * shared_stride(launch), SHARED_ALIGN);
  unsigned char* b = take(blocks * sizeof(Block), 64);
  unsigned char* w = take(blocks * warps * sizeof(Warp), 64);
  const size_t warpgroups = (warps + 3) / 4;
  unsigned char* g = take(blocks * warpgroups * sizeof(Warpgroup), 64);
  const size_t scratch_bytes = static_cast<size_t>(grid.n_workers) * WG_SCRATCH * sizeof(float);
  unsigned char* scratch = take(scratch_bytes, 64);
  unsigned char* threads = take(static_cast<size_t>(grid.n_workers) * sizeof(Worker), 64);
  unsigned char* lists = take(blocks * sizeof(Block*), 64);
  if (place) {
    grid.blocks = reinterpret_cast<Block*>(b);
    grid.workers = reinterpret_cast<Worker*>(threads);
    for (size_t i = 0; i < blocks; ++i) {
      Block& block = grid.blocks[i];
      block.index = static_cast<int>(i);
      block.n_warps = static_cast<int>(warps);
      block.warps = reinterpret_cast<Warp*>(w) + i * warps;
      block.warpgroups = reinterpret_cast<Warpgroup*>(g) + i * warpgroups;
      block.shared = shared + i * shared_stride(launch);
      block.view = views + i * shared_stride(launch);
      block.stacks = stacks + i * warps * 32 * STACK_BYTES;
    }
    // Neighbouring blocks go to different workers: a small grid keeps all of them busy.
    auto** list = reinterpret_cast<Block**>(lists);
    for (int k = 0; k < grid.n_workers; ++k) {
      Worker& worker = grid.workers[k];
      worker.grid = &grid;
      worker.blocks = list;
      worker.confirmed_round = ~0ull;
      worker.scratch = reinterpret_cast<float*>(scratch) + static_cast<size_t>(k) * WG_SCRATCH;
      for (size_t i = static_cast<size_t>(k); i < blocks; i += static_cast<size_t>(grid.n_workers))
        *list++ = &grid.blocks[i], ++worker.n_blocks;
    }
  }
  return {memory.base, used};
}

}  // namespace

// XLA's threads flush subnormal numbers to zero, a GPU keeps them. New threads inherit the setting.
class KeepSubnormals {
 public:
  KeepSubnormals() {
    fegetenv(&saved_);
    fesetenv(FE_DFL_ENV);
  }
  ~KeepSubnormals() { fesetenv(&saved_); }
  KeepSubnormals(const KeepSubnormals&) = delete;
  KeepSubnormals& operator=(const KeepSubnormals&) = delete;

 private:
  fenv_t saved_;
};

int launch(const Launch& what, char* error, int error_bytes) {
  if (what.blocks < 1 || what.threads < 32 || what.threads % 32 != 0 || what.threads > 1024) {
    snprintf(error, static_cast<size_t>(error_bytes),
             "%d blocks of %d threads: blocks must be positive, threads a multiple of 32 up to 1024",
             what.blocks, what.threads);
    return 1;
  }
  const KeepSubnormals numbers;
  Grid grid = {};
  grid.launch = &what;
  grid.error = error;
  grid.error_bytes = error_bytes;
  const int cores = what.seed == 0 ? processors() : 1;
  grid.n_workers = cores < what.blocks ? cores : what.blocks;
  pthread_mutex_init(&grid.mutex, nullptr);

  const size_t slack = STACK_BYTES;  // stacks are aligned to their size
  Memory memory = layout(grid, false, {});
  const size_t mapped = memory.bytes + slack;
  void* raw = mmap(nullptr, mapped, PROT_READ | PROT_WRITE,
                   MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (raw == MAP_FAILED) {
    snprintf(error, static_cast<size_t>(error_bytes),
             "no memory for the stacks of %d blocks of %d threads", what.blocks, what.threads);
    return 1;
  }
  madvise(raw, mapped, MADV_NOHUGEPAGE);  // each thread touches few of its pages
  const uintptr_t aligned = (reinterpret_cast<uintptr_t>(raw) + slack - 1) / slack * slack;
  memory.base = reinterpret_cast<unsigned char*>(aligned);
  layout(grid, true, memory);

  if (what.seed != 0) {
    uint64_t random = what.seed * 0x9e3779b97f4a7c15ull | 1;
    for (int i = 0; i < 4; ++i) draw(random);
    grid.workers[0].random = random;
  }
  for (int k = 1; k < grid.n_workers; ++k) {
    Worker& worker = grid.workers[k];
    worker.started = pthread_create(&worker.thread, nullptr, worker_main, &worker) == 0;
    if (worker.started) continue;
    pthread_mutex_lock(&grid.mutex);
    snprintf(error, static_cast<size_t>(error_bytes), "an OS thread could not be started");
    __atomic_store_n(&grid.aborted, true, __ATOMIC_RELAXED);
    pthread_mutex_unlock(&grid.mutex);
  }
  worker_main(&grid.workers[0]);
  for (int k = 1; k < grid.n_workers; ++k)
    if (grid.workers[k].started) pthread_join(grid.workers[k].thread, nullptr);

  check_overruns(grid);
  if (grid.aborted)
    for (ModuleState* s = module_states; s != nullptr; s = s->next) memset(s->data, 0, s->bytes);
  for (int i = 0; i < what.blocks; ++i) {
    const Block& block = grid.blocks[i];
    for (int t = 0; t < what.threads; ++t) {
      const Lane& lane = lane_of(block, t);
      if (lane.copies != nullptr) free(lane.copies->ring);
    }
    for (int k = 0; k < (block.n_warps + 3) / 4; ++k) free(block.warpgroups[k].ring);
  }
  munmap(raw, mapped);
  pthread_mutex_destroy(&grid.mutex);
  return grid.aborted ? 1 : 0;
}

}  // namespace jaxmono::emulate
