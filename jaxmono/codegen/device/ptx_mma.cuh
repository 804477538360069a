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

JM_DEVICE uint32_t to_tf32(float x) {
  uint32_t out;
  asm("cvt.rna.tf32.f32 %0, %1;" : "=r"(out) : "f"(x));
  return out;
}

}  // namespace jaxmono
