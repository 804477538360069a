// Reductions of a tile's elements while its epilogue has them in registers. R: a reducer (reduce.cuh).
//
// A warp goes through 16 rows of the tile, PER_ROW threads with LANES neighbouring columns each to a row
// and 32 / PER_ROW rows at a time, from the first one on. All its lanes take part in every call.
#pragma once
#include "jaxmono/deal.cuh"
#include "jaxmono/platform.cuh"
#include "jaxmono/reduce.cuh"
#include "jaxmono/warp.cuh"

namespace jaxmono {

// FULL: all states hold an element, which the compiler then need not ask of those of other lanes.
template <class R, bool FULL>
struct Combine {
  using State = typename R::State;
  JM_DEVICE State operator()(const State& a, const State& b) const {
    if constexpr (FULL) return R::combine(R::full(a), R::full(b));
    else return R::combine(a, b);
  }
};

// Over the 16 rows.
//
//   lane 8 r + p:  columns 8 p .. 8 p + 7 of rows r, r + 4, r + 8, r + 12     (PER_ROW 8, LANES 8)
//   afterwards     columns 8 p + 2 r, + 1 of all
//
// ALONG: combines what a thread has of a row with what it has of a later one.
template <class R, int PER_ROW, int LANES, class ALONG>
struct ReduceRows {
  using State = typename R::State;
  static constexpr int ROWS = 16, AT_ONCE = WARP / PER_ROW;
  static_assert(WARP % PER_ROW == 0 && ROWS % AT_ONCE == 0, "");
  // {}: of what nobody has set ptxas thinks that it comes from the beginning of the kernel, and keeps
  // registers for it in everything before (six products of wav2vec2's training step: 24 of 208).
  State acc[LANES]{};

  // Takes row r's elements x. True with the last of 16 rows: acc[0] and on are then those of the
  // columns from the thread's own `first()`th on, of LANES / AT_ONCE or of one.
  template <class... X>
  JM_DEVICE bool take(int r, const X&... x) {
    const int turn = r % ROWS / AT_ONCE;
#pragma unroll
    for (int i = 0; i < LANES; ++i) {
      const State s = R::of(at(x, i)...);
      acc[i] = turn == 0 ? s : Combine<ALONG, true>()(acc[i], s);
    }
    return done(turn, Combine<R, true>());
  }

  // The same of a row that may not be `there`.
  template <class... X>
  JM_DEVICE bool take_some(int r, bool there, const X&... x) {
    const int turn = r % ROWS / AT_ONCE;
#pragma unroll
    for (int i = 0; i < LANES; ++i) {
      if (turn == 0) acc[i] = R::identity();
      if (there) acc[i] = ALONG::combine(acc[i], R::of(at(x, i)...));
    }
    return done(turn, Combine<R, false>());
  }

  JM_DEVICE static int first() { return lane_id() / PER_ROW * LANES / AT_ONCE; }

 private:
  template <class F>
  JM_DEVICE bool done(int turn, const F& f) {
    if (turn != ROWS / AT_ONCE - 1) return false;
    deal<LANES, PER_ROW>(acc, f);
    return true;
  }
};

// Over groups of COLUMNS neighbouring columns.
template <class R, int COLUMNS, int LANES>
struct ReduceColumns {
  using State = typename R::State;
  State acc[1];

  // Takes the elements x of a row from column c on. acc[0] is then the group's, which its first lane stores.
  template <class... X>
  JM_DEVICE bool take(int c, const X&... x) {
    State s[LANES];
#pragma unroll
    for (int i = 0; i < LANES; ++i) s[i] = R::of(at(x, i)...);
    return done(c, s, Combine<R, true>());
  }

  // The same of columns that may not be `there`.
  template <class... X>
  JM_DEVICE bool take_some(int c, bool there, const X&... x) {
    State s[LANES];
#pragma unroll
    for (int i = 0; i < LANES; ++i) s[i] = there ? R::of(at(x, i)...) : R::identity();
    return done(c, s, Combine<R, false>());
  }

 private:
  template <class F>
  JM_DEVICE bool done(int c, State (&s)[LANES], const F& f) {
#pragma unroll
    for (int d = 1; d < LANES; d *= 2)
#pragma unroll
      for (int i = 0; i + d < LANES; i += 2 * d) s[i] = f(s[i], s[i + d]);
    acc[0] = warp_reduce<COLUMNS / LANES, !R::COMMUTES>(s[0], f);
    return c % COLUMNS == 0;
  }
};

}  // namespace jaxmono
