// cp.async on the GPU; see ptx.cuh for the list.
#pragma once
#include "jaxmono/types.cuh"

namespace jaxmono {

JM_DEVICE uint32_t shared_address(const void* p) {
  return static_cast<uint32_t>(__cvta_generic_to_shared(p));
}

// The last operand of cp.async is the number of bytes that are read; the rest is zeros.
JM_DEVICE void cp_async_16(void* smem, const void* gmem, bool pred = true) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(shared_address(smem)),
               "l"(gmem), "r"(pred ? 16 : 0)
               : "memory");
}
// Of a stream of weights: L2 asks for the other half of the line, too. One row: 1 to 5 % less time of
// matrices of 8 MB, GPT-2's and OPT's decoders 2 %. Tiles of products take as long with it (0.99 to 1.01),
// and up to 10 % longer with .L2::256B. Not with L2::cache_hint, evict_first: decode steps took 1 % less, but
// where the shared address is a register and a constant, ptxas 13.0 makes it [R + UR0 + constant], desc[UR1],
// an illegal instruction.
JM_DEVICE void cp_async_stream_16(void* smem, const void* gmem, bool pred = true) {
  asm volatile("cp.async.cg.shared.global.L2::128B [%0], [%1], 16, %2;" ::"r"(shared_address(smem)),
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
