// Rows of 16 bits that begin anywhere in memory (50257 to a row), written in pieces of 16 bytes all the same:
// neighbouring lanes have neighbouring pieces, and each gives the next one what its own piece has too much.
//
//   lanes        | a b c d e f g h | i j k l m n o p | ..       8 elements each, of a row that begins
//   memory       . . . |a b c d e f g h|i j k l ..              3 elements behind a multiple of 16 bytes
//   stored           a b c d e | f g h i j k l m | n o p ..     the first lane's head and the last one's tail
//                                                              together have 8 elements: one for each lane
#pragma once
#include "jaxmono/ptx.cuh"
#include "jaxmono/ptx_mma.cuh"
#include "jaxmono/vec.cuh"
#include "jaxmono/warp.cuh"

namespace jaxmono {

// 8 GROUP neighbouring elements of each GROUP neighbouring lanes' row, if it is wanted. p: of this lane's first.
// All lanes of a warp call it together; those of a group want the same.
template <class T, int GROUP, class X>
JM_DEVICE void store_staggered(T* p, const Vec<X, 8>& x, bool wanted) {
  static_assert(sizeof(T) == 2 && GROUP >= 8 && WARP % GROUP == 0, "a lane for each element of both ends");
  const Raw<T, 8> raw = to_raw<T>(x);
  const int lane = lane_id(), i = lane % GROUP;
  const uint32_t past = static_cast<uint32_t>(reinterpret_cast<uint64_t>(p) >> 1) & 7;
  // Element e of `own` is number e - past of x, modulo 8.
  uint32_t own[4];
  {
    uint32_t a[4], b[4];
#pragma unroll
    for (int w = 0; w < 4; ++w) a[w] = past & 4 ? raw.pair[(w + 2) % 4] : raw.pair[w];
#pragma unroll
    for (int w = 0; w < 4; ++w) b[w] = past & 2 ? a[(w + 3) % 4] : a[w];
    const uint32_t half = past & 1 ? 0x5432 : 0x7654;
#pragma unroll
    for (int w = 0; w < 4; ++w) own[w] = byte_permute(b[(w + 3) % 4], b[w], half);
  }
  Bits128 piece;  // elements in front of `past` are those of the lane before
  uint32_t* const words = reinterpret_cast<uint32_t*>(&piece);
#pragma unroll
  for (uint32_t w = 0; w < 4; ++w) {
    const uint32_t before = shfl_idx(own[w], lane - 1);
    words[w] = byte_permute(before, own[w], past > 2 * w + 1 ? 0x3210 : past > 2 * w ? 0x7610 : 0x7654);
  }
  T* const begin = p - past;
  if (wanted && i > 0) st_global_16(begin, piece);
  // The ends: element i of the first lane's piece, or of what follows the last one's.
  const bool tail = i < static_cast<int>(past);
  const int from = lane - i + (tail ? GROUP - 1 : 0);
  uint32_t pair = 0;
#pragma unroll
  for (int w = 0; w < 4; ++w) {
    const uint32_t got = shfl_idx(own[w], from);
    if (i / 2 == w) pair = got;
  }
  if (wanted && i < 8)
    begin[(tail ? GROUP * 8 : 0) + i - i * 8] = bitcast<T>(static_cast<uint16_t>(i % 2 ? pair >> 16 : pair));
}

}  // namespace jaxmono
