// cp.async on the GPU; see ptx.cuh for the list.
#pragma once
#include "jaxmono/types.cuh"

namespace jaxmono {

JM_DEVICE uint32_t shared_address(const void* p) {
  return static_cast<uint32_t>(__cvta_generic_to_shared(p));
}

// The same pointer, of which the compiler does not know how it was made: sums with it stay sums with it
// (two instructions each; it would add their parts in another order, with four).
template <class T>
JM_DEVICE T* opaque(T* p) {
  asm("" : "+l"(p));
  return p;
}

// The same number, which is found again each time: the compiler would keep what a stage makes of a
// thread's number from one stage to the next, in registers that others lack.
JM_DEVICE int opaque(int x) {
  asm volatile("" : "+r"(x));
  return x;
}

// x, which a source that defines JM_WIDE_TILES finds again each time, as it does the block's number: a
// thread with 128 sums and more has no registers for what is made of either once for all stages and
// barriers. CLIP b32 reloaded spilled words at 97 places, ViT-B/16 b32 at 10. Others have the registers,
// and would wait for it behind each grid barrier.
JM_DEVICE int fresh(int x) {
#ifdef JM_WIDE_TILES
  return opaque(x);
#else
  return x;
#endif
}

// The last operand of cp.async is the number of bytes that are read; the rest is zeros.
JM_DEVICE void cp_async_16(void* smem, const void* gmem, bool pred = true) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(shared_address(smem)),
               "l"(gmem), "r"(pred ? 16 : 0)
               : "memory");
}
JM_DEVICE void cp_async_8(void* smem, const void* gmem, bool pred = true) {
  asm volatile("cp.async.ca.shared.global [%0], [%1], 8, %2;" ::"r"(shared_address(smem)),
               "l"(gmem), "r"(pred ? 8 : 0)
               : "memory");
}
JM_DEVICE void cp_async_4(void* smem, const void* gmem, bool pred = true) {
  asm volatile("cp.async.ca.shared.global [%0], [%1], 4, %2;" ::"r"(shared_address(smem)),
               "l"(gmem), "r"(pred ? 4 : 0)
               : "memory");
}
JM_DEVICE void cp_async_commit() { asm volatile("cp.async.commit_group;" ::: "memory"); }
template <int N>
JM_DEVICE void cp_async_wait() {
  asm volatile("cp.async.wait_group %0;" ::"n"(N) : "memory");
}

}  // namespace jaxmono
