// What wgmma reads of tiles in shared memory, and which of its instructions a type of elements takes.
#pragma once
#include "jaxmono/f8.cuh"
#include "jaxmono/platform.cuh"
#include "jaxmono/ptx_wgmma.cuh"

namespace jaxmono {

// Bytes from the beginning of a K-major tile.
template <class TileT>
JM_DEVICE constexpr int k_offset(int outer, int k) {
  return k / TileT::ACROSS * TileT::PANEL + outer * 128 +
         k % TileT::ACROSS * (128 / TileT::ACROSS);
}

// Descriptor of the operand slice that begins at (outer, k): 64 rows of A, all columns of B.
template <class TileT, bool K_MAJOR>
JM_DEVICE uint64_t operand_slice(unsigned char* tile, int outer, int k) {
  if constexpr (K_MAJOR)
    return wgmma_descriptor(tile + k_offset<TileT>(outer, k), 16, 1024);
  else
    return wgmma_descriptor(tile + outer / 64 * TileT::PANEL + k * 128 + outer % 64 * 2, TileT::PANEL,
                            1024);
}

// The same by the descriptor of the slice (0, 0), or of any with row and column 0 of a panel: one
// addition of constants.
template <class TileT, bool K_MAJOR>
JM_DEVICE uint64_t operand_slice(uint64_t first, int outer, int k) {
  return wgmma_descriptor_at(first, K_MAJOR ? k_offset<TileT>(outer, k)
                                            : outer / 64 * TileT::PANEL + k * 128 + outer % 64 * 2);
}

template <class T>
struct Wgmma {
  template <bool A_MN, bool B_MN, int NT>
  JM_DEVICE static void run(float (&d)[NT][4], uint64_t a, uint64_t b) {
    wgmma<T, A_MN, B_MN>(d, a, b);
  }
};
template <class A, class B>
struct Wgmma<F8Pair<A, B>> {
  template <bool A_MN, bool B_MN, int NT>
  JM_DEVICE static void run(float (&d)[NT][4], uint64_t a, uint64_t b) {
    static_assert(!A_MN && !B_MN, "operands of bytes are K-major");
    wgmma_f8<A, B>(d, a, b);
  }
};
template <>
struct Wgmma<float> {
  template <bool A_MN, bool B_MN, int NT>
  JM_DEVICE static void run(float (&d)[NT][4], uint64_t a, uint64_t b) {
    static_assert(!A_MN && !B_MN, "operands of 32 bits are K-major");
    wgmma_tf32(d, a, b);
  }
};

}  // namespace jaxmono
