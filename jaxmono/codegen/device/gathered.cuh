// A left operand whose rows are gathered, as a convolution's are:
//
//   element (row, k)   from[k's offset + row's offset], or zero where k's tap is outside the row's image
//
// What a row takes (divisions for its place in the image, comparisons with the image's edges for every
// tap) is found once a task, what a k takes once a k tile; both together are a sum for the address and
// one `and` for the padding, 3 to 4 instructions a piece. Computed piece by piece, with what the compiler
// keeps of it in registers, a piece took 5 to 11, and four producer warps brought 60 KB a microsecond
// (VGG-16 b32 on an H200: 1971 us, 1795 so; CRNN's convolutions b8 113, 65).
#pragma once
#include "jaxmono/types.cuh"

namespace jaxmono {

// Bits of `outside` and `needs`: from 0 on, one for each distance from a row's place that its taps have.
constexpr uint32_t OUTSIDE_ROW = 1u << 30;    // the row is none, or padding whatever the tap
constexpr uint32_t OUTSIDE_COLUMN = 1u << 31;  // k is outside; every row has it

// outside: the bits of taps that are padding here.
struct GatheredRow {
  int offset;
  uint32_t outside;
};

// needs: the bits that must not be set in a row's `outside`.
template <class T>
struct GatheredColumn {
  const T* from;
  uint32_t needs;
};

// rows(row), columns(k tile, column of it): how to find them.
template <class T, class Rows, class Columns>
struct Gathered {
  static constexpr bool IS_GATHERED = true;
  Rows rows;
  Columns columns;
};

template <class T, class Rows, class Columns>
JM_DEVICE Gathered<T, Rows, Columns> gathered(const Rows& rows, const Columns& columns) {
  return {rows, columns};
}

template <class, class = void>
struct IsGathered {
  static constexpr bool value = false;
};
template <class L>
struct IsGathered<L, decltype(void(L::IS_GATHERED))> {
  static constexpr bool value = true;
};

// Bit j, of COUNT, is set where first + j is not in [low, high).
template <int COUNT>
JM_DEVICE uint32_t missing(int first, int low, int high) {
  uint32_t bits = 0;
#pragma unroll
  for (int j = 0; j < COUNT; ++j)
    if (static_cast<unsigned>(first + j - low) >= static_cast<unsigned>(high - low)) bits |= 1u << j;
  return bits;
}

}  // namespace jaxmono
