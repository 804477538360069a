// ldmatrix and mma.sync on the GPU; see ptx.cuh for the list.
#pragma once
#include "jaxmono/ptx_async.cuh"

namespace jaxmono {

JM_DEVICE void ldmatrix_x4(uint32_t (&r)[4], const void* smem_row) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"(shared_address(smem_row))
               : "memory");
}
JM_DEVICE void ldmatrix_x4_trans(uint32_t (&r)[4], const void* smem_row) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"(shared_address(smem_row))
               : "memory");
}
JM_DEVICE void ldmatrix_x2(uint32_t (&r)[2], const void* smem_row) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x2.shared.b16 {%0, %1}, [%2];"
               : "=r"(r[0]), "=r"(r[1])
               : "r"(shared_address(smem_row))
               : "memory");
}
JM_DEVICE void ldmatrix_x2_trans(uint32_t (&r)[2], const void* smem_row) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x2.trans.shared.b16 {%0, %1}, [%2];"
               : "=r"(r[0]), "=r"(r[1])
               : "r"(shared_address(smem_row))
               : "memory");
}

#define JM_MMA(NAME, SHAPE)                                                              \
  JM_DEVICE void NAME(float (&d)[4], const uint32_t (&a)[4], const uint32_t (&b)[2]) {   \
    asm volatile("mma.sync.aligned." SHAPE                                               \
                 " {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"      \
                 : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])                        \
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));    \
  }
JM_MMA(mma_m16n8k16_bf16, "m16n8k16.row.col.f32.bf16.bf16.f32")
JM_MMA(mma_m16n8k16_f16, "m16n8k16.row.col.f32.f16.f16.f32")
JM_MMA(mma_m16n8k8_tf32, "m16n8k8.row.col.f32.tf32.tf32.f32")
#undef JM_MMA

#define JM_MMA(TYPES, ACC, REGISTER)                                                     \
  asm volatile("mma.sync.aligned.m16n8k32.row.col." ACC "." TYPES "." ACC                \
               " {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"        \
               : REGISTER(d[0]), REGISTER(d[1]), REGISTER(d[2]), REGISTER(d[3])          \
               : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]))
// A, B: int8_t or uint8_t, in any mixture. Sums wrap.
template <class A, class B>
JM_DEVICE void mma_m16n8k32(uint32_t (&d)[4], const uint32_t (&a)[4], const uint32_t (&b)[2]) {
  if constexpr (is_signed<A>) {
    if constexpr (is_signed<B>) JM_MMA("s8.s8", "s32", "+r");
    else JM_MMA("s8.u8", "s32", "+r");
  } else {
    if constexpr (is_signed<B>) JM_MMA("u8.s8", "s32", "+r");
    else JM_MMA("u8.u8", "s32", "+r");
  }
}

// A, B: f8e4m3 or f8e5m2, in any mixture. On sm_90 the compiler makes products of f16 of it, and sm_80
// has none: mma.cuh does that itself there.
template <class A, class B>
JM_DEVICE void mma_m16n8k32(float (&d)[4], const uint32_t (&a)[4], const uint32_t (&b)[2]) {
#if __CUDA_ARCH__ >= 890
  if constexpr (is_same<A, f8e4m3>) {
    if constexpr (is_same<B, f8e4m3>) JM_MMA("e4m3.e4m3", "f32", "+f");
    else JM_MMA("e4m3.e5m2", "f32", "+f");
  } else {
    if constexpr (is_same<B, f8e4m3>) JM_MMA("e5m2.e4m3", "f32", "+f");
    else JM_MMA("e5m2.e5m2", "f32", "+f");
  }
#else
  static_assert(sizeof(A) == 0, "no products of 8-bit floats before sm_89");
#endif
}
#undef JM_MMA

// Odd rows run backwards: neighbouring products share an operand register.
#define JM_MMA_TILES(NAME, ONE)                                                          \
  template <int MT, int NT>                                                              \
  JM_DEVICE void NAME(float (&d)[MT][NT][4], const uint32_t (&a)[MT][4],                 \
                      const uint32_t (&b)[NT][2]) {                                      \
    _Pragma("unroll") for (int i = 0; i < MT; ++i)                                       \
        _Pragma("unroll") for (int j = 0; j < NT; ++j) {                                 \
      const int n = i % 2 ? NT - 1 - j : j;                                              \
      ONE(d[i][n], a[i], b[n]);                                                          \
    }                                                                                    \
  }
JM_MMA_TILES(mma_tiles_bf16, mma_m16n8k16_bf16)
JM_MMA_TILES(mma_tiles_f16, mma_m16n8k16_f16)
JM_MMA_TILES(mma_tiles_tf32, mma_m16n8k8_tf32)
#undef JM_MMA_TILES

template <class A, class B, class Acc, int MT, int NT>
JM_DEVICE void mma_tiles_bytes(Acc (&d)[MT][NT][4], const uint32_t (&a)[MT][4],
                               const uint32_t (&b)[NT][2]) {
#pragma unroll
  for (int i = 0; i < MT; ++i)
#pragma unroll
    for (int j = 0; j < NT; ++j) {
      const int n = i % 2 ? NT - 1 - j : j;
      mma_m16n8k32<A, B>(d[i][n], a[i], b[n]);
    }
}

// Bytes of (high, low), numbered 0 to 7 from the lowest of `low`: nibble i of the selector names
// that of result byte i.
JM_DEVICE uint32_t byte_permute(uint32_t low, uint32_t high, uint32_t selector) {
  return __byte_perm(low, high, selector);
}

JM_DEVICE uint32_t to_tf32(float x) {
  uint32_t out;
#if __CUDA_ARCH__ >= 900
  asm("cvt.rn.tf32.f32 %0, %1;" : "=r"(out) : "f"(x));
#else
  asm("cvt.rna.tf32.f32 %0, %1;" : "=r"(out) : "f"(x));  // on Hopper three instructions
#endif
  return out;
}

}  // namespace jaxmono
