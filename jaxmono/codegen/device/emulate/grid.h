// A launch as the scheduler holds it: blocks of warps of lanes, and the OS threads that run them.
#pragma once
#include <pthread.h>
#include <stdint.h>
#include <string.h>

#include "emulate/emulate.h"

namespace jaxmono::emulate {

enum State : uint8_t {
  RUNNABLE,
  IN_COLLECTIVE,
  POLLING,  // looks again when nothing else can run
  WAITING,  // until somebody wakes it
  EXITED,
  AT_BARRIER /* + barrier id */
};
constexpr int BARRIERS = 16;

struct Worker;

// What a polling or waiting lane waits for.
struct Wait {
  const char* what;
  const void* mbarrier;  // or null
  uint32_t parity;
};

// The word of an mbarrier.
struct Mbarrier {
  uint16_t pending, expected;  // arrivals that the phase lacks; of a whole phase
  uint16_t landing;            // arrivals that wait for cp.async
  uint16_t phase;              // MBARRIER + its parity
};
constexpr uint16_t MBARRIER = 0x4d42;  // even; poison and zero are not barriers
static_assert(sizeof(Mbarrier) == sizeof(uint64_t), "an mbarrier is 8 bytes");

// A wgmma that has been issued by at least one warp of its warpgroup.
struct Product {
  uint64_t a, b;
  uint32_t columns, form;
  uint64_t group;
  float* d[128];  // of the threads of the warps that have issued it
  const uint32_t* registers[128];  // likewise, where the left operand is there
};

// The wgmmas of four warps: a ring of capacity `mask` + 1. Counts since launch.
struct Warpgroup {
  Product* ring;
  uint64_t mask, done, issued_by_any;
  uint64_t issued[4], groups[4];  // of each warp
  bool fenced[4];
};

struct Warp {
  void* sp[32];        // saved stack pointers
  void* args[32];      // of the collective that is being gathered
  uint8_t state[32];   // State
  Wait wait[32];
  Compute* compute;    // of the collective
  const char* name;
  Ready* joined[32];   // what lanes wait for together
  const void* predicate[32];
  uint32_t together;   // these lanes
  uint64_t waits[32];  // where lanes have waited since all last met, as one number
  Worker* worker;
  Block* block;
  int arrived;   // at the collective
  int polling;   // lanes
  int step;      // odd: lane -> next lane
  int index;     // in the block
  uint32_t priority;
  bool ready;      // has a lane that can run
  bool preempted;  // left while it could run
};

struct Barrier {
  int arrived, threads;
  const char* what;
};

struct Block {
  Warp* warps;
  int n_warps, index, exited;
  uint32_t priority;
  Barrier barriers[BARRIERS];
  unsigned char* shared;
  unsigned char* view;  // what wgmma reads: shared memory, or a copy that lacks unfenced stores
  unsigned char* stacks;
  Warpgroup* warpgroups;
};

struct Grid;

// One OS thread and its blocks.
struct Worker {
  void* sp;
  Grid* grid;
  Block** blocks;
  int n_blocks;
  int live;          // threads that have not exited
  int polling;       // lanes
  int last_block, last_warp;
  float* scratch;  // for wgmma
  uint64_t random;   // 0: in order
  uint64_t events;   // grows whenever a thread gets somewhere
  uint64_t confirmed_round;
  pthread_t thread;
  bool started;
};

struct Grid {
  const Launch* launch;
  Block* blocks;
  Worker* workers;
  int n_workers;
  bool aborted;  // read and written atomically
  char* error;
  int error_bytes;
  // Workers without anything to run; see idle().
  pthread_mutex_t mutex;
  int idle, finished, confirmed;
  uint64_t round;
};

inline Lane& lane_of(const Block& block, int thread) {
  unsigned char* base = block.stacks + static_cast<size_t>(thread) * STACK_BYTES;
  return *reinterpret_cast<Lane*>(base + colour(reinterpret_cast<uintptr_t>(base)));
}

// xorshift64
inline uint64_t draw(uint64_t& state) {
  state ^= state << 13;
  state ^= state >> 7;
  state ^= state << 17;
  return state * 0x2545f4914f6cdd1dull >> 16;
}

}  // namespace jaxmono::emulate
