// Every PTX instruction that kernels use, by name. The emulator has the same functions in C++
// (emulate/ptx.h). Pointers are generic; `smem` ones must point into dynamic_shared().
//
// cp.async (the copy may happen at any time until the matching wait, and other threads see it after
// a block barrier that follows the wait):
//   void cp_async_16(void* smem, const void* gmem, bool pred = true)   pred false: 16 zero bytes
//   void cp_async_8, cp_async_4, cp_async_stream_16, ..._8, ..._4      likewise; _stream of what is read once
//                                    (gmem aligned also where pred is false)
//   void cp_async_line_16            as cp_async_16; of rows that begin anywhere
//   void cp_async_part_16(void* smem, const void* gmem, int bytes)     the first `bytes`, and zeros
//   void cp_async_commit()
//   void cp_async_wait<N>()          all but the N newest committed groups of this thread are done
// Tensor cores (all 32 lanes; fragments as in the PTX ISA):
//   void ldmatrix_x4(uint32_t (&r)[4], const void* smem_row)           lane i: row i % 8 of matrix i / 8
//   void ldmatrix_x4_trans, ldmatrix_x2(uint32_t (&r)[2], ...), ldmatrix_x2_trans
//   void mma_m16n8k16_bf16(float (&d)[4], const uint32_t (&a)[4], const uint32_t (&b)[2])   d += a b
//   void mma_m16n8k16_f16, mma_m16n8k8_tf32                            likewise
//   void mma_tiles_bf16<MT, NT>(float (&d)[MT][NT][4], const uint32_t (&a)[MT][4],
//                               const uint32_t (&b)[NT][2])            all products of a warp tile;
//   void mma_tiles_f16, mma_tiles_tf32                                 one exchange in the emulator
//   void mma_m16n8k32<A, B>(Acc (&d)[4], ...), mma_tiles_bytes<A, B>   likewise; int8_t, uint8_t with
//                                    uint32_t sums, which wrap; f8e4m3, f8e5m2 (sm_89) with float sums
//   uint32_t byte_permute(uint32_t low, uint32_t high, uint32_t selector)   prmt, nibbles 0 to 7
//   uint32_t to_tf32(float)          rounds to nearest, ties to even (away before sm_90)
// Hopper, each from a header of its own:
//  ptx_mbarrier.cuh (sm_90). Barriers are words of shared memory. Meaning: see there.
//   void mbarrier_init(uint64_t* bar, uint32_t arrivals)               one thread; after all of them
//   void mbarrier_fence_init()                                         this, then sync_all_threads()
//   void mbarrier_arrive(uint64_t* bar)
//   void cp_async_mbarrier_arrive(uint64_t* bar)   arrives when this thread's cp.async have landed
//   void mbarrier_wait(uint64_t* bar, uint32_t parity)   until the phase of that parity is complete
//   void fence_proxy_async()         wgmmas that follow (after a barrier: in any thread) read what
//                                    this thread has stored to shared memory, or seen stored; cp.async
//                                    that has been waited for needs none
//  ptx_tma.cuh (sm_90a). Matrices of f32, x[row][col], rows `pitch` elements apart; meaning: see there.
//   void tensor_map_make(TensorMap* to, uint32_t* scratch, const float* first, int rows, int cols,
//                        long long pitch, int box_rows)   all lanes of a warp; scratch: 128 bytes of shared
//                                    memory, aligned as much; first and pitch: multiples of 16 bytes, a
//                                    pitch of at least the columns
//   void tensor_map_acquire(const TensorMap*)   before this thread loads by a map that was made
//   void tma_load(void* smem, const TensorMap*, int row, int col, int box_rows, uint64_t* bar)
//                                    one thread: box_rows x 32 as tf32, rounded as to_tf32 does, swizzled by
//                                    128 bytes; zeros outside. The phase of bar waits for them, too
//   void fence_proxy_async_all()     loads that follow read what this thread has seen stored anywhere
//  ptx_wgmma.cuh (sm_90a). All threads of a warpgroup: warps 4 i .. 4 i + 3.
//   uint64_t wgmma_descriptor(const void* smem, uint32_t lead_bytes, uint32_t stride_bytes)
//   uint64_t wgmma_descriptor_at(uint64_t first, int bytes)   of an operand so far behind
//   void wgmma<T, A_MN, B_MN>(float (&d)[NT][4], uint64_t a, uint64_t b)   d += a b, 64 x 8 NT x 16
//                                    T bf16 or f16; runs until the wait that retires its group
//   void wgmma_f8<A, B>(float (&d)[NT][4], uint64_t a, uint64_t b)   64 x 8 NT x 32, likewise;
//                                    f8e4m3 or f8e5m2, [m or n][k]
//   void wgmma_tf32(float (&d)[NT][4], uint64_t a, uint64_t b)       64 x 8 NT x 8, likewise; f32
//   void wgmma_tf32_registers(float (&d)[NT][4], const uint32_t (&a)[4], uint64_t b)
//   void wgmma_fence()               before the first wgmma, and the first after the accumulators
//                                    were touched
//   void wgmma_commit(), void wgmma_wait<N>()   all but the N newest groups are done
//   void registers_increase<N>(), void registers_decrease<N>()   setmaxnreg
// Global memory, T of 1, 2, 4, 8 or 16 bytes (Bits128 for raw 16):
//   T ld_global<T>(const T*)         through L1
//   T ld_global_if<T>(const T*, bool there, T otherwise)   4 bytes or more; where not there, nothing
//   uint32_t ld_global_if_small<T>(const T*, bool there, uint32_t otherwise)   is read; 1, 2 bytes
//   T ld_nc<T>(const T*)             read-only for the whole launch, on pain of stale values
//   T ld_stream<T>(const T*)         read-only and read once: not kept in L1
//   T ld_coherent<T>(const T*)       from L2 (ld.relaxed.gpu): data of other blocks of this launch
//   void st_global<T>(T*, T), st_stream<T>(T*, T)
//   void st_global_whole<T>(T*, T), st_global_if<T>(T*, T, bool wanted)   of 4 bytes or more, that nothing
//                                    is read of before a barrier
//   Bits128 load_global_16(const void*), load_global_16_nc, load_global_16_stream,
//   load_global_16_coherent, void st_global_16(void*, Bits128)
//   void prefetch_l1(const void*), prefetch_l2
//
// Which load for what. L1 is not coherent: a block may hold a line from before another block wrote
// it. Program inputs that nothing writes: ld_nc or ld_stream. Values that another block wrote in
// this launch: never ld_nc; ld_global only after an acquire at gpu scope that synchronises with the
// writer's release (grid_barrier, counter_wait: they drop L1), else ld_coherent.
//
// Atomics and order, uint32_t unless T is named:
//   void red_add<T>(T*, T)                      relaxed, gpu scope: float, double, (u)int32, (u)int64
//   void red_add_4(float*, float, float, float, float)   of 4 neighbours, from a multiple of 16 bytes
//   void red_max<T>(T*, T), red_min<T>(T*, T)             (u)int32
//   uint32_t atom_add_acq_rel_gpu(uint32_t*, uint32_t)                 returns the old value
//   void red_add_release_gpu(uint32_t*, uint32_t)
//   T atom_cas<T>(T*, T expected, T desired)                           4 or 8 bytes, relaxed
//   T ld_acquire_gpu<T>(const T*), T ld_relaxed_gpu<T>(const T*)       4 or 8 bytes; relaxed: or 16,
//   void st_release_gpu<T>(T*, T), st_relaxed_gpu<T>(T*, T)            which are whole by words only
//   void fence_acq_rel_gpu()
//   void nanosleep(uint32_t ns)
//  ptx_timer.cuh
//   uint64_t global_timer()          nanoseconds, by one clock of the whole GPU
//   void launch_order()              until all that runs before this launch in its stream is done and can be
//                                    seen; each thread, before it touches global memory. Nothing before
//                                    sm_90, where a launch begins behind the end of the one before
#pragma once
#include "jaxmono/types.cuh"

namespace jaxmono {
struct alignas(16) Bits128 {
  uint32_t x[4];
};
}  // namespace jaxmono

#ifdef JAXMONO_EMULATE
#include "emulate/ptx.h"
#else
#include "jaxmono/ptx_async.cuh"
#include "jaxmono/ptx_memory.cuh"
#include "jaxmono/ptx_mma.cuh"
#endif

namespace jaxmono {

JM_DEVICE Bits128 load_global_16(const void* p) { return ld_global(static_cast<const Bits128*>(p)); }
JM_DEVICE Bits128 load_global_16_nc(const void* p) { return ld_nc(static_cast<const Bits128*>(p)); }
JM_DEVICE Bits128 load_global_16_stream(const void* p) {
  return ld_stream(static_cast<const Bits128*>(p));
}
JM_DEVICE Bits128 load_global_16_coherent(const void* p) {
  return ld_coherent(static_cast<const Bits128*>(p));
}
JM_DEVICE void st_global_16(void* p, Bits128 x) { st_global(static_cast<Bits128*>(p), x); }

}  // namespace jaxmono
