// wgmma: asynchronous products of a warpgroup (4 warps), operands in shared memory. sm_90a; see
// ptx.cuh for the list.
//
// Tiles have the 128-byte swizzle: rows of 128 bytes whose 16-byte pieces are permuted, piece p of
// row r at place p ^ (r % 8). A tile begins at a multiple of 1024 bytes. An operand is stored as
//   [rows][k] (K-major)   in panels of 64 k. A descriptor points at any row, k % 16 == 0; stride_bytes
//                         = 1024 (8 rows), or any other multiple of 128 from eight rows to the next
//                         eight: what is permuted is the address (its base offset stays 0; all rows
//                         from 0 to 57 and strides of 8, 10 and 11 rows on an H200, none slower);
//                         lead_bytes is not used, say 16
//                         (in lines of 64 bytes, whose pieces are at p ^ r / 2 % 4: 512)
//                         (f32: panels of 32 k, k % 8 == 0; bytes: 128 and 32)
//   [k][rows] (MN)        16-bit elements only, in panels of 64 rows. A descriptor points at a panel's
//                         first row, k % 8 == 0; stride_bytes = 1024 (8 k), lead_bytes: from panel to
//                         panel
//
// ptxas lets products overlap only where it can follow their registers: between the first
// wgmma_fence and wgmma_wait<0> nothing else touches the accumulators, and no path reaches that wait
// without a product. Safest is a do { } while loop and the wait right after it; with `for`, or an
// `if` around the wait, products can be serialised (C7514, C7515 in the log) or a wait injected
// (C7517).
#pragma once
#include "jaxmono/types.cuh"

#ifdef JAXMONO_EMULATE
#include "emulate/wgmma.h"
#else

#include "jaxmono/ptx_async.cuh"

namespace jaxmono {

JM_DEVICE void wgmma_fence() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
JM_DEVICE void wgmma_commit() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }
template <int N>
JM_DEVICE void wgmma_wait() {
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(N) : "memory");
}

// Behind a wgmma_wait: nothing that reads these accumulators moves in front of it.
template <int NT>
JM_DEVICE void wgmma_results(float (&d)[NT][4]) {
#pragma unroll
  for (int j = 0; j < NT; ++j)
    asm volatile("" : "+f"(d[j][0]), "+f"(d[j][1]), "+f"(d[j][2]), "+f"(d[j][3])::"memory");
}

// LINE: bytes that are permuted, 128 or 64.
template <int LINE = 128>
JM_DEVICE uint64_t wgmma_descriptor(const void* smem, uint32_t lead_bytes, uint32_t stride_bytes) {
  static_assert(LINE == 128 || LINE == 64, "");
  return static_cast<uint64_t>((shared_address(smem) & 0x3ffff) >> 4) |
         static_cast<uint64_t>(lead_bytes >> 4) << 16 |
         static_cast<uint64_t>(stride_bytes >> 4) << 32 | (LINE == 128 ? 1ull : 2ull) << 62;
}

// The operand `bytes` behind (or before, within shared memory) that of a descriptor. Only the low word
// changes, so that the other one stays a constant.
JM_DEVICE uint64_t wgmma_descriptor_at(uint64_t first, int bytes) {
  return (first & 0xffffffff00000000ull) |
         static_cast<uint32_t>(static_cast<uint32_t>(first) + static_cast<uint32_t>(bytes >> 4));
}

// The accumulator registers of N = 8 * NT columns: their numbers in the text, and the operands.
#define JM_R2 "%0, %1, %2, %3, %4, %5, %6, %7"
#define JM_R4 JM_R2 ", " "%8, %9, %10, %11, %12, %13, %14, %15"
#define JM_R6 JM_R4 ", " "%16, %17, %18, %19, %20, %21, %22, %23"
#define JM_R8 JM_R6 ", " "%24, %25, %26, %27, %28, %29, %30, %31"
#define JM_R10 JM_R8 ", " "%32, %33, %34, %35, %36, %37, %38, %39"
#define JM_R12 JM_R10 ", " "%40, %41, %42, %43, %44, %45, %46, %47"
#define JM_R14 JM_R12 ", " "%48, %49, %50, %51, %52, %53, %54, %55"
#define JM_R16 JM_R14 ", " "%56, %57, %58, %59, %60, %61, %62, %63"
#define JM_R18 JM_R16 ", " "%64, %65, %66, %67, %68, %69, %70, %71"
#define JM_R20 JM_R18 ", " "%72, %73, %74, %75, %76, %77, %78, %79"
#define JM_R22 JM_R20 ", " "%80, %81, %82, %83, %84, %85, %86, %87"
#define JM_R24 JM_R22 ", " "%88, %89, %90, %91, %92, %93, %94, %95"
#define JM_R26 JM_R24 ", " "%96, %97, %98, %99, %100, %101, %102, %103"
#define JM_R28 JM_R26 ", " "%104, %105, %106, %107, %108, %109, %110, %111"
#define JM_R30 JM_R28 ", " "%112, %113, %114, %115, %116, %117, %118, %119"
#define JM_R32 JM_R30 ", " "%120, %121, %122, %123, %124, %125, %126, %127"
#define JM_D(J) "+f"(d[J][0]), "+f"(d[J][1]), "+f"(d[J][2]), "+f"(d[J][3])
#define JM_D2 JM_D(0), JM_D(1)
#define JM_D4 JM_D2, JM_D(2), JM_D(3)
#define JM_D6 JM_D4, JM_D(4), JM_D(5)
#define JM_D8 JM_D6, JM_D(6), JM_D(7)
#define JM_D10 JM_D8, JM_D(8), JM_D(9)
#define JM_D12 JM_D10, JM_D(10), JM_D(11)
#define JM_D14 JM_D12, JM_D(12), JM_D(13)
#define JM_D16 JM_D14, JM_D(14), JM_D(15)
#define JM_D18 JM_D16, JM_D(16), JM_D(17)
#define JM_D20 JM_D18, JM_D(18), JM_D(19)
#define JM_D22 JM_D20, JM_D(20), JM_D(21)
#define JM_D24 JM_D22, JM_D(22), JM_D(23)
#define JM_D26 JM_D24, JM_D(24), JM_D(25)
#define JM_D28 JM_D26, JM_D(26), JM_D(27)
#define JM_D30 JM_D28, JM_D(28), JM_D(29)
#define JM_D32 JM_D30, JM_D(30), JM_D(31)

// The sizes: fragments of 8 columns, columns, and the numbers of the operands behind the sums, of which
// each JM_WGMMA below takes as many as its instruction has.
#define JM_WGMMA_SIZES \
  JM_WGMMA(2, 16, 8, 9, 10, 11, 12, 13) \
  JM_WGMMA(4, 32, 16, 17, 18, 19, 20, 21) \
  JM_WGMMA(6, 48, 24, 25, 26, 27, 28, 29) \
  JM_WGMMA(8, 64, 32, 33, 34, 35, 36, 37) \
  JM_WGMMA(10, 80, 40, 41, 42, 43, 44, 45) \
  JM_WGMMA(12, 96, 48, 49, 50, 51, 52, 53) \
  JM_WGMMA(14, 112, 56, 57, 58, 59, 60, 61) \
  JM_WGMMA(16, 128, 64, 65, 66, 67, 68, 69) \
  JM_WGMMA(18, 144, 72, 73, 74, 75, 76, 77) \
  JM_WGMMA(20, 160, 80, 81, 82, 83, 84, 85) \
  JM_WGMMA(22, 176, 88, 89, 90, 91, 92, 93) \
  JM_WGMMA(24, 192, 96, 97, 98, 99, 100, 101) \
  JM_WGMMA(26, 208, 104, 105, 106, 107, 108, 109) \
  JM_WGMMA(28, 224, 112, 113, 114, 115, 116, 117) \
  JM_WGMMA(30, 240, 120, 121, 122, 123, 124, 125) \
  JM_WGMMA(32, 256, 128, 129, 130, 131, 132, 133)

// Z: whether d is added to. A, B, TA, TB: the numbers of the other operands.
#define JM_WGMMA_TYPED(NT, N, TYPE, Z, A, B, TA, TB)                                        \
  asm volatile("wgmma.mma_async.sync.aligned.m64n" #N "k16.f32." TYPE "." TYPE              \
               " {" JM_R##NT "}, %" #A ", %" #B ", " Z ", 1, 1, %" #TA ", %" #TB ";"        \
               : JM_D##NT                                                                   \
               : "l"(a), "l"(b), "n"(A_MN ? 1 : 0), "n"(B_MN ? 1 : 0))
#define JM_WGMMA(COUNT, N, A, B, TA, TB, ...)                                               \
  else if constexpr (NT == COUNT) {                                                         \
    if constexpr (ZERO && is_same<T, bf16>) JM_WGMMA_TYPED(COUNT, N, "bf16", "0", A, B, TA, TB); \
    else if constexpr (ZERO) JM_WGMMA_TYPED(COUNT, N, "f16", "0", A, B, TA, TB);            \
    else if constexpr (is_same<T, bf16>) JM_WGMMA_TYPED(COUNT, N, "bf16", "1", A, B, TA, TB); \
    else JM_WGMMA_TYPED(COUNT, N, "f16", "1", A, B, TA, TB);                                \
  }

// Rows 16 * (warp_id() % 4) + g and + 8 of the 64, like mma's fragments.
template <class T, bool A_MN, bool B_MN, bool ZERO = false, int NT>
JM_DEVICE void wgmma(float (&d)[NT][4], uint64_t a, uint64_t b) {
  static_assert(is_narrow<T> && !is_f8<T>, "wgmma multiplies bf16 or f16");
  static_assert(NT % 2 == 0 && NT >= 2 && NT <= 32, "N is a multiple of 16 up to 256");
  if constexpr (false) {
  }
  JM_WGMMA_SIZES
}

#undef JM_WGMMA
#undef JM_WGMMA_TYPED

#define JM_WGMMA(COUNT, N, A, B, ...)                                                       \
  else if constexpr (NT == COUNT) {                                                         \
    asm volatile("wgmma.mma_async.sync.aligned.m64n" #N "k8.f32.tf32.tf32"                  \
                 " {" JM_R##COUNT "}, %" #A ", %" #B ", 1, 1, 1;"                           \
                 : JM_D##COUNT                                                              \
                 : "l"(a), "l"(b));                                                         \
  }

// f32 as tf32, both operands K-major. The low 13 bits of an element are not read.
template <int NT>
JM_DEVICE void wgmma_tf32(float (&d)[NT][4], uint64_t a, uint64_t b) {
  static_assert(NT % 2 == 0 && NT >= 2 && NT <= 32, "N is a multiple of 16 up to 256");
  if constexpr (false) {
  }
  JM_WGMMA_SIZES
}

#undef JM_WGMMA

#define JM_WGMMA(COUNT, N, A0, A1, A2, A3, B, ...)                                          \
  else if constexpr (NT == COUNT) {                                                         \
    asm volatile("wgmma.mma_async.sync.aligned.m64n" #N "k8.f32.tf32.tf32"                  \
                 " {" JM_R##COUNT "}, {%" #A0 ", %" #A1 ", %" #A2 ", %" #A3 "}, %" #B       \
                 ", 1, 1, 1;"                                                               \
                 : JM_D##COUNT                                                              \
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b));                     \
  }

// The left operand in registers, as a fragment of mma_m16n8k8_tf32: of 16 rows a warp.
template <int NT>
JM_DEVICE void wgmma_tf32_registers(float (&d)[NT][4], const uint32_t (&a)[4], uint64_t b) {
  static_assert(NT % 2 == 0 && NT >= 2 && NT <= 32, "N is a multiple of 16 up to 256");
  if constexpr (false) {
  }
  JM_WGMMA_SIZES
}

#undef JM_WGMMA

#define JM_WGMMA_TYPED(NT, N, TYPES, A, B)                                                  \
  asm volatile("wgmma.mma_async.sync.aligned.m64n" #N "k32.f32." TYPES                      \
               " {" JM_R##NT "}, %" #A ", %" #B ", 1, 1, 1;"                                \
               : JM_D##NT                                                                   \
               : "l"(a), "l"(b))
#define JM_WGMMA(COUNT, N, AT, BT, ...)                                                     \
  else if constexpr (NT == COUNT) {                                                         \
    if constexpr (is_same<A, f8e4m3> && is_same<B, f8e4m3>)                                 \
      JM_WGMMA_TYPED(COUNT, N, "e4m3.e4m3", AT, BT);                                        \
    else if constexpr (is_same<A, f8e4m3>) JM_WGMMA_TYPED(COUNT, N, "e4m3.e5m2", AT, BT);   \
    else if constexpr (is_same<B, f8e4m3>) JM_WGMMA_TYPED(COUNT, N, "e5m2.e4m3", AT, BT);   \
    else JM_WGMMA_TYPED(COUNT, N, "e5m2.e5m2", AT, BT);                                     \
  }

// A, B: f8e4m3 or f8e5m2, both operands K-major. The sums keep some 14 bits of each product only.
template <class A, class B, int NT>
JM_DEVICE void wgmma_f8(float (&d)[NT][4], uint64_t a, uint64_t b) {
  static_assert(is_f8<A> && is_f8<B>, "");
  static_assert(NT % 2 == 0 && NT >= 2 && NT <= 32, "N is a multiple of 16 up to 256");
  if constexpr (false) {
  }
  JM_WGMMA_SIZES
}

#undef JM_WGMMA
#undef JM_WGMMA_TYPED

// A0 .. A3, B, TB: the numbers of the other operands.
#define JM_WGMMA_TYPED(NT, N, TYPE, Z, A0, A1, A2, A3, B, TB)                               \
  asm volatile("wgmma.mma_async.sync.aligned.m64n" #N "k16.f32." TYPE "." TYPE              \
               " {" JM_R##NT "}, {%" #A0 ", %" #A1 ", %" #A2 ", %" #A3 "}, %" #B            \
               ", " Z ", 1, 1, %" #TB ";"                                                   \
               : JM_D##NT                                                                   \
               : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "n"(B_MN ? 1 : 0))
#define JM_WGMMA(COUNT, N, A0, A1, A2, A3, B, TB)                                           \
  else if constexpr (NT == COUNT) {                                                         \
    if constexpr (ZERO && is_same<T, bf16>)                                                 \
      JM_WGMMA_TYPED(COUNT, N, "bf16", "0", A0, A1, A2, A3, B, TB);                         \
    else if constexpr (ZERO) JM_WGMMA_TYPED(COUNT, N, "f16", "0", A0, A1, A2, A3, B, TB);   \
    else if constexpr (is_same<T, bf16>)                                                    \
      JM_WGMMA_TYPED(COUNT, N, "bf16", "1", A0, A1, A2, A3, B, TB);                         \
    else JM_WGMMA_TYPED(COUNT, N, "f16", "1", A0, A1, A2, A3, B, TB);                       \
  }

// The left operand in registers, as a fragment of mma: of 16 rows a warp.
template <class T, bool B_MN, bool ZERO = false, int NT>
JM_DEVICE void wgmma_registers(float (&d)[NT][4], const uint32_t (&a)[4], uint64_t b) {
  static_assert(is_narrow<T> && !is_f8<T>, "wgmma multiplies bf16 or f16");
  static_assert(NT % 2 == 0 && NT >= 2 && NT <= 32, "N is a multiple of 16 up to 256");
  if constexpr (false) {
  }
  JM_WGMMA_SIZES
}

#undef JM_WGMMA
#undef JM_WGMMA_TYPED

#define JM_WGMMA_TYPED(NT, N, TYPES, A0, A1, A2, A3, B)                                     \
  asm volatile("wgmma.mma_async.sync.aligned.m64n" #N "k32.f32." TYPES                      \
               " {" JM_R##NT "}, {%" #A0 ", %" #A1 ", %" #A2 ", %" #A3 "}, %" #B            \
               ", 1, 1, 1;"                                                                 \
               : JM_D##NT                                                                   \
               : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b))
#define JM_WGMMA(COUNT, N, A0, A1, A2, A3, BT, ...)                                         \
  else if constexpr (NT == COUNT) {                                                         \
    if constexpr (is_same<A, f8e4m3> && is_same<B, f8e4m3>)                                 \
      JM_WGMMA_TYPED(COUNT, N, "e4m3.e4m3", A0, A1, A2, A3, BT);                            \
    else if constexpr (is_same<A, f8e4m3>)                                                  \
      JM_WGMMA_TYPED(COUNT, N, "e4m3.e5m2", A0, A1, A2, A3, BT);                            \
    else if constexpr (is_same<B, f8e4m3>)                                                  \
      JM_WGMMA_TYPED(COUNT, N, "e5m2.e4m3", A0, A1, A2, A3, BT);                            \
    else JM_WGMMA_TYPED(COUNT, N, "e5m2.e5m2", A0, A1, A2, A3, BT);                         \
  }

// Bytes, the left operand in registers, as a fragment of mma_m16n8k32: of 16 rows a warp. As wgmma_f8.
template <class A, class B, int NT>
JM_DEVICE void wgmma_bytes_registers(float (&d)[NT][4], const uint32_t (&a)[4], uint64_t b) {
  static_assert(is_f8<A> && is_f8<B>, "");
  static_assert(NT % 2 == 0 && NT >= 2 && NT <= 32, "N is a multiple of 16 up to 256");
  if constexpr (false) {
  }
  JM_WGMMA_SIZES
}

#undef JM_WGMMA
#undef JM_WGMMA_TYPED
#undef JM_D
#define JM_D(J) "+r"(d[J][0]), "+r"(d[J][1]), "+r"(d[J][2]), "+r"(d[J][3])

#define JM_WGMMA_TYPED(NT, N, TYPES, A0, A1, A2, A3, B)                                     \
  asm volatile("wgmma.mma_async.sync.aligned.m64n" #N "k32.s32." TYPES                      \
               " {" JM_R##NT "}, {%" #A0 ", %" #A1 ", %" #A2 ", %" #A3 "}, %" #B ", 1;"     \
               : JM_D##NT                                                                   \
               : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b))
#define JM_WGMMA(COUNT, N, A0, A1, A2, A3, BT, ...)                                         \
  else if constexpr (NT == COUNT) {                                                         \
    if constexpr (is_signed<A> && is_signed<B>)                                             \
      JM_WGMMA_TYPED(COUNT, N, "s8.s8", A0, A1, A2, A3, BT);                                \
    else if constexpr (is_signed<A>) JM_WGMMA_TYPED(COUNT, N, "s8.u8", A0, A1, A2, A3, BT); \
    else if constexpr (is_signed<B>) JM_WGMMA_TYPED(COUNT, N, "u8.s8", A0, A1, A2, A3, BT); \
    else JM_WGMMA_TYPED(COUNT, N, "u8.u8", A0, A1, A2, A3, BT);                             \
  }

// A, B: int8_t or uint8_t, in any mixture. Sums wrap.
template <class A, class B, int NT>
JM_DEVICE void wgmma_bytes_registers(uint32_t (&d)[NT][4], const uint32_t (&a)[4], uint64_t b) {
  static_assert(sizeof(A) == 1 && sizeof(B) == 1 && !is_f8<A> && !is_f8<B>, "");
  static_assert(NT % 2 == 0 && NT >= 2 && NT <= 32, "N is a multiple of 16 up to 256");
  if constexpr (false) {
  }
  JM_WGMMA_SIZES
}

#undef JM_WGMMA
#undef JM_WGMMA_TYPED
#undef JM_WGMMA_SIZES
#undef JM_D

// setmaxnreg, all warps of a warpgroup: the kernel starts with what __launch_bounds__ leaves.
template <int N>
JM_DEVICE void registers_increase() {
  static_assert(N % 8 == 0 && N >= 24 && N <= 256, "setmaxnreg takes multiples of 8 in 24..256");
  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(N));
}
template <int N>
JM_DEVICE void registers_decrease() {
  static_assert(N % 8 == 0 && N >= 24 && N <= 256, "setmaxnreg takes multiples of 8 in 24..256");
  asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(N));
}

}  // namespace jaxmono

#endif
