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
// The same, and L2 asks for the other half of the line of 128 bytes: of rows that begin anywhere, whose lines are
// read in parts (128 x 30522 and 50257 x 768 take 3 to 4 % less time).
JM_DEVICE void cp_async_line_16(void* smem, const void* gmem, bool pred = true) {
  asm volatile("cp.async.cg.shared.global.L2::128B [%0], [%1], 16, %2;" ::"r"(shared_address(smem)),
               "l"(gmem), "r"(pred ? 16 : 0)
               : "memory");
}
// The first `bytes` of 16, and zeros.
JM_DEVICE void cp_async_part_16(void* smem, const void* gmem, int bytes) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(shared_address(smem)),
               "l"(gmem), "r"(bytes)
               : "memory");
}
// Of a stream of weights. L2 asks for the other half of the line, too: one row takes 1 to 5 % less time of
// matrices of 8 MB, GPT-2's and OPT's decoders 2 % (tiles of products as long, with .L2::256B 10 % more). And
// what has streamed by is what L2 gives up first: decode steps over the same weights take 0.7 to 2.6 % less.
// Keeping a tenth of the lines or more was slower than keeping none on purpose.
//
// Of a shared address with a constant in it ptxas 13.0 makes [R + UR0 + constant], desc[UR1], an illegal
// instruction. Here it cannot: it does not know that the low bits of gmem, a multiple of 16, are 0.
JM_DEVICE void cp_async_stream_16(void* smem, const void* gmem, bool pred = true) {
  uint64_t first_out;
  asm("createpolicy.fractional.L2::evict_first.b64 %0, 1.0;" : "=l"(first_out));
  const uint32_t to = shared_address(smem) ^ (static_cast<uint32_t>(reinterpret_cast<uint64_t>(gmem)) & 15u);
  asm volatile("cp.async.cg.shared.global.L2::cache_hint.L2::128B [%0], [%1], 16, %2, %3;" ::"r"(to),
               "l"(gmem), "r"(pred ? 16 : 0), "l"(first_out)
               : "memory");
}
// The same of rows that are aligned to so many bytes only.
template <int BYTES>
JM_DEVICE void cp_async_stream_narrow(void* smem, const void* gmem, bool pred) {
  uint64_t first_out;
  asm("createpolicy.fractional.L2::evict_first.b64 %0, 1.0;" : "=l"(first_out));
  const uint32_t to = shared_address(smem) ^
                      (static_cast<uint32_t>(reinterpret_cast<uint64_t>(gmem)) & (BYTES - 1u));
  asm volatile("cp.async.ca.shared.global.L2::cache_hint.L2::128B [%0], [%1], %2, %3, %4;" ::"r"(to),
               "l"(gmem), "n"(BYTES), "r"(pred ? BYTES : 0), "l"(first_out)
               : "memory");
}
JM_DEVICE void cp_async_stream_8(void* smem, const void* gmem, bool pred = true) {
  cp_async_stream_narrow<8>(smem, gmem, pred);
}
JM_DEVICE void cp_async_stream_4(void* smem, const void* gmem, bool pred = true) {
  cp_async_stream_narrow<4>(smem, gmem, pred);
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
