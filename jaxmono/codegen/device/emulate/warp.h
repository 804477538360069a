// The functions of warp.cuh on the host.
#pragma once
#include "emulate/emulate.h"

namespace jaxmono {

inline void sync_all_threads() { emulate::barrier(0, emulate::self().threads, "sync_all_threads"); }
#ifdef JM_TEAM
inline void syncthreads() {
  if (emulate::self().thread_id >= JM_TEAM)
    emulate::fail("syncthreads in thread %d of block %d: it is for the first %d threads (JM_TEAM)",
                  emulate::self().thread_id, emulate::self().block_id, JM_TEAM);
  emulate::barrier(1, JM_TEAM, "syncthreads");
}
inline void named_barrier(int id, int threads) {
  if (id == 1) emulate::fail("named_barrier 1 is that of syncthreads; ids are 2..15");
  emulate::barrier(id, threads, "named_barrier");
  emulate::self().copies->unfenced = true;
}
#else
inline void syncthreads() { emulate::barrier(0, emulate::self().threads, "syncthreads"); }
inline void named_barrier(int id, int threads) {
  emulate::barrier(id, threads, "named_barrier");
  emulate::self().copies->unfenced = true;
}
#endif
inline void syncwarp() {
  emulate::collective(nullptr, [](void* const*) {}, "syncwarp");
}

namespace emulate {

template <class T>
struct Shuffle {
  T value, result;
  int source;
};

template <class T>
void shuffle(void* const* args) {
  for (int l = 0; l < 32; ++l) {
    auto* mine = static_cast<Shuffle<T>*>(args[l]);
    mine->result = static_cast<const Shuffle<T>*>(args[mine->source])->value;
  }
}

template <class T, class F>
struct Reduction {
  T value;
  const F* f;
};

template <int WIDTH, class T, class F>
void reduce(void* const* args) {
  for (int base = 0; base < 32; base += WIDTH) {
    T v[WIDTH];
    for (int l = 0; l < WIDTH; ++l)
      v[l] = static_cast<const Reduction<T, F>*>(args[base + l])->value;
    const F& f = *static_cast<const Reduction<T, F>*>(args[base])->f;
    // The tree of the butterfly on the GPU, whose lanes all see the same operands.
    for (int offset = 1; offset < WIDTH; offset *= 2)
      for (int l = 0; l < WIDTH; l += 2 * offset) v[l] = f(v[l], v[l + offset]);
    for (int l = 0; l < WIDTH; ++l) static_cast<Reduction<T, F>*>(args[base + l])->value = v[0];
  }
}

inline void ballot(void* const* args) {
  uint32_t bits = 0;
  for (int l = 0; l < 32; ++l) bits |= (*static_cast<uint32_t*>(args[l]) & 1) << l;
  for (int l = 0; l < 32; ++l) *static_cast<uint32_t*>(args[l]) = bits;
}

}  // namespace emulate

template <class T>
inline T shfl_idx(T x, int lane) {
  emulate::Shuffle<T> arg = {x, x, lane & 31};
  emulate::collective(&arg, emulate::shuffle<T>, "shfl");
  return arg.result;
}
template <class T>
inline T shfl_xor(T x, int mask) {
  return shfl_idx(x, emulate::self().lane_id ^ mask);
}

template <int WIDTH = 32, bool ORDERED = true, class T, class F>
inline T warp_reduce(T x, const F& f) {
  emulate::Reduction<T, F> arg = {x, &f};
  emulate::collective(&arg, emulate::reduce<WIDTH, T, F>, "warp_reduce");
  return arg.value;
}

inline uint32_t warp_ballot(bool x) {
  uint32_t word = x;
  emulate::collective(&word, emulate::ballot, "warp_ballot");
  return word;
}
inline bool warp_any(bool x) { return warp_ballot(x) != 0; }
inline bool warp_all(bool x) { return warp_ballot(x) == 0xffffffffu; }

}  // namespace jaxmono
