// The functions of ptx_tma.cuh on the host.
//
// The pieces of a tile are copies of the thread that asks for them, as cp.async's are; they arrive at its
// barrier when they have happened. Errors: a map that a thread has not acquired since it was made; a map
// that is made again while a load by it is under way; a load behind a barrier of several warps without a
// fence_proxy_async_all since; eight rows and more that are outside the matrix.
#pragma once
#include "emulate/hopper.h"
#include "emulate/mbarrier.h"
#include "emulate/ptx.h"

namespace jaxmono {

struct alignas(128) TensorMap {
  const float* first;
  long long pitch;
  int rows, cols, box_rows;
  uint32_t acquired;  // the lanes of a warp that have
  int warp;
  uint32_t loading;
};

inline void tensor_map_make(TensorMap* to, uint32_t* scratch, const float* first, int rows, int cols,
                            long long pitch, int box_rows) {
  const emulate::Lane& me = emulate::self();
  for (int i = 0; i < 32; ++i) emulate::check_shared(me, scratch + i, 4, "tensor_map_make scratch");
  if (reinterpret_cast<uintptr_t>(scratch) % 128 != 0 || reinterpret_cast<uintptr_t>(to) % 128 != 0 ||
      reinterpret_cast<uintptr_t>(first) % 16 != 0 || pitch % 4 != 0 || pitch < cols || rows < 1 ||
      cols < 1 || box_rows < 1 || box_rows > 256)
    emulate::fail("tensor_map_make of %d x %d floats at %p, %lld apart, by %d rows, in block %d: sizes or "
                  "alignment",
                  rows, cols, first, pitch, box_rows, me.block_id);
  scratch[me.lane_id] = 0xdeadbeef;
  syncwarp();
  if (to->loading != 0)
    emulate::fail("tensor_map_make in block %d: a load by the map that is there is under way", me.block_id);
  syncwarp();
  *to = {first, pitch, rows, cols, box_rows, 0, me.warp_id, 0};
  syncwarp();
}
inline void tensor_map_acquire(const TensorMap* map) {
  const_cast<TensorMap*>(map)->acquired |= 1u << emulate::self().lane_id;
}
inline void tma_load(void* smem, const TensorMap* map, int row, int col, int box_rows, uint64_t* bar) {
  const emulate::Lane& me = emulate::self();
  if (map->box_rows != box_rows || map->warp != me.warp_id || (map->acquired >> me.lane_id & 1) == 0)
    emulate::fail("tma_load of block %d thread %d: it has no map for %d rows", me.block_id, me.thread_id,
                  box_rows);
  if (row + box_rows - map->rows >= 8)
    emulate::fail("tma_load of block %d: %d of %d rows are outside the matrix, which takes longer", me.block_id,
                  row + box_rows - map->rows, box_rows);
  if (me.copies->unfenced)
    emulate::fail("tma_load of block %d thread %d: no fence_proxy_async_all since a barrier", me.block_id,
                  me.thread_id);
  if ((static_cast<unsigned char*>(smem) - me.shared) % 1024 != 0)
    emulate::fail("tma_load of block %d thread %d: a tile begins at 1024 bytes", me.block_id,
                  me.thread_id);
  for (int r = 0; r < box_rows; ++r)
    for (int piece = 0; piece < 8; ++piece) {
      unsigned char* const to = static_cast<unsigned char*>(smem) + r * 128 + (piece ^ (r & 7)) * 16;
      const int c = col + piece * 4;
      const bool inside = row >= 0 && row + r < map->rows && c >= 0 && c < map->cols;
      const uint32_t part = !inside ? 0 : map->cols - c < 4 ? map->cols - c : 4;  // floats; zeros behind
      if (part > 0)
        emulate::copy(to, map->first + (row + r) * map->pitch + c, part * 4 | emulate::ROUNDED);
      if (part < 4) emulate::copy(to + part * 4, nullptr, 16 - part * 4);
    }
  ++const_cast<TensorMap*>(map)->loading;
  emulate::copy(&const_cast<TensorMap*>(map)->loading, nullptr, emulate::COUNTED);
  emulate::mbarrier_expect_later(bar);
}
inline void fence_proxy_async_all() {
  emulate::self().copies->unfenced = false;
  emulate::fence_proxy_async();
}

}  // namespace jaxmono
