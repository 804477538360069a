// The k tiles of an operand of wgmma, one behind the other, as its producers request them.
#pragma once
#include "jaxmono/opaque.cuh"
#include "jaxmono/roles.cuh"
#include "jaxmono/swizzled_tile.cuh"
#include "jaxmono/types.cuh"
#include "jaxmono/unaligned_tile.cuh"

namespace jaxmono {

// What a thread needs to request the first tile is known before it may be read: address arithmetic behind a
// grid barrier is waited for. TileT: of BK elements of k. UNALIGNED: Load is an Unaligned; MORE: where in a
// slot its further lines are, seen from its tile. STRAIGHT: the tile lies as in memory.
template <class T, class TileT, int BK, bool K_MAJOR, bool UNALIGNED, int MORE, class Load,
          bool STRAIGHT = !is_same<T, float>>
struct Marching {
  static constexpr bool STEADY = STRAIGHT && IsSteady<Load>::value;
  using Shifted = UnalignedTile<T, TileT::ROWS, TileT::COLS>;
  const int thread, outer, k0;
  const Load& load;
  const T* from = nullptr;

  JM_DEVICE Marching(int thread_, int outer_, int k0_, const Load& load_)
      : thread(thread_), outer(outer_), k0(k0_), load(load_) {
    if constexpr (STEADY)
      from = opaque(TileT::template begin<PRODUCERS>(thread, K_MAJOR ? outer : k0,
                                                     K_MAJOR ? k0 : outer, load));
  }
  JM_DEVICE void fill(unsigned char* to, int t) const {
    const int k = k0 + t * BK, row = K_MAJOR ? outer : k, col = K_MAJOR ? k : outer;
    if constexpr (STEADY)
      TileT::template fill<PRODUCERS>(to, thread, row, col, load,
                                      from + t * (K_MAJOR ? BK : BK * Load::PITCH));
    else if constexpr (UNALIGNED)
      Shifted::template fill<PRODUCERS>(to, to + MORE, thread, row, col, load);
    else
      TileT::template fill<PRODUCERS>(to, thread, row, col, load);
  }
  // Of an unaligned operand, behind the wait for what this thread has requested of tile t.
  JM_DEVICE void finish(unsigned char* to, int t) const {
    const int k = k0 + t * BK, row = K_MAJOR ? outer : k, col = K_MAJOR ? k : outer;
    Shifted::template finish<PRODUCERS>(to, to + MORE, thread, row, col, load);
  }
};

}  // namespace jaxmono
