// h = a b, y = h c, by warp-specialised blocks: 4 producer warps fill a ring of SLOTS tiles (the left
// operand's by cp.async, the right one's by stores), 2 warpgroups multiply. Each block has 128 rows;
// a [rows][K], b [K][128], h [rows][128] in bf16, c [128][128], y [rows][128] in f32. The test changes
// the statements named in [brackets].
#define JM_TEAM 256
#include "jaxmono/ptx.cuh"
#include "jaxmono/ptx_mbarrier.cuh"
#include "jaxmono/ptx_wgmma.cuh"
#include "jaxmono/sync.cuh"
#include "jaxmono/vec.cuh"
using namespace jaxmono;

constexpr int SLOTS = 2, N = 128, A_BYTES = 128 * 128, SLOT_BYTES = 2 * A_BYTES;
struct Params {
  void* buf[7];  // a b c h y, {tasks, K}, {which statement the test changes}
};
struct Roles {
  uint64_t full[SLOTS], empty[SLOTS];
};

struct Place {
  int slot = 0;
  uint32_t parity = 0;
  JM_DEVICE void next() {
    if (++slot == SLOTS) slot = 0, parity ^= 1;
  }
};

// 16 bytes of a swizzled tile of panels of 64 columns.
JM_DEVICE unsigned char* piece(unsigned char* tile, int rows, int row, int p) {
  return tile + p / 8 * rows * 128 + row * 128 + ((p ^ row) & 7) * 16;
}

JM_DEVICE void produce(const Params& p, Roles* roles, unsigned char* ring, Place& at,
                       const bf16* left, int width, const bf16* right, int change) {
  const int t = thread_id() - JM_TEAM;
  for (int k = 0; k < width; k += 64) {
    mbarrier_wait(&roles->empty[at.slot], at.parity ^ 1);  // [producer waits for a free slot]
    unsigned char* const a = ring + at.slot * SLOT_BYTES;
#pragma unroll 1  // few registers
    for (int i = t; i < 128 * 8; i += 128)
      cp_async_16(piece(a, 128, i / 8, i % 8), left + i / 8 * width + k + i % 8 * 8);
#pragma unroll 1
    for (int i = t; i < 64 * 16; i += 128)
      store<bf16, 8>(reinterpret_cast<bf16*>(piece(a + A_BYTES, 64, i / 16, i % 16)),
                     load<bf16, 8>(right + (k + i / 16) * N + i % 16 * 8));
    cp_async_mbarrier_arrive(&roles->full[at.slot]);  // [producer says when the left tile has landed]
    mbarrier_arrive(&roles->full[at.slot]);  // [producer says that it has stored the right tile]
    at.next();
  }
}

JM_DEVICE void consume(const Params& p, Roles* roles, unsigned char* ring, Place& at, int tiles,
                       float (&acc)[16][4], int change) {
#pragma unroll
  for (int j = 0; j < 16; ++j)
#pragma unroll
    for (int e = 0; e < 4; ++e) acc[j][e] = 0.0f;
  const int row = warp_id() / 4 * 64;
  int before = -1, t = 0;
#pragma unroll 1
  do {
    unsigned char* const a = ring + at.slot * SLOT_BYTES;
    mbarrier_wait(&roles->full[at.slot], at.parity);  // [consumer waits for the tile]
    fence_proxy_async();  // [generic writes before wgmma's reads]
    wgmma_fence();  // [accumulators before wgmma]
#pragma unroll
    for (int k = 0; k < 64; k += 16)
      wgmma<bf16, false, true>(acc, wgmma_descriptor(a + row * 128 + k * 2, 16, 1024),
                               wgmma_descriptor(a + A_BYTES + k * 128, 64 * 128, 1024));
    wgmma_commit();  // [commit]
    wgmma_wait<1>();  // [consumer waits for the products of the tile before]
    if (before >= 0 && thread_id() % 128 == 0)
      mbarrier_arrive(&roles->empty[before]);  // [consumer frees the slot before]
    before = at.slot;
    at.next();
  } while (++t < tiles);
  wgmma_wait<0>();  // [consumer waits for the last products]
  if (thread_id() % 128 == 0)
    mbarrier_arrive(&roles->empty[before]);  // [consumer frees the last slot]
}

extern "C" __global__ void __launch_bounds__(384, 1) test_kernel(const __grid_constant__ Params p) {
  const auto* a = static_cast<const bf16*>(p.buf[0]);
  const auto* b = static_cast<const bf16*>(p.buf[1]);
  const auto* c = static_cast<const bf16*>(p.buf[2]);
  auto* h = static_cast<bf16*>(p.buf[3]);
  auto* y = static_cast<float*>(p.buf[4]);
  const int tasks = static_cast<const int*>(p.buf[5])[0], K = static_cast<const int*>(p.buf[5])[1];
  const int change = *static_cast<const int*>(p.buf[6]);

  auto* roles = reinterpret_cast<Roles*>(dynamic_shared());
  unsigned char* const ring = dynamic_shared() + 1024;
  if (thread_id() == 0) {
    for (int i = 0; i < SLOTS; ++i) {
      mbarrier_init(&roles->full[i], 256);
      mbarrier_init(&roles->empty[i], 2);
    }
    mbarrier_fence_init();
  }
  sync_all_threads();  // [barriers are initialised]

  Place at;
  if (thread_id() >= JM_TEAM) {
    registers_decrease<40>();
    for (int task = block_id(); task < tasks; task += num_blocks()) {
      produce(p, roles, ring, at, a + task * 128 * K, K, b, change);
      named_barrier(4, 384);  // [producer meets the team that has written h]
      produce(p, roles, ring, at, h + task * 128 * N, N, c, change);
    }
  } else {
    registers_increase<232>();
    const int row = warp_id() * 16 + lane_id() / 4, col = lane_id() % 4 * 2;
    for (int task = block_id(); task < tasks; task += num_blocks()) {
      float acc[16][4];
      consume(p, roles, ring, at, K / 64, acc, change);
#pragma unroll
      for (int j = 0; j < 16; ++j)
#pragma unroll
        for (int e = 0; e < 4; ++e)
          h[(task * 128 + row + e / 2 * 8) * N + j * 8 + col + e % 2] = from_float<bf16>(acc[j][e]);
      named_barrier(4, 384);  // [the team meets the producers that load h]
      consume(p, roles, ring, at, N / 64, acc, change);
#pragma unroll
      for (int j = 0; j < 16; ++j)
#pragma unroll
        for (int e = 0; e < 4; ++e)
          y[(task * 128 + row + e / 2 * 8) * N + j * 8 + col + e % 2] = acc[j][e];
    }
  }
}
