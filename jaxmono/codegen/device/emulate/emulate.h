// SIMT on the host: what a kernel's translation unit sees of the emulator. Included before the
// kernel's source, whose CUDA keywords it empties.
//
//   one fiber per CUDA thread, on a stack of its own; a thread runs until it waits
//   warp collectives: each lane leaves its arguments, the last one to arrive computes for all
//   blocks are spread over OS threads (seed 0), or interleave at random, reproducibly, on one
//
// Scheduling, the context switch and tensor-core arithmetic are in runtime.cc, compiled once.
#pragma once
// C's header: libstdc++'s own brings <cmath>, whose special functions take most of the 0.15 s that a
// small kernel compiles.
#define _GLIBCXX_INCLUDE_NEXT_C_HEADERS
#include <math.h>
#undef _GLIBCXX_INCLUDE_NEXT_C_HEADERS
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#define JAXMONO_EMULATE 1
#define __global__
#define __device__
#define __constant__
#define __forceinline__ inline
#define __launch_bounds__(...)
#define __grid_constant__
// __shared__ stays undefined: kernels have dynamic shared memory only.

namespace jaxmono::emulate {

constexpr uintptr_t STACK_BYTES = 1 << 17;

struct Warp;
struct Block;

// One pending cp.async, or the arrival at an mbarrier that follows those before it.
struct Copy {
  void* to;
  const void* from;  // null: zeros
  uint32_t bytes;    // 0: an arrival at `to`
  uint32_t group;
};

// The cp.async of one thread, oldest first: a ring of capacity `mask` + 1.
struct Copies {
  Copy* ring;
  uint32_t mask, head, tail;
  uint32_t groups;  // committed so far
  uint32_t arrivals;  // in the ring
  uint32_t random;  // state of a generator; 0: copies happen as late as possible, always
  bool early;       // the copies of the current group, or up to the next arrival, happen at issue
  ptrdiff_t view;   // from shared memory to what wgmma reads
  bool unfenced;    // a barrier of several warps has been passed since fence_proxy_async_all
};

// What a thread knows of itself. It lies in the thread's own stack, so that no thread-local
// variable is needed to find it.
struct Lane {
  Warp* warp;
  Block* block;
  unsigned char* shared;
  int thread_id, block_id, blocks, threads;
  uint16_t lane_id, warp_id;
  uint32_t shared_bytes;
  Copies* copies;
};
static_assert(sizeof(Lane) <= 64, "a Lane is one cache line");

// Lanes that lie at the same offset of their stacks would share one cache set: spread them.
inline uintptr_t colour(uintptr_t stack) { return (stack / STACK_BYTES % 32) * 128; }

// At the end of the page that has the Lane: a stack that grows too long meets it first.
constexpr uintptr_t CANARY_AT = 4096 - sizeof(uint64_t);

inline Lane& self() {
  uintptr_t p;
  __asm__("movq %%rsp, %0" : "=r"(p));
  p &= ~(STACK_BYTES - 1);
  return *reinterpret_cast<Lane*>(p + colour(p));
}

// ---- runtime.cc ----------------------------------------------------------------------------------

using Compute = void(void* const* args);  // args[lane]

// Meets the other 31 lanes; the last one runs compute on everybody's arguments.
void collective(void* arg, Compute* compute, const char* what);
// Meets `threads` threads of the block. id 0 is syncthreads.
void barrier(int id, int threads, const char* what);
// Lets others run; returns when it is this thread's turn to look again at what it polls.
void pause(const char* what);
// What this thread polled for has come.
void resumed();
// Ends the launch with a message.
[[noreturn]] void fail(const char* format, ...) __attribute__((format(printf, 1, 2)));
void grow(Copies& copies);
// The copies of an arrival have happened.
void landed(void* mbarrier);

template <class P>
inline void wait_until(const P& ready, const char* what) {
  if (ready()) return;
  do pause(what);
  while (!ready());
  resumed();
}

// A lane waits until that holds, and for all lanes of its warp that wait so: which of them the GPU has go on
// together is not known. Each asks for all, so a predicate must not ask whose it is (lane_id).
using Ready = bool(const void* predicate);
void join(Ready* ready, const void* predicate);
bool all_joined_are_ready();
void leave();

template <class P>
inline void wait_together(const P& ready, const char* what) {
  join([](const void* p) { return (*static_cast<const P*>(p))(); }, &ready);
  wait_until(all_joined_are_ready, what);
  leave();
}

// State of the module that has to be zero again after an aborted launch.
struct ModuleState {
  ModuleState* next;
  void* data;
  size_t bytes;
  ModuleState(void* data, size_t bytes);
};

struct Launch {
  void (*kernel)(const void* params);
  const void* params;
  int threads, blocks;
  size_t shared_bytes;
  unsigned long long seed;
};
// Runs a grid to completion. Returns 0, or writes a message into error.
int launch(const Launch& launch, char* error, int error_bytes);

}  // namespace jaxmono::emulate

#include "emulate/numbers.h"

// The entry point of the shared object. A seed of 0: in order, on all cores; any other: one OS
// thread, the same random interleaving for the same seed.
#define JAXMONO_EMULATE_MAIN(KERNEL, PARAMS, BUFFERS, THREADS, SHARED_BYTES)                      \
  extern "C" __attribute__((visibility("default"))) int jaxmono_emulate(                         \
      void* const* buf, int blocks, unsigned long long seed, char* error, int error_len) {       \
    static_assert(sizeof(PARAMS) == sizeof(void*) * (BUFFERS), "Params is the buffer pointers"); \
    PARAMS params;                                                                               \
    memcpy(&params, buf, sizeof params);                                                         \
    const jaxmono::emulate::Launch what = {                                                      \
        [](const void* p) { KERNEL(*static_cast<const PARAMS*>(p)); },                           \
        &params, THREADS, blocks, SHARED_BYTES, seed};                                           \
    return jaxmono::emulate::launch(what, error, error_len);                                     \
  }
