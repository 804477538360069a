// Reductions with any reducer: the threads that share a row combine their partial states.
//
// A reducer R is generated (reducers.py). It has
//   struct State;                      one accumulator, trivially copyable
//   static State identity();           combine(identity(), s) is s
//   static State of(elements...);      the state of one element
//   static State full(State);          a state that is known to hold an element
//   static State combine(a, b);
//   static State next(a, b);           of a search whose places count up: combine(a, b), where those of a lie
//                                      in front of those of b, or a holds nothing and the search begins with
//                                      the value behind all others, at place 0 (of such b next(a, b) keeps a)
//   static constexpr bool COMMUTES;    combine(a, b) and combine(b, a) are the same bits (NaN aside)
// States are combined in a fixed order, and every thread of the team gets the same bits.
#pragma once
#include "jaxmono/platform.cuh"
#include "jaxmono/vec.cuh"
#include "jaxmono/warp.cuh"

namespace jaxmono {

// The search R over what lies in order.
template <class R>
struct InOrder : R {
  using State = typename R::State;
  JM_DEVICE static State combine(const State& l, const State& r) { return R::next(l, r); }
};

template <class R, int N>
JM_DEVICE void reset(typename R::State (&acc)[N]) {
#pragma unroll
  for (int i = 0; i < N; ++i) acc[i] = R::identity();
}

// acc[i] takes lane i of the elements. N independent chains: no lane waits for another one.
template <class R, int N, class... X>
JM_DEVICE void accumulate(typename R::State (&acc)[N], const X&... x) {
#pragma unroll
  for (int i = 0; i < N; ++i) acc[i] = R::combine(acc[i], R::of(at(x, i)...));
}

// The N accumulators of one thread as one, as a tree.
template <class R, int N>
JM_DEVICE typename R::State fold(const typename R::State (&acc)[N]) {
  typename R::State s[N];
#pragma unroll
  for (int i = 0; i < N; ++i) s[i] = acc[i];
#pragma unroll
  for (int d = 1; d < N; d *= 2)
#pragma unroll
    for (int i = 0; i + d < N; i += 2 * d) s[i] = R::combine(s[i], s[i + d]);
  return s[0];
}

// Two reducers as one: the partial states of both travel together.
template <class A, class B>
struct Both {
  static constexpr bool COMMUTES = A::COMMUTES && B::COMMUTES;
  struct State {
    typename A::State a;
    typename B::State b;
  };
  JM_DEVICE static State combine(const State& l, const State& r) {
    return State{A::combine(l.a, r.a), B::combine(l.b, r.b)};
  }
};

// Groups of G neighbouring lanes of a warp. All lanes of the warp take part.
template <class R, int G>
JM_DEVICE typename R::State combine_warp(typename R::State s) {
  using S = typename R::State;
  return warp_reduce<G, !R::COMMUTES>(s, [](const S& a, const S& b) { return R::combine(a, b); });
}

// THREADS neighbouring threads of the block, all of which take part. smem: one State per warp. idle: a
// barrier lies behind whoever read it last.
template <class R, int THREADS>
JM_DEVICE typename R::State combine_block(typename R::State s, unsigned char* smem, bool idle = false) {
  constexpr int WARPS = THREADS / 32;
  auto* part = reinterpret_cast<typename R::State*>(smem);
  s = combine_warp<R, 32>(s);
  if (!idle) syncthreads();
  if (lane_id() == 0) part[warp_id()] = s;
  syncthreads();
  part += warp_id() / WARPS * WARPS;
  typename R::State all[WARPS];
#pragma unroll
  for (int w = 0; w < WARPS; ++w) all[w] = part[w];
  return fold<R>(all);
}

// Every lane has N rows of its own; the WARPS warps of the block have slices of the columns.
// smem: WARPS * N * 32 States.
template <class R, int WARPS, int N>
JM_DEVICE void combine_slice(typename R::State (&acc)[N], unsigned char* smem) {
  auto* part = reinterpret_cast<typename R::State*>(smem);
  syncthreads();
#pragma unroll
  for (int i = 0; i < N; ++i) part[(warp_id() * N + i) * 32 + lane_id()] = acc[i];
  syncthreads();
#pragma unroll
  for (int i = 0; i < N; ++i) {
    acc[i] = part[i * 32 + lane_id()];
#pragma unroll
    for (int w = 1; w < WARPS; ++w)
      acc[i] = R::combine(acc[i], part[(w * N + i) * 32 + lane_id()]);
  }
}

}  // namespace jaxmono
