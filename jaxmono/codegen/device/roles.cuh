// Warps with roles: the first eight of a block compute, four more bring what they compute with.
//
// A kernel that has producers defines JM_TEAM (the consumers' threads): syncthreads() and the grid
// barrier are then the consumers' own. Both roles run through the same stages and tasks, and meet, in a
// barrier of all threads of the block, where one has to know of the other:
//
//   consumers at a grid barrier     they give shared memory to the producers, where these do not go on in
//                                   the ring of the stage before
//   behind it                       it has opened: what other blocks wrote before it may be read; where
//                                   the stage has loads
//   before a task                   of a stage whose tasks use shared memory differently
//
// Which of these a stage has both know from its place in the plan (producers.py).
#pragma once
#include "jaxmono/opaque.cuh"
#include "jaxmono/ptx.cuh"
#include "jaxmono/ptx_mbarrier.cuh"
#include "jaxmono/sync.cuh"
#include "jaxmono/warp.cuh"

namespace jaxmono {

constexpr int CONSUMERS = 256, PRODUCERS = 128;
// Registers of a thread of each. A block of 384 threads starts with 168 for each of them; more than
// these 64512 in all (256 x 208 + 128 x 88) would never be granted, and the block would hang. With
// 216 and 72 the producers of convolutions spilled (before gathered.cuh: the rows' places in the image
// took registers). With 200 and 104 attention with a mask in memory does. Producers that round f32 on its
// way into shared memory need more: a source may give them 104 or 120 (retries.py), of OPT-125M b16
// 144 bytes are spilled with 88, 44 with 104, none with 120.
#ifndef JM_PRODUCER_REGISTERS
#define JM_PRODUCER_REGISTERS 88
#endif
constexpr int PRODUCER_REGISTERS = JM_PRODUCER_REGISTERS;
constexpr int CONSUMER_REGISTERS = (384 * 168 - PRODUCERS * PRODUCER_REGISTERS) / CONSUMERS;
static_assert(PRODUCER_REGISTERS % 16 == 8, "both are multiples of 8");
// Threads of a warpgroup that give a slot back. One speaks for all: its products are done when all four warps
// have issued them, and each had its own operands in registers by then. A source that defines JM_RACECHECK is
// for that tool (compute-sanitizer 2025.3): it sees order only where a thread arrives itself, and takes what
// comes behind a single meeting of both roles for a race with what consumers read before it.
#ifdef JM_RACECHECK
constexpr int SPEAKERS = 128;
#else
constexpr int SPEAKERS = 1;
#endif
constexpr int MAX_SLOTS = 16, MAX_IMAGES = 4;
constexpr int TURN = 24;  // bit of Place's phase for Roles::turn
constexpr int TURNS = 16;  // the first of those of Roles::turns
constexpr int IMAGE = 25;  // and of the next one: how many images there were, modulo 4 (gemm_image.cuh)
constexpr int PASS = 27, PASSED = 28;  // whose the next task is; for Roles::passed
constexpr int MEETING_BARRIER = 4;  // by __syncthreads ptxas did not end
constexpr int SOURCE_BARRIER = 5;   // and the next: of a warpgroup

// Whether a consumer gives slots back.
JM_DEVICE bool speaks_for_warpgroup() { return SPEAKERS == 128 || thread_id() % 128 == 0; }

// One role's place in the ring. The bits of `phase` say which phase of a slot's barrier comes next, its
// highest one that the producers have not heard yet that the grid barrier before their stage has opened.
// (In a member of its own: for BERT-base b1 ptxas found no registers.) fresh: they have loaded nothing yet
// that stays for the tasks behind this one.
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

  JM_DEVICE bool closed() const { return phase >> 31; }
  JM_DEVICE void close() { phase |= 1u << 31; }
  JM_DEVICE void open() { phase &= ~(1u << 31); }
};

// What the newest tensor map of a block is of, and how many there were before it (tensor_maps.cuh).
struct Mapped {
  const float* first;
  long long pitch;
  int rows, cols, box_rows;
  uint32_t count;
};

// In shared memory for the whole launch.
struct Roles {
  uint64_t full[MAX_SLOTS], empty[MAX_SLOTS];
  // The first warpgroup is so far in its task that the second may go on: it has issued its last products
  // (gemm_wgmma.cuh), or has the weights of its first keys (attention_wgmma.cuh). In attention named
  // barriers in its place, at which the first one arrives without waiting, took as long, but behind them
  // racecheck 2025.3 reports what bar.sync orders: reads of the second one and what the first one writes a
  // bar.sync later.
  uint64_t turn;
  // All warps of the other warpgroup have seen all tiles of the task before (gemm_wgmma.cuh).
  uint64_t passed[2];
  // As `turn`, of each buffer of an image (gemm_image.cuh).
  uint64_t turns[MAX_IMAGES];
  // Of kernels that have tensor maps: the next one is written here.
  Mapped mapped;
  alignas(128) uint32_t map[32];

  JM_DEVICE void init_maps() {  // before init
    if (fresh(thread_id()) == 0) mapped = {};
  }
  JM_DEVICE void init() {  // all threads of the block
    if (fresh(thread_id()) == 0) {
      for (int i = 0; i < MAX_SLOTS; ++i) {
        mbarrier_init(&full[i], PRODUCERS);
        mbarrier_init(&empty[i], CONSUMERS / 128 * SPEAKERS);
      }
      mbarrier_init(&turn, SPEAKERS);
      for (int w = 0; w < 2; ++w) mbarrier_init(&passed[w], CONSUMERS / 2 / WARP);
      for (int i = 0; i < MAX_IMAGES; ++i) mbarrier_init(&turns[i], SPEAKERS);
      mbarrier_fence_init();
    }
    sync_all_threads();
  }

  // All threads of both roles.
  JM_DEVICE void meet() const {
    named_barrier(MEETING_BARRIER, CONSUMERS + PRODUCERS);
#ifdef JM_RACECHECK
    named_barrier(MEETING_BARRIER, CONSUMERS + PRODUCERS);
#endif
  }

  // Consumers: a grid barrier, and its halves. FREES: shared memory is the producers' when it is reached.
  // LOADS: the stage behind it has loads. With words in shared memory, which thread 0 counted and producers
  // looked at, in place of meetings BERT-base b1 took 1.2 % longer on an H200, ViT-B/16 b1 1.6, the T5-base
  // encoder b1 1.8, ResNet-50 b1 2, and VGG-16 b32 3.4 % less (on another GPU as long); and racecheck
  // (compute-sanitizer 2025.3) does not know such words.
  template <bool FREES, bool LOADS>
  JM_DEVICE void grid_barrier(GridBarrier* barrier) {
    grid_wait<LOADS>(barrier, grid_arrive<FREES>(barrier));
  }
  template <bool FREES>
  JM_DEVICE uint32_t grid_arrive(GridBarrier* barrier) {
    meet_if<FREES>();
    return grid_announce(barrier);
  }
  template <bool LOADS>
  JM_DEVICE void grid_wait(GridBarrier* barrier, uint32_t ticket) {
    grid_look(barrier, ticket);
    meet_if<LOADS>();
  }

  // Producers: until the grid barrier before the stage has opened; once a stage, with or without a task.
  JM_DEVICE void await_open(Place& at) const {
    if (at.closed()) meet();
    at.open();
  }

 private:
  template <bool WITH_PRODUCERS>
  JM_DEVICE void meet_if() const {
    if (WITH_PRODUCERS) meet();
    else syncthreads();
  }
};

}  // namespace jaxmono
