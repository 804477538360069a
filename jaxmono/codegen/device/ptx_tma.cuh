// Tiles of f32 by the tensor memory accelerator, rounded to tf32 on their way. sm_90a; see ptx.cuh for
// the list.
//
// A tensor map tells the accelerator where a matrix is and what a tile of it looks like. It is 128 bytes
// of global memory that the kernel writes itself: whatever addresses a launch is given, nothing on the
// host has to know of it. The accelerator reads maps, and matrices, by a proxy of its own, which other
// writes do not reach without a fence:
//
//   one warp      tensor_map_make -> tensor_map_acquire, by the thread that loads
//   a matrix that this launch wrote      a barrier, then fence_proxy_async_all by the thread that loads
#pragma once

#ifdef JAXMONO_EMULATE
#include "emulate/tma.h"
#else

#include "jaxmono/ptx_mbarrier.cuh"

namespace jaxmono {

struct alignas(128) TensorMap {
  uint32_t x[32];
};

JM_DEVICE void tensor_map_make(TensorMap* to, uint32_t* scratch, const float* first, int rows, int cols,
                               long long pitch, int box_rows) {
  const uint32_t map = shared_address(scratch), lane = threadIdx.x % 32;
  scratch[lane] = 0;
  __syncwarp();
  if (lane == 0) {
    asm volatile("tensormap.replace.tile.global_address.shared::cta.b1024.b64 [%0], %1;" ::"r"(map),
                 "l"(first)
                 : "memory");
    asm volatile("tensormap.replace.tile.global_stride.shared::cta.b1024.b64 [%0], 0, %1;" ::"r"(map),
                 "l"(pitch * 4)
                 : "memory");
    asm volatile(
        "tensormap.replace.tile.rank.shared::cta.b1024.b32 [%0], 1;\n"  // dimensions - 1
        "tensormap.replace.tile.global_dim.shared::cta.b1024.b32 [%0], 0, %1;\n"
        "tensormap.replace.tile.global_dim.shared::cta.b1024.b32 [%0], 1, %2;\n"
        "tensormap.replace.tile.box_dim.shared::cta.b1024.b32 [%0], 0, 32;\n"
        "tensormap.replace.tile.box_dim.shared::cta.b1024.b32 [%0], 1, %3;\n"
        "tensormap.replace.tile.element_stride.shared::cta.b1024.b32 [%0], 0, 1;\n"
        "tensormap.replace.tile.element_stride.shared::cta.b1024.b32 [%0], 1, 1;\n"
        "tensormap.replace.tile.elemtype.shared::cta.b1024.b32 [%0], 11;\n"  // tf32
        "tensormap.replace.tile.interleave_layout.shared::cta.b1024.b32 [%0], 0;\n"
        "tensormap.replace.tile.swizzle_mode.shared::cta.b1024.b32 [%0], 3;\n"  // 128 bytes
        "tensormap.replace.tile.fill_mode.shared::cta.b1024.b32 [%0], 0;"  // zeros outside
        ::"r"(map), "r"(cols), "r"(rows), "r"(box_rows)
        : "memory");
  }
  __syncwarp();
  asm volatile(
      "tensormap.cp_fenceproxy.global.shared::cta.tensormap::generic.release.gpu.sync.aligned [%0], "
      "[%1], 128;" ::"l"(to),
      "r"(map)
      : "memory");
  __syncwarp();
}
JM_DEVICE void tensor_map_acquire(const TensorMap* map) {
  asm volatile("fence.proxy.tensormap::generic.acquire.gpu [%0], 128;" ::"l"(map) : "memory");
}
JM_DEVICE void tma_load(void* smem, const TensorMap* map, int row, int col, int box_rows, uint64_t* bar) {
  asm volatile("mbarrier.expect_tx.relaxed.cta.shared::cta.b64 [%0], %1;" ::"r"(shared_address(bar)),
               "r"(box_rows * 128)
               : "memory");
  asm volatile(
      "cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes [%0], [%1, {%2, "
      "%3}], [%4];" ::"r"(shared_address(smem)),
      "l"(map), "r"(col), "r"(row), "r"(shared_address(bar))
      : "memory");
}
JM_DEVICE void fence_proxy_async_all() { asm volatile("fence.proxy.async;" ::: "memory"); }

}  // namespace jaxmono

#endif
