// The functions of ptx_wgmma.cuh on the host.
//
// Products are queued per warpgroup and happen as late as the waits allow or, by the seed, as soon
// as all four warps have issued them: operands that are overwritten early and accumulators that are
// read early show. The first wgmma of a warp, and the first after a wait that left none in flight,
// must follow a wgmma_fence. A descriptor holds the offset in the block's shared memory.
#pragma once
#include "emulate/hopper.h"
#include "emulate/ptx.h"

namespace jaxmono {
inline void wgmma_fence() { emulate::collective(nullptr, emulate::wgmma_fence, "wgmma_fence"); }
inline void wgmma_commit() { emulate::collective(nullptr, emulate::wgmma_commit, "wgmma_commit"); }
template <int NT>
inline void wgmma_results(float (&)[NT][4]) {}

template <int N>
inline void wgmma_wait() {
  emulate::WgmmaWait arg = {N, false};
  emulate::collective(&arg, emulate::wgmma_wait, "wgmma_wait");
  if (!arg.done) emulate::wgmma_await(N);
}

template <int LINE = 128>
inline uint64_t wgmma_descriptor(const void* smem, uint32_t lead_bytes, uint32_t stride_bytes) {
  emulate::check_shared(emulate::self(), smem, 16, "wgmma_descriptor");
  const uint64_t offset = static_cast<const unsigned char*>(smem) - emulate::self().shared;
  return offset >> 4 | static_cast<uint64_t>(lead_bytes >> 4) << 16 |
         static_cast<uint64_t>(stride_bytes >> 4) << 32 | (LINE == 128 ? 1ull : 2ull) << 62;
}

inline uint64_t wgmma_descriptor_at(uint64_t first, int bytes) {
  return (first & 0xffffffff00000000ull) |
         static_cast<uint32_t>(static_cast<uint32_t>(first) + static_cast<uint32_t>(bytes >> 4));
}

namespace emulate {
template <class T, int NT>
void issue(float (&d)[NT][4], uint64_t a, uint64_t b, const uint32_t* registers, uint32_t form) {
  static_assert(is_narrow<T> && !is_f8<T>, "wgmma multiplies bf16 or f16");
  static_assert(NT % 2 == 0 && NT >= 2 && NT <= 32, "N is a multiple of 16 up to 256");
  Wgmma arg = {&d[0][0], a, b, registers, 8 * NT, (is_same<T, f16> ? WGMMA_F16 : 0u) | form};
  collective(&arg, wgmma_issue, "wgmma");
}
// Of operands of bytes.
template <class A, class B>
constexpr uint32_t byte_form() {
  constexpr int FIRST = is_f8<A> ? MMA_E4M3 : MMA_S8;
  return (is_f8<A> ? WGMMA_F8 : WGMMA_INTEGERS) | (mma_format<A> == FIRST ? 0u : WGMMA_A_OTHER) |
         (mma_format<B> == FIRST ? 0u : WGMMA_B_OTHER);
}
}  // namespace emulate

template <class T, bool A_MN, bool B_MN, bool ZERO = false, int NT>
inline void wgmma(float (&d)[NT][4], uint64_t a, uint64_t b) {
  emulate::issue<T>(d, a, b, nullptr,
                    (A_MN ? emulate::WGMMA_A_MN : 0u) | (B_MN ? emulate::WGMMA_B_MN : 0u) |
                        (ZERO ? emulate::WGMMA_ZERO : 0u));
}
template <class A, class B, int NT>
inline void wgmma_f8(float (&d)[NT][4], uint64_t a, uint64_t b) {
  static_assert(NT % 2 == 0 && NT >= 2 && NT <= 32, "N is a multiple of 16 up to 256");
  using namespace emulate;
  Wgmma arg = {&d[0][0], a, b, nullptr, 8 * NT,
               byte_form<A, B>()};
  collective(&arg, wgmma_issue, "wgmma_f8");
}
template <class A, class B, class Sum, int NT>
inline void wgmma_bytes_registers(Sum (&d)[NT][4], const uint32_t (&a)[4], uint64_t b) {
  static_assert(NT % 2 == 0 && NT >= 2 && NT <= 32, "N is a multiple of 16 up to 256");
  static_assert(is_same<Sum, float> == is_f8<A> && is_f8<A> == is_f8<B>, "");
  using namespace emulate;
  Wgmma arg = {reinterpret_cast<float*>(&d[0][0]), 0, b, a, 8 * NT,
               byte_form<A, B>() | WGMMA_A_REGISTERS};
  collective(&arg, wgmma_issue, "wgmma_bytes_registers");
}
template <int NT>
inline void wgmma_tf32(float (&d)[NT][4], uint64_t a, uint64_t b) {
  static_assert(NT % 2 == 0 && NT >= 2 && NT <= 32, "N is a multiple of 16 up to 256");
  using namespace emulate;
  Wgmma arg = {&d[0][0], a, b, nullptr, 8 * NT, WGMMA_TF32};
  collective(&arg, wgmma_issue, "wgmma_tf32");
}
template <int NT>
inline void wgmma_tf32_registers(float (&d)[NT][4], const uint32_t (&a)[4], uint64_t b) {
  static_assert(NT % 2 == 0 && NT >= 2 && NT <= 32, "N is a multiple of 16 up to 256");
  using namespace emulate;
  Wgmma arg = {&d[0][0], 0, b, a, 8 * NT, WGMMA_TF32 | WGMMA_A_REGISTERS};
  collective(&arg, wgmma_issue, "wgmma_tf32_registers");
}
template <class T, bool B_MN, bool ZERO = false, int NT>
inline void wgmma_registers(float (&d)[NT][4], const uint32_t (&a)[4], uint64_t b) {
  emulate::issue<T>(d, 0, b, a,
                    emulate::WGMMA_A_REGISTERS | (B_MN ? emulate::WGMMA_B_MN : 0u) |
                        (ZERO ? emulate::WGMMA_ZERO : 0u));
}

template <int N>
inline void registers_increase() {
  static_assert(N % 8 == 0 && N >= 24 && N <= 256, "setmaxnreg takes multiples of 8 in 24..256");
}
template <int N>
inline void registers_decrease() {
  static_assert(N % 8 == 0 && N >= 24 && N <= 256, "setmaxnreg takes multiples of 8 in 24..256");
}

}  // namespace jaxmono
