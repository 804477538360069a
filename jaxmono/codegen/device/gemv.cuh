// A few rows (M <= 16) times weights that are read once. Bound by the weights' bytes, so all that
// counts is that requests never stop.
//
//   weights --cp.async--> ring of SLOTS x U pieces of 16 bytes, each thread's own --> products
//   registers --shuffles, shared memory--> sums [PARTS][M][BN] --> epilogue (generated code)
//
// A thread multiplies just what it has requested itself, so the stream needs no barrier: no warp
// waits for another one, and the first SLOTS steps can be requested before a grid barrier behind
// which x is written. A task is one tile of BN columns with a share of k: one task a block.
//
//   weights [k][n]   a row of the tile is BN / E pieces; the threads share rows and pieces, a thread
//                    keeps the sums of one piece's columns over its rows
//   weights [n][k]   a warp reads 512 bytes of each of U rows, its lanes share the sum of a row; WK
//                    warps share rows, the others have rows of their own
//
// Multiply-adds take about 8 M + 30 instructions for a piece of every lane, of which an SM has time for
// 112 at full bandwidth. Where that is too many (MMA; 16-bit types), the tensor cores multiply the
// same private pieces (gemv_mma.cuh).
//
// Weights may be stored as bytes (W), which threads convert between the ring and the products (bytes.cuh).
// A piece has 16 elements, and takes 66 instructions with one row: 36 of int8 (28 of 8-bit floats) to f32, 16
// multiply-adds, the rest as ever. Of integers of 4 bits (four_bits.cuh) it has 32, and takes 72 to f32. Or as
// f32, which are rounded to T: of a piece of 4 two instructions do that, and four make f32 of them again.
//
// Weights of few bits may have a scale for each group of k (fusion/scaled_weights.py): in multiply-adds the sums
// of a group are scaled, in fragments mostly the weights, rounded as T.
#pragma once
#include "jaxmono/gemv_fma.cuh"
#include "jaxmono/gemv_mma.cuh"
#include "jaxmono/opaque.cuh"
#include "jaxmono/tile.cuh"
#include "jaxmono/vec.cuh"
#include "jaxmono/warp.cuh"

namespace jaxmono {

// T: bf16, f16 or float. K, N: of the whole operand; KS: elements of k of a task (the last one of a
// tile may have fewer, or none at all if EMPTY). Loads at k = K or n = N are outside: the loader writes
// zeros. W: what weights are stored as, T, a type of bytes, FourBits, or float. PER_SCALE: elements of k that
// share a scale, an S; 0: there are none.
template <class T, int M, int N, int K, int BN_, int KS, int SLOTS, int U, int WK, int THREADS_,
          bool K_MAJOR, bool MMA = false, bool EMPTY = false, class W = T, int PER_SCALE = 0, class S = float>
struct Gemv {
  static constexpr int BM = M, BN = BN_, SHARE = KS, THREADS = THREADS_, WARPS = THREADS / 32;
  static constexpr bool FOURS = is_four_bits<W>, BYTES = FOURS || sizeof(W) == 1;
  static constexpr bool ROUNDS = !BYTES && sizeof(W) > sizeof(T);
  static constexpr int E = FOURS ? 32 : 16 / sizeof(W), EX = 16 / sizeof(T);  // elements of a piece; of one of x

  // [k][n]: C pieces a row of the tile. Where they pack well, a warp has whole rows, whose sums meet
  // in shuffles; otherwise they are dealt to the block's threads.
  static constexpr int C = K_MAJOR ? 1 : BN / E;
  static constexpr int LANE_ROWS = C <= 32 ? 32 / C : 0;
  static constexpr bool PACKED = LANE_ROWS * C >= 28 && !MMA;
  static constexpr int WC = MMA && !K_MAJOR ? BN / (8 * E) : 1;  // warps side by side, of 8 pieces each
  static constexpr int ROWS = MMA ? WARPS / WC * 4 : PACKED ? WARPS * LANE_ROWS : THREADS / C;
  static_assert(K_MAJOR || (BN % E == 0 && C <= THREADS), "a row is a whole number of pieces");
  static_assert(!MMA || (sizeof(T) == 2 && U == 4), "fragments of 16-bit elements");
  static_assert(!MMA || K_MAJOR || (BN % (8 * E) == 0 && WARPS % WC == 0), "warps have 8 pieces");

  // [n][k]: rows of all warps in one step.
  static constexpr int WN = WARPS / WK, GROUP = WN * (MMA ? 16 : U);
  static_assert(!K_MAJOR || WN * WK == WARPS, "warps share rows or have their own");
  static_assert(MMA || !K_MAJOR || M * U <= 32, "sums of a warp are dealt to its lanes");

  // Elements of k in one step.
  static constexpr int SPAN = K_MAJOR ? WK * (MMA ? 8 : 32) * E : ROWS * U;
  static constexpr int SPANS = (KS + SPAN - 1) / SPAN;
  static constexpr int GROUPS = K_MAJOR ? (BN + GROUP - 1) / GROUP : 1;
  static constexpr int STEPS = GROUPS * SPANS;
  static constexpr bool K_TAIL = SPANS * SPAN != KS || K % KS != 0 || EMPTY;
  static constexpr bool N_TAIL = K_MAJOR && GROUPS * GROUP != BN;
  static constexpr int PARTS = K_MAJOR ? WK : MMA ? WARPS / WC : PACKED ? WARPS : ROWS;

  // Scales of a task, as they lie in memory: of [n][k] a row's lie beside each other, and 4 words further in the
  // banks than those of the row before, for the 4 groups that 8 rows of a fragment read; of [k][n] the first 4 of
  // all pieces' columns, then the next 4...
  static constexpr bool SCALED = PER_SCALE > 0;
  // Whether sums are scaled, and not weights.
  static constexpr bool SCALES_SUMS =
      SCALED && (!MMA || (FOURS && K_MAJOR && PER_SCALE % 128 == 0 && (KS % 128 == 0 || KS >= K)));
  static constexpr int PER = SCALED ? PER_SCALE : 1;
  static constexpr int GROUPS_OF_K = SCALED ? (KS + PER - 1) / PER + (KS % PER != 0) : 0;
  static constexpr int SCALE_PITCH =
      K_MAJOR ? ((GROUPS_OF_K * int(sizeof(S)) + 127) / 128 * 128 + 16) / int(sizeof(S)) : BN;
  static constexpr int SCALE_BYTES =
      SCALED ? ((K_MAJOR ? BN : GROUPS_OF_K) * SCALE_PITCH * int(sizeof(S)) + 127) / 128 * 128 : 0;

  // Layout: scratch | x [M][PITCH] | scales | ring and sums. The sums of [k][n] replace the ring at the end;
  // those of [n][k] are finished while the ring is in use.
  static constexpr int SCRATCH = 1024;
  // Rows of x: with MMA the lanes of a warp read 8 of them at once, which must lie in other banks.
  // A lane reads 16 bytes, 8 for [k][n], and 32, 16 at a time, beside bytes for [n][k]; 8 beside f32 there.
  static constexpr int PITCH = MMA ? (SPANS * SPAN + 63) / 64 * 64 + (!K_MAJOR ? 16 : FOURS ? 32 : BYTES ? 8 : 32)
                                   : (SPANS * SPAN + 7) / 8 * 8;
  static constexpr int X_BYTES = (M * PITCH * int(sizeof(T)) + 127) / 128 * 128 + SCALE_BYTES;
  static constexpr int SUM_BYTES = (PARTS * M * BN * 4 + 127) / 128 * 128;
  static constexpr int RING_BYTES = SLOTS * U * THREADS * 16;
  static constexpr int SHARED_BYTES =
      SCRATCH + X_BYTES +
      (K_MAJOR ? SUM_BYTES + RING_BYTES : RING_BYTES > SUM_BYTES ? RING_BYTES : SUM_BYTES);

  // Likewise, a lane's piece of bytes takes TURNS pieces of x, neighbours in k: eight lanes at a time read
  // the same number of them, which must lie in other banks.
  static constexpr int TURNS = K_MAJOR && !MMA && E > EX ? E / EX : 1;
  // Beside 4 bits on the tensor cores a lane takes four pieces of x; those of its neighbours lie beside each of
  // them, so that what four lanes read at a time is 64 bytes.
  static constexpr bool DEALT = FOURS && MMA && K_MAJOR;
  JM_DEVICE static T* x(unsigned char* smem, int m, int k) {
    if constexpr (DEALT) k = (k & ~127) | (k >> 5 & 3) << 3 | (k >> 3 & 3) << 5 | (k & 7);
    if constexpr (TURNS > 1) k ^= static_cast<int>(static_cast<uint32_t>(k) / (8 * EX) % TURNS * EX);
    return reinterpret_cast<T*>(smem + SCRATCH) + m * PITCH + k;
  }
  // Piece p of all rows.
  JM_DEVICE static Piece<T>* x_piece(unsigned char* smem, int p) {
    if constexpr (DEALT) {
      return reinterpret_cast<Piece<T>*>(padded_x(smem, p / (PITCH / EX), p % (PITCH / EX) * EX));
    } else if constexpr (TURNS > 1) {
      return reinterpret_cast<Piece<T>*>(x(smem, p / (PITCH / EX), p % (PITCH / EX) * EX));
    } else {
      return reinterpret_cast<Piece<T>*>(x(smem, 0, 0)) + p;
    }
  }
  // Where k may be one of those behind a row that nobody reads.
  JM_DEVICE static T* padded_x(unsigned char* smem, int m, int k) {
    return DEALT && k >= SPANS * SPAN ? x(smem, m, 0) + k : x(smem, m, k);
  }
  // Puts neighbours, at most a piece of them, where products read them.
  template <int COUNT, class X>
  JM_DEVICE static void put_x(unsigned char* smem, int m, int k, const X& values) {
    if constexpr (DEALT) {
#pragma unroll
      for (int i = 0; i < COUNT; ++i) {
        const int e = (k + i) & 7;
        store<T>(padded_x(smem, m, (k + i) & ~7) + (e < 4 ? 2 * e : 2 * e - 7), at(values, i));
      }
    } else {
      store<T, COUNT>(x(smem, m, k), values);
    }
  }
  JM_DEVICE static S* scales(unsigned char* smem) {
    return reinterpret_cast<S*>(smem + SCRATCH + X_BYTES - SCALE_BYTES);
  }
  // Where the scale of column n of the tile and the group of element k is; k, as of Step, from the task's first
  // group on.
  JM_DEVICE static int scale_at(int n, int k) {
    const int group = static_cast<int>(static_cast<uint32_t>(k) / PER);
    return K_MAJOR ? n * SCALE_PITCH + group : group * SCALE_PITCH + n % E / 4 * (BN / E * 4) + n / E * 4 + n % 4;
  }
  // The same of a thread's own column, and element of a piece, which begins at k; first: of k, in its group. Past
  // a task's last ones nothing is multiplied: any scale will do.
  JM_DEVICE static int own_scale_at(int n, int k, int first) {
    return scale_at(!N_TAIL || n < BN ? n : 0, !K_TAIL || k < SHARE ? first + k : 0);
  }
  // Requests the scales, in front of the first weights and with these. WIDTH: bytes that lie beside each other,
  // aligned, at most 4 columns of [k][n]. address(n, k), of the whole operand: where the scale is.
  template <int WIDTH, class Of>
  JM_DEVICE static void request_scales(unsigned char* smem, int n0, int k0, const Of& address) {
    static_assert(WIDTH == 16 || WIDTH == 8 || WIDTH == 4 || WIDTH == int(sizeof(S)), "a copy, or one of them");
    constexpr int STEP = WIDTH / int(sizeof(S)), ALONG = (K_MAJOR ? GROUPS_OF_K : BN) / STEP;
    const int first = k0 / PER * PER;
#pragma unroll 1
    for (int i = thread_id(); i < ALONG * (K_MAJOR ? BN : GROUPS_OF_K); i += THREADS) {
      const int line = i / ALONG, along = i % ALONG * STEP;
      const int n = K_MAJOR ? line : along, k = (K_MAJOR ? along : line) * PER;
      const bool there = n0 + n < N && first + k < K;
      S* const to = scales(smem) + scale_at(n, k);
      const S* const from = address(there ? n0 + n : 0, there ? first + k : 0);
      if constexpr (WIDTH == 16) cp_async_stream_16(to, from, there);
      else if constexpr (WIDTH == 8) cp_async_stream_8(to, from, there);
      else if constexpr (WIDTH == 4) cp_async_stream_4(to, from, there);
      else *to = there ? *from : S{};
    }
  }
  // A piece of x as the products take it.
  JM_DEVICE static Piece<T> in_order(const Piece<T>& x) {
    if constexpr (DEALT) return in_order_of_fours(x);
    else return x;
  }
  JM_DEVICE static float* sums(unsigned char* smem) {
    return reinterpret_cast<float*>(smem + SCRATCH + X_BYTES);
  }
  // Piece u of a slot, of this thread. Neighbouring threads' pieces are neighbours: no bank is asked
  // twice.
  JM_DEVICE static unsigned char* piece(unsigned char* smem, int slot, int u) {
    return smem + SCRATCH + X_BYTES + (K_MAJOR ? SUM_BYTES : 0) +
           ((slot * U + u) * THREADS + thread_id()) * 16;
  }

  // Where a step is in the task: its first element of k and, for [n][k], its first row.
  struct Step {
    int k = 0, n = 0;
    JM_DEVICE void next() {
      k += SPAN;
      if (K_MAJOR && k == SPANS * SPAN) {
        k = 0;
        n += GROUP;
      }
    }
  };

  // This thread's first row (of k for [k][n], of n for [n][k]) in a step, and its element of the
  // other index. Piece u is at row_step(u), col_step(u) from there.
  JM_DEVICE static constexpr int row_step(int u) { return MMA && K_MAJOR ? u % 2 * 8 : u; }
  JM_DEVICE static constexpr int col_step(int u) { return MMA && K_MAJOR ? u / 2 * (4 * E) : 0; }
  JM_DEVICE static int own_row() {
    if constexpr (MMA && K_MAJOR) return warp_id() % WN * 16 + lane_id() / 4;
    else if constexpr (MMA) return (warp_id() / WC * 4 + lane_id() % 4) * U;
    else if constexpr (K_MAJOR) return warp_id() % WN * U;
    else return (PACKED ? warp_id() * LANE_ROWS + lane_id() / C : thread_id() / C) * U;
  }
  JM_DEVICE static int own_col() {
    if constexpr (MMA && K_MAJOR) return warp_id() / WN * (8 * E) + lane_id() % 4 * E;
    else if constexpr (MMA) return warp_id() % WC * (8 * E) + lane_id() / 4 * E;
    else if constexpr (K_MAJOR) return (warp_id() / WN * 32 + lane_id()) * E;
    else return (PACKED ? lane_id() % C : thread_id() % C) * E;
  }
  JM_DEVICE static bool active() {
    if constexpr (K_MAJOR || MMA) return true;
    else if constexpr (PACKED) return LANE_ROWS * C == 32 || lane_id() < LANE_ROWS * C;
    else return ROWS * C == THREADS || thread_id() < ROWS * C;
  }

  // ---- requests ------------------------------------------------------------------------------

  // load(to, row, col) copies one piece; n0, k0: of the task; ks: its elements of k.
  template <class Load>
  JM_DEVICE static void fetch(unsigned char* smem, int slot, const Step& at, int n0, int k0, int ks,
                              const Load& load) {
    if (!active()) return;
#pragma unroll
    for (int u = 0; u < U; ++u) {
      if constexpr (K_MAJOR) {
        const int n = at.n + own_row() + row_step(u), k = at.k + own_col() + col_step(u);
        load(static_cast<void*>(piece(smem, slot, u)), !N_TAIL || n < BN ? n0 + n : N,
             !K_TAIL || k < ks ? k0 + k : K);
      } else {
        const int k = at.k + own_row() + u;
        load(static_cast<void*>(piece(smem, slot, u)), !K_TAIL || k < ks ? k0 + k : K,
             n0 + own_col());
      }
    }
  }

  // Requests the first SLOTS steps, a cp.async group each.
  template <class Load>
  JM_DEVICE static void prologue(unsigned char* smem, int n0, int k0, int ks, const Load& load) {
    Step at;
#pragma unroll 1
    for (int s = 0; s < SLOTS; ++s) {
      if (s < STEPS) fetch(smem, s, at, n0, k0, ks, load);
      cp_async_commit();
      at.next();
    }
  }

  // Requests a task whose ring holds all of it; groups are the caller's.
  template <class Load>
  JM_DEVICE static void request(unsigned char* smem, int n0, int k0, int ks, const Load& load) {
    static_assert(STEPS <= SLOTS, "all steps");
    Step at;
#pragma unroll 1
    for (int s = 0; s < STEPS; ++s) {
      fetch(smem, s, at, n0, k0, ks, load);
      at.next();
    }
  }

  // Fills x from piece(m, k), where k is one of the whole operand; zeros behind the task's share. What
  // the registers hold is requested before `between` runs, which requests weights: x would have to
  // queue behind them. So no branch may need the value before.
  template <class X, class Between>
  JM_DEVICE static void stage_x(unsigned char* smem, int k0, int ks, const X& piece,
                                const Between& between) {
    constexpr int PER_ROW = PITCH / EX, TOTAL = M * PER_ROW;
    constexpr int TRIPS = (TOTAL + THREADS - 1) / THREADS, HELD = TRIPS < 4 ? TRIPS : 4;
    constexpr bool WHOLE = PITCH == KS && !K_TAIL;
    Piece<T> held[HELD];
    const auto request = [&](int p) {
      const int i = TOTAL % THREADS == 0 || p < TOTAL ? p : TOTAL - 1;
      const int m = i / PER_ROW, k = i % PER_ROW * EX;
      return piece(m, WHOLE || k < ks ? k0 + k : 0);
    };
    const auto put = [&](int p, const Piece<T>& value) {
      if (TOTAL % THREADS != 0 && p >= TOTAL) return;
      const bool there = WHOLE || p % PER_ROW * EX < ks;
      *x_piece(smem, p) = there ? in_order(value) : Piece<T>{};
    };
#pragma unroll
    for (int i = 0; i < HELD; ++i) held[i] = request(thread_id() + i * THREADS);
    between();
#pragma unroll
    for (int i = 0; i < HELD; ++i) put(thread_id() + i * THREADS, held[i]);
    if constexpr (TRIPS > HELD) {
#pragma unroll 2
      for (int p = thread_id() + HELD * THREADS; p < TOTAL; p += THREADS) put(p, request(p));
    }
    syncthreads();
  }

  // The same of x that other blocks may still be at: ask(words, m, k) asks for what a piece is made of,
  // there(words) says whether it has come, piece(words, m, k) makes it. early(words, m, k) loads what
  // else a piece is made of, which nobody writes any more. All pieces of a thread are on their way at
  // once. The lanes of a warp stay together: a barrier is next.
  template <class Words, class Ask, class Early, class There, class X, class Between>
  JM_DEVICE static void stage_flagged(unsigned char* smem, int k0, int ks, const Ask& ask,
                                      const Early& early, const There& there, const X& piece,
                                      const Between& between) {
    constexpr int PER_ROW = PITCH / EX, TOTAL = M * PER_ROW;
    constexpr int TRIPS = (TOTAL + THREADS - 1) / THREADS, HELD = TRIPS < 4 ? TRIPS : 4;
    constexpr bool WHOLE = PITCH == KS && !K_TAIL;
    Words words[HELD];
    const auto place = [&](int p, const auto& at) {
      const int i = TOTAL % (HELD * THREADS) == 0 || p < TOTAL ? p : TOTAL - 1;
      const int m = i / PER_ROW, k = i % PER_ROW * EX;
      return at(m, WHOLE || k < ks ? k0 + k : 0);
    };
    const auto request = [&](int i, int p) {
      place(p, [&](int m, int k) { ask(words[i], m, k); });
    };
    bool asked = false;
#pragma unroll 1
    for (int first = thread_id(); first - lane_id() < TOTAL || !asked; first += HELD * THREADS) {
#pragma unroll
      for (int i = 0; i < HELD; ++i) request(i, first + i * THREADS);
#pragma unroll
      for (int i = 0; i < HELD; ++i)
        place(first + i * THREADS, [&](int m, int k) { early(words[i], m, k); });
      if (!asked) between();
      asked = true;
      wait_together(
          [&] {
            bool all = true;
#pragma unroll
            for (int i = 0; i < HELD; ++i)
              if (!there(words[i])) request(i, first + i * THREADS);
#pragma unroll
            for (int i = 0; i < HELD; ++i) all &= there(words[i]);
            return all;
          },
          "x");
#pragma unroll
      for (int i = 0; i < HELD; ++i) {
        const int p = first + i * THREADS;
        if (TOTAL % (HELD * THREADS) != 0 && p >= TOTAL) continue;
        const Piece<T> value = place(p, [&](int m, int k) { return piece(words[i], m, k); });
        const bool inside = WHOLE || p % PER_ROW * EX < ks;
        *x_piece(smem, p) = inside ? in_order(value) : Piece<T>{};
      }
    }
    syncthreads();
  }

  // ---- products ------------------------------------------------------------------------------

  static constexpr int XN = (M + 7) / 8;  // columns of 8 rows of x, with MMA
  static constexpr int OUTER = MMA ? XN : M;
  static constexpr int WIDTH = MMA ? (K_MAJOR ? 4 : 2 * E) : K_MAJOR ? U : E;
  using Sums = float[OUTER][WIDTH];
  using Fma = GemvFma<Gemv, T, W, M, U, K_MAJOR>;
  using Products = Conditional<MMA, GemvMma<Gemv, T, W, M, U, K_MAJOR>, Fma>;

  // After prologue and x: runs the task's stream and leaves the sums in shared memory, all warps
  // arrived. LANDED: after `request`, and all of it is there.
  template <bool LANDED = false, class Load>
  JM_DEVICE static void run(unsigned char* smem, int n0, int k0, int ks, const Load& load) {
    Sums acc;
    reset(acc);
    if constexpr (SCALED) {  // those of other threads, too
      if constexpr (!LANDED) cp_async_wait<SLOTS - 1>();
      syncthreads();
    }
    Step now, ahead;
    ahead.k = SLOTS % SPANS * SPAN;
    ahead.n = K_MAJOR ? SLOTS / SPANS * GROUP : 0;
    if constexpr (!K_MAJOR) ahead.k = SLOTS * SPAN;
    int slot = 0;
#pragma unroll 1
    for (int s = 0; s < STEPS; ++s) {
      if constexpr (!LANDED) cp_async_wait<SLOTS - 1>();
      Products::multiply(acc, smem, slot, now, k0 % PER);
      if constexpr (!LANDED) {
        if (s + SLOTS < STEPS) fetch(smem, slot, ahead, n0, k0, ks, load);
        cp_async_commit();
        ahead.next();
      }
      slot = slot + 1 == SLOTS ? 0 : slot + 1;
      if constexpr (K_MAJOR) {
        const int first = now.n + own_row();
        now.next();
        if (now.k == 0) {
          Products::finish_rows(smem, acc, first);
          reset(acc);
        }
      } else {
        now.next();
      }
    }
    if constexpr (!K_MAJOR) Products::finish_columns(smem, acc);
    syncthreads();
  }

  // Of a task whose ring holds all of it, what a thread multiplies, in registers: read while x is on its
  // way (all threads before the one barrier behind which x is whole), so that behind x there is nothing
  // but its own loads and the multiply-adds.
  static constexpr int PIECES = STEPS * U;
  static constexpr bool HOLDS =
      !SCALED && !K_MAJOR && !MMA && STEPS <= SLOTS && PIECES <= (FOURS ? 4 : BYTES ? 8 : 24);
  static constexpr bool WIDE = BYTES || ROUNDS || PIECES <= 12;  // as f32: 96 registers, of bytes up to 128
  struct Held {
    Conditional<WIDE, Vec<float, E>, Piece<W>> w[HOLDS ? PIECES : 1]{};

    Held() = default;
    JM_DEVICE explicit Held(unsigned char* smem) {
      if (!active()) return;
#pragma unroll
      for (int i = 0; i < PIECES; ++i) {
        const unsigned char* const p = piece(smem, i / U, i % U);
        if constexpr (WIDE) {
          w[i] = Fma::weights(p);
#pragma unroll
          for (int e = 0; e < E; ++e) w[i].x[e] = made(w[i].x[e]);
        } else w[i] = *reinterpret_cast<const Piece<W>*>(p);
      }
    }
    JM_DEVICE Vec<float, E> get(int i) const {
      if constexpr (WIDE) return w[i];
      else return Fma::weights(reinterpret_cast<const unsigned char*>(w[i].x));
    }
  };

  // After x: as the other one.
  JM_DEVICE static void run(unsigned char* smem, const Held& held) {
    static_assert(HOLDS, "");
    Sums acc;
    reset(acc);
    if (active()) {
#pragma unroll
      for (int s = 0; s < STEPS; ++s)
#pragma unroll
        for (int m = 0; m < M; ++m) {
          const Vec<float, U> f = Fma::template wide<U>(x(smem, m, s * SPAN + own_row()));
#pragma unroll
          for (int u = 0; u < U; ++u) {
            const Vec<float, E> w = held.get(s * U + u);
#pragma unroll
            for (int e = 0; e < E; ++e) acc[m][e] = fmaf(f.x[u], w.x[e], acc[m][e]);
          }
        }
    }
    Fma::template finish_columns<true>(smem, acc);
    syncthreads();
  }

  // VEC consecutive elements of row r of the tile, summed over the parts in order.
  template <int VEC>
  JM_DEVICE static void read(float (&out)[VEC], unsigned char* smem, int r, int c) {
    const float* p = sums(smem) + r * BN + c;
#pragma unroll
    for (int e = 0; e < VEC; ++e) out[e] = 0.0f;
#pragma unroll(PARTS <= 16 ? PARTS : 8)
    for (int i = 0; i < PARTS; ++i) {
      const Vec<float, VEC> part = jaxmono::load<float, VEC>(p + i * (M * BN));
#pragma unroll
      for (int e = 0; e < VEC; ++e) out[e] = i == 0 ? part.x[e] : out[e] + part.x[e];
    }
  }

 private:
  JM_DEVICE static void reset(Sums& acc) {
#pragma unroll
    for (int m = 0; m < OUTER; ++m)
#pragma unroll
      for (int i = 0; i < WIDTH; ++i) acc[m][i] = 0.0f;
  }
};

}  // namespace jaxmono
