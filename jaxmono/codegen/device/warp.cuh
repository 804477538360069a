// Exchange between the threads of a warp and of a block. All lanes of a warp take part.
//
//   syncthreads()                       all compute threads: those of the block or, in a source that
//                                       defines JM_TEAM, its first JM_TEAM threads and no others
//   sync_all_threads()                  all threads of the block, whatever JM_TEAM is
//   syncwarp(), named_barrier(id, threads)   id 2 .. 15; 1 is the team's
//   int team_threads()                  how many threads syncthreads() is for
//   T shfl_xor<T>(T x, int mask), T shfl_idx<T>(T x, int lane)         any T of whole bytes
//   void quad_transpose<T>(T (&x)[4])    x[i] of lane t of a quad becomes x[t] of its lane i
//   bool warp_any(bool), bool warp_all(bool), uint32_t warp_ballot(bool)
//   uint32_t active_lanes(), bool warp_all(bool, uint32_t lanes)   of a warp that may be divided; not in
//                                         the emulator
//   int uniform(int x)                  lane 0's x; the compiler then knows that all lanes have the same
//   T warp_reduce<WIDTH = 32, ORDERED = true>(T x, F f)   f over each WIDTH neighbouring lanes, in
//                                         lane order unless f commutes; the result in all of them,
//                                         the same bits
//   T block_reduce(T x, F f, void* smem)  f over the block, in thread order, result in all threads;
//                                         smem: sizeof(T) per warp, free again on return
#pragma once
#include "jaxmono/platform.cuh"
#include "jaxmono/types.cuh"

namespace jaxmono {

#ifdef JM_TEAM
static_assert(JM_TEAM % WARP == 0, "JM_TEAM is a number of whole warps");
JM_DEVICE int team_threads() { return JM_TEAM; }
#else
JM_DEVICE int team_threads() { return num_threads(); }
#endif

}  // namespace jaxmono

#ifdef JAXMONO_EMULATE
#include "emulate/warp.h"
#else

namespace jaxmono {

#ifdef JM_TEAM
JM_DEVICE void syncthreads() { asm volatile("bar.sync 1, %0;" ::"n"(JM_TEAM) : "memory"); }
#else
JM_DEVICE void syncthreads() { __syncthreads(); }
#endif
JM_DEVICE void sync_all_threads() { __syncthreads(); }
JM_DEVICE void syncwarp() { __syncwarp(); }
JM_DEVICE void named_barrier(int id, int threads) {
  asm volatile("bar.sync %0, %1;" ::"r"(id), "r"(threads) : "memory");
}

constexpr uint32_t ALL_LANES = 0xffffffffu;

// T as 32-bit words, the last one padded.
template <class T>
struct Words {
  static constexpr int N = (sizeof(T) + 3) / 4;
  uint32_t w[N];
  JM_DEVICE explicit Words(const T& x) {
    w[N - 1] = 0;
    memcpy(w, &x, sizeof(T));
  }
  JM_DEVICE T value() const {
    T x;
    memcpy(&x, w, sizeof(T));
    return x;
  }
};

template <class T>
JM_DEVICE T shfl_xor(T x, int mask) {
  Words<T> words(x);
#pragma unroll
  for (int i = 0; i < Words<T>::N; ++i) words.w[i] = __shfl_xor_sync(ALL_LANES, words.w[i], mask);
  return words.value();
}

template <class T>
JM_DEVICE T shfl_idx(T x, int lane) {
  Words<T> words(x);
#pragma unroll
  for (int i = 0; i < Words<T>::N; ++i) words.w[i] = __shfl_sync(ALL_LANES, words.w[i], lane);
  return words.value();
}

JM_DEVICE bool warp_any(bool x) { return __any_sync(ALL_LANES, x); }
JM_DEVICE bool warp_all(bool x, uint32_t lanes = ALL_LANES) { return __all_sync(lanes, x); }
// Those that run this at once: which of a divided warp's do is up to the hardware.
JM_DEVICE uint32_t active_lanes() { return __activemask(); }
JM_DEVICE uint32_t warp_ballot(bool x) { return __ballot_sync(ALL_LANES, x); }

template <int WIDTH = 32, bool ORDERED = true, class T, class F>
JM_DEVICE T warp_reduce(T x, const F& f) {
  // Ordered by lane, so that all lanes agree even where f does not commute: two selects a word.
#pragma unroll
  for (int offset = 1; offset < WIDTH; offset *= 2) {
    const T other = shfl_xor(x, offset);
    x = ORDERED && (lane_id() & offset) ? f(other, x) : f(x, other);
  }
  return x;
}

}  // namespace jaxmono

#endif

namespace jaxmono {

JM_DEVICE int uniform(int x) { return shfl_idx(x, 0); }

template <class T>
JM_DEVICE void quad_transpose(T (&x)[4]) {
  struct Pair {
    T x[2];
  };
  const bool odd = lane_id() % 2 != 0, high = lane_id() / 2 % 2 != 0;
  // Within lanes 0, 1 and 2, 3; then between these.
  const Pair next = shfl_xor(Pair{{odd ? x[0] : x[1], odd ? x[2] : x[3]}}, 1);
  const Pair first{{odd ? next.x[0] : x[0], odd ? x[1] : next.x[0]}};
  const Pair second{{odd ? next.x[1] : x[2], odd ? x[3] : next.x[1]}};
  const Pair other = shfl_xor(high ? first : second, 2);
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    x[i] = high ? other.x[i] : first.x[i];
    x[2 + i] = high ? second.x[i] : other.x[i];
  }
}

template <class T, class F>
JM_DEVICE T block_reduce(T x, const F& f, void* smem) {
  T* slots = static_cast<T*>(smem);
  x = warp_reduce(x, f);
  if (lane_id() == 0) slots[warp_id()] = x;
  syncthreads();
  T out = slots[0];
  for (int w = 1; w < team_threads() / WARP; ++w) out = f(out, slots[w]);
  syncthreads();
  return out;
}

}  // namespace jaxmono
