// Cumulative ops along rows that lie in the threads of a block, one element behind the other.
//
//   thread      0          1          2                a row of ROW elements: of K = 1 fragment, several
//   x[0]     0 1 2 3    4 5 6 7    8 9 . .             rows a block, ROW / N threads each; of more, one
//   x[1]     ...                                       row a block, whose fragments follow each other
//
// A thread combines its own elements, a warp the threads' (Hillis and Steele 1986, by shuffles), and each
// warp those of the warps in front of it, from shared memory.
#pragma once
#include "jaxmono/vec.cuh"
#include "jaxmono/warp.cuh"

namespace jaxmono {

// All lanes of a vector, of a vector or of what they share.
template <class T, int N, class X>
JM_DEVICE void set_lanes(Vec<T, N>& to, const Vec<X, N>& x) {
#pragma unroll
  for (int i = 0; i < N; ++i) to.x[i] = static_cast<T>(x.x[i]);
}
template <class T, int N, class X>
JM_DEVICE void set_lanes(Vec<T, N>& to, const X& x) {
#pragma unroll
  for (int i = 0; i < N; ++i) to.x[i] = static_cast<T>(x);
}

// x[u] becomes f over the elements of its row up to each, itself among them; BACK: from the last one.
// Where K > 1, elements behind the row must change nothing. All THREADS of the block take part; smem: a T
// for each warp, two where K > 1, free behind the next barrier.
template <int ROW, int THREADS, bool BACK, class T, int N, int K, class F>
JM_DEVICE void prefix_rows(Vec<T, N> (&x)[K], F f, unsigned char* smem) {
  constexpr int WARPS = THREADS / 32, SHARE = K > 1 ? THREADS : ROW / N;  // threads of a row
  constexpr bool ALONE = SHARE <= 32 && 32 % SHARE == 0;                  // a row is one warp's
  auto* part = reinterpret_cast<T*>(smem);
  const int place = K > 1 ? thread_id() : thread_id() % SHARE;
  const int behind = BACK ? SHARE - 1 - place : place;  // threads of the row that come before
  const int reach = min(behind, BACK ? 31 - lane_id() : lane_id());
  // The row's first warp in this order; rows that are not there may begin behind the last one.
  const int first = BACK ? min((thread_id() + behind) / 32, WARPS - 1) : (thread_id() - behind) / 32;
  T carried = T();
  if constexpr (!ALONE) syncthreads();
#pragma unroll
  for (int step = 0; step < K; ++step) {
    Vec<T, N>& v = x[BACK ? K - 1 - step : step];
#pragma unroll
    for (int i = 1; i < N; ++i) {
      const int to = BACK ? N - 1 - i : i, from = BACK ? to + 1 : to - 1;
      v.x[to] = f(v.x[from], v.x[to]);
    }
    T sum = v.x[BACK ? 0 : N - 1];
#pragma unroll
    for (int d = 1; d < 32; d *= 2) {
      const T before = shfl_idx(sum, (BACK ? lane_id() + d : lane_id() - d) & 31);
      if (d <= reach) sum = f(before, sum);
    }
    const T neighbour = shfl_idx(sum, (BACK ? lane_id() + 1 : lane_id() - 1) & 31);
    bool some = reach > 0;
    T front = neighbour;
    if constexpr (!ALONE) {
      T* own = part + (step & 1) * WARPS;
      if (lane_id() == (BACK ? 0 : 31)) own[warp_id()] = sum;
      syncthreads();
      T sums = T();
      bool any = false;
#pragma unroll
      for (int i = 0; i < WARPS; ++i) {
        const int w = BACK ? WARPS - 1 - i : i;
        if (BACK ? w <= first && w > warp_id() : w >= first && w < warp_id()) {
          sums = any ? f(sums, own[w]) : own[w];
          any = true;
        }
      }
      if (any) front = some ? f(sums, neighbour) : sums;
      some = some || any;
      if (K > 1 && step > 0) {
        front = some ? f(carried, front) : carried;
        some = true;
      }
      if (K > 1 && step + 1 < K) {
        T whole = own[BACK ? WARPS - 1 : 0];
#pragma unroll
        for (int i = 1; i < WARPS; ++i) whole = f(whole, own[BACK ? WARPS - 1 - i : i]);
        carried = step > 0 ? f(carried, whole) : whole;
      }
    }
    if (some) {
#pragma unroll
      for (int i = 0; i < N; ++i) v.x[i] = f(front, v.x[i]);
    }
  }
}

}  // namespace jaxmono
