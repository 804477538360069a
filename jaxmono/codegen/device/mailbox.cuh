// Sums that blocks leave for each other in global memory, each of which tells itself that it has come: a
// word that is not zero. Lamport's flag inside the datum, as in NCCL's LL protocol, without its second
// word. Nothing is released and nothing counted: what is sent is a store, what waits is a load behind it,
// where a counter takes a fence, an atomic, a look at it and then the load.
//
//   sender     mail(words, x)           x, but -0 for 0
//   receiver   collect(x, words, step)  waits until no word is 0; x; leaves 0 for the next time
//
// Words are zero at load (Mailbox) and after each use. Only one thread collects a word, once. Whoever sends
// it again does so in a later launch or behind a grid barrier, and so behind the receiver's zeros; what is
// never collected (rows outside) is just replaced. Sums of what was mailed begin with +0, so that shares
// of nothing but zeros make +0. As all waits only in a cooperative launch; a wait for tasks in front of
// one's own ends on any grid.
#pragma once
#include "jaxmono/kernel.cuh"
#include "jaxmono/sync.cuh"
#include "jaxmono/vec.cuh"

namespace jaxmono {

// Zero at load.
#ifdef JAXMONO_EMULATE
template <int N>
struct Mailbox : emulate::ModuleState {
  alignas(16) float words[N] = {};
  Mailbox() : ModuleState(words, sizeof words) {}
};
#else
template <int N>
struct Mailbox {
  alignas(16) float words[N];
};
#endif

// What one access moves of N neighbouring words. Words are whole, whatever becomes of their neighbours.
constexpr int letter_words(int n) { return n % 4 == 0 ? 4 : n % 2 == 0 ? 2 : 1; }
template <int N>
struct alignas(4 * letter_words(N)) Letter {
  static constexpr int WORDS = letter_words(N);
  uint32_t word[WORDS];
};

template <int VEC>
JM_DEVICE void mail(float* to, const float (&x)[VEC]) {
  using Part = Letter<VEC>;
#pragma unroll
  for (int i = 0; i < VEC; i += Part::WORDS) {
    Part out;
#pragma unroll
    for (int e = 0; e < Part::WORDS; ++e) {
      const uint32_t bits = bitcast<uint32_t>(x[i + e]);
      out.word[e] = bits == 0 ? 0x80000000u : bits;
    }
    st_relaxed_gpu(reinterpret_cast<Part*>(to + i), out);
  }
}

template <int VEC>
JM_DEVICE bool all_there(const float (&x)[VEC]) {
  bool there = true;
#pragma unroll
  for (int e = 0; e < VEC; ++e) there &= bitcast<uint32_t>(x[e]) != 0;
  return there;
}

// COUNT pieces of VEC neighbouring words, `step` words apart. All are asked for before the first is looked
// at; then those that are missing, with pauses: other blocks still stream weights through the same L2.
template <int COUNT, int VEC>
JM_DEVICE void collect(float (&x)[COUNT][VEC], float* from, int step) {
  using Part = Letter<VEC>;
  const auto part = [&](int c, int i) { return reinterpret_cast<Part*>(from + c * step + i); };
  const auto look = [&](int c) {
#pragma unroll
    for (int i = 0; i < VEC; i += Part::WORDS) {
      const Part p = ld_relaxed_gpu(part(c, i));
#pragma unroll
      for (int e = 0; e < Part::WORDS; ++e) x[c][i + e] = bitcast<float>(p.word[e]);
    }
  };
#pragma unroll
  for (int c = 0; c < COUNT; ++c) look(c);
  wait_together(
      [&] {
        bool there = true;
#pragma unroll
        for (int c = 0; c < COUNT; ++c)
          if (!all_there(x[c])) look(c);
#pragma unroll
        for (int c = 0; c < COUNT; ++c) there &= all_there(x[c]);
        return there;
      },
      "mail", 20);
#pragma unroll
  for (int c = 0; c < COUNT; ++c)
#pragma unroll
    for (int i = 0; i < VEC; i += Part::WORDS) st_relaxed_gpu(part(c, i), Part{});
}

// Adds COUNT mailed shares, in their order, to what `out` has.
template <int COUNT, int VEC>
JM_DEVICE void add_mailed(float (&out)[VEC], float* from, int step) {
  float x[COUNT][VEC];
  collect(x, from, step);
#pragma unroll
  for (int c = 0; c < COUNT; ++c)
#pragma unroll
    for (int e = 0; e < VEC; ++e) out[e] += x[c][e];
}

}  // namespace jaxmono
