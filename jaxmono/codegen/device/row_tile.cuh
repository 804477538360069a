// Neighbouring rows on their way out through shared memory, where each lane has rows of its own
// (codegen/turned_rows.py).
//
//   lane l          element c of its rows LANES l, LANES l + 1, ..        (stored)
//   thread i        word i of the rows, one behind the other              (loaded, and stored to memory)
#pragma once
#include "jaxmono/index.cuh"
#include "jaxmono/platform.cuh"
#include "jaxmono/vec.cuh"
#include "jaxmono/warp.cuh"

namespace jaxmono {

// 32 LANES rows of COLUMNS elements. Rows are an odd number of words apart, and those with the same place among
// a lane's own one behind the other: what lanes store at a time falls on all banks.
template <class T, int COLUMNS, int LANES>
struct RowTile {
  static_assert(sizeof(T) <= 4 && COLUMNS * sizeof(T) % 4 == 0, "whole words");
  static constexpr int WORDS = COLUMNS * int(sizeof(T)) / 4, PITCH = WORDS | 1;

  template <class X>
  JM_DEVICE static void put(unsigned char* tile, int column, const Vec<X, LANES>& x) {
    T* const to = reinterpret_cast<T*>(tile + lane_id() * (PITCH * 4)) + column;
#pragma unroll
    for (int i = 0; i < LANES; ++i) to[i * (32 * PITCH * 4 / int(sizeof(T)))] = convert<T>(x.x[i]);
  }
  template <class X>
  JM_DEVICE static void put(unsigned char* tile, int column, const X& x) {
    static_assert(LANES == 1, "");
    reinterpret_cast<T*>(tile + lane_id() * (PITCH * 4))[column] = convert<T>(x);
  }

  // The first `rows` of them to memory, by THREADS threads.
  template <int THREADS>
  JM_DEVICE static void copy(T* out, const unsigned char* tile, int rows) {
    const auto* const from = reinterpret_cast<const uint32_t*>(tile);
    auto* const to = reinterpret_cast<uint32_t*>(out);
    const int words = rows * WORDS;
#pragma unroll 4
    for (int i = thread_id(); i < words; i += THREADS) {
      const int row = static_cast<int>(static_cast<unsigned>(i) / WORDS);
      to[i] = from[(row % LANES * 32 + row / LANES) * PITCH + (i - row * WORDS)];
    }
  }
};

}  // namespace jaxmono
