// A launch as the scheduler holds it: blocks of warps of lanes, and the OS threads that run them.
#pragma once
#include <pthread.h>
#include <stdint.h>
#include <string.h>

#include "emulate/emulate.h"

namespace jaxmono::emulate {

enum State : uint8_t { RUNNABLE, IN_COLLECTIVE, POLLING, EXITED, AT_BARRIER /* + barrier id */ };
constexpr int BARRIERS = 16;

struct Worker;

struct Warp {
  void* sp[32];        // saved stack pointers
  void* args[32];      // of the collective that is being gathered
  uint8_t state[32];   // State
  const char* what[32];  // what a polling lane waits for
  Compute* compute;    // of the collective
  const char* name;
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
  unsigned char* stacks;
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

// xorshift64
inline uint64_t draw(uint64_t& state) {
  state ^= state << 13;
  state ^= state >> 7;
  state ^= state << 17;
  return state * 0x2545f4914f6cdd1dull >> 16;
}

}  // namespace jaxmono::emulate
