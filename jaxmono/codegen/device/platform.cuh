// What differs between nvcc's view of a kernel and the SIMT emulator's: keywords, indices, memory.
//
//   JM_DEVICE            prefix of every device function
//   JM_CALLED          of one that is compiled once and called
//   thread_id()          index in the block (blocks are one-dimensional)
//   block_id() num_blocks()
//   lane_id() warp_id()
//   dynamic_shared()     the block's dynamic shared memory, 1024-byte aligned; the only kind there is
//
// Under the emulator the host compiler sees "emulate/emulate.h" first, which defines
// JAXMONO_EMULATE and empty CUDA keywords.
#pragma once

#ifdef JAXMONO_EMULATE
#define JM_DEVICE inline
#define JM_CALLED static
#else
#define JM_DEVICE __device__ __forceinline__
#define JM_CALLED static __device__ __noinline__

// NVRTC has no standard headers; these are glibc's types.
typedef signed char int8_t;
typedef short int16_t;
typedef int int32_t;
typedef long int64_t;
typedef unsigned char uint8_t;
typedef unsigned short uint16_t;
typedef unsigned int uint32_t;
typedef unsigned long uint64_t;

extern __shared__ __align__(1024) unsigned char jaxmono_dynamic_shared[];
#endif

namespace jaxmono {

constexpr int WARP = 32;

#ifdef JAXMONO_EMULATE

JM_DEVICE int thread_id() { return emulate::self().thread_id; }
JM_DEVICE int block_id() { return emulate::self().block_id; }
JM_DEVICE int num_blocks() { return emulate::self().blocks; }
JM_DEVICE int num_threads() { return emulate::self().threads; }
JM_DEVICE int lane_id() { return emulate::self().lane_id; }
JM_DEVICE int warp_id() { return emulate::self().warp_id; }
JM_DEVICE unsigned char* dynamic_shared() { return emulate::self().shared; }

#else

#ifdef JM_LEAN
// Found again each time: ptxas kept it beside a zero, for a division, in a pair of words that it spilled at a
// kernel's beginning and read at 58 places (the fourth kernel of DIEN's training step).
JM_DEVICE int thread_id() {
  int x;
  asm volatile("mov.u32 %0, %%tid.x;" : "=r"(x));
  __builtin_assume(x >= 0);
  return x;
}
#else
JM_DEVICE int thread_id() { return static_cast<int>(threadIdx.x); }
#endif
#ifdef JM_WIDE_TILES
JM_DEVICE int block_id() {
  int x;
  asm volatile("mov.u32 %0, %%ctaid.x;" : "=r"(x));
  return x;
}
JM_DEVICE int num_blocks() {
  int x;
  asm volatile("mov.u32 %0, %%nctaid.x;" : "=r"(x));
  return x;
}
#else
JM_DEVICE int block_id() { return static_cast<int>(blockIdx.x); }
JM_DEVICE int num_blocks() { return static_cast<int>(gridDim.x); }
#endif
JM_DEVICE int num_threads() { return static_cast<int>(blockDim.x); }
JM_DEVICE int lane_id() { return static_cast<int>(threadIdx.x) & (WARP - 1); }
JM_DEVICE int warp_id() { return static_cast<int>(threadIdx.x) / WARP; }
JM_DEVICE unsigned char* dynamic_shared() { return jaxmono_dynamic_shared; }

#endif

}  // namespace jaxmono
