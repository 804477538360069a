// The tensor maps of a kernel's blocks, each made by the block that uses it: what a stage reads, and where
// that is, a block knows when it gets there.
#pragma once
#include "jaxmono/kernel.cuh"
#include "jaxmono/opaque.cuh"
#include "jaxmono/ptx_tma.cuh"
#include "jaxmono/roles.cuh"
#include "jaxmono/warp.cuh"

namespace jaxmono {

// One behind the other in a ring. When a place comes to be written again, the loads by its old map are long
// done: a map has been for a tile at least (or for none, of a task whose share of k is empty), no more tiles
// are under way than a ring of them has slots, and producers are no more than a grid barrier ahead.
struct TensorMaps {
  static constexpr int SLOTS = 16, BLOCKS = 160;  // more blocks than a GPU with wgmma has multiprocessors
  TensorMap of[BLOCKS][SLOTS];
};
JM_STATE TensorMaps tensor_maps;

// One warp: the map of a Strided operand in boxes of so many rows and 32 columns; the newest one, if it is that.
template <class Load>
JM_DEVICE const TensorMap* tensor_map(Roles* roles, const Load& x, int box) {
  Mapped& last = roles->mapped;
  const bool same = last.first == x.first && last.pitch == Load::PITCH && last.rows == x.rows &&
                    last.cols == x.cols && last.box_rows == box;
  const uint32_t number = last.count + (same ? 0 : 1);
  TensorMap* const map = &tensor_maps.of[block_id()][number % TensorMaps::SLOTS];
  if (!same) {
    syncwarp();  // all lanes have looked
    if (lane_id() == 0) {
      last.first = x.first, last.pitch = Load::PITCH;
      last.rows = x.rows, last.cols = x.cols, last.box_rows = box, last.count = number;
    }
    tensor_map_make(map, roles->map, x.first, x.rows, x.cols, Load::PITCH, box);
    tensor_map_acquire(map);
  }
  return map;
}

}  // namespace jaxmono
