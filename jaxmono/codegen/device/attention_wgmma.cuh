// Softmax attention by one block on wgmma: producer warps bring Q and then K and V of one chunk of keys
// after the other; two warpgroups of consumers keep scores and probabilities in registers.
//
//   producers: K0, Q; K1, V0, K2, V1... into the slots of a ring, tasks ahead of the consumers
//   consumers: S1 = Q K1^T and O += P0 V0 are issued together; AttentionRows::weigh makes P1 of S1
//              while the second runs; S2 = Q K2^T and O += P1 V1...
//              (NARROW: O += P0 V0 between the first exponentials of S1)
//
// So products run under a warpgroup's own exponentials and under those of the other one, which begins a
// task a softmax later (LAGS). Turns for every chunk (the ping-pong of FlashAttention-3: Shah et al. 2024)
// are more waits than they save: with them 12 heads of 64 take 4 to 10 % more time on an H200, 32 of 128
// 0.4 to 1.3 %. Nor did exponentials by polynomials, an eighth of them to all, help: 0.4 to 31 % more.
#pragma once
#include "jaxmono/attention_rows.cuh"
#include "jaxmono/gemm_wgmma.cuh"

namespace jaxmono {

// WG_M: warpgroups that have 64 rows each; 1: they share 64 rows and have different columns of every
// chunk. BK: keys of a chunk. SLOTS: tiles (of K or V) in the ring. The rest as in FlashAttention.
template <class T, int WG_M, int BK, int SLOTS, int KEYS, int D, int DV, int SPLIT, bool Q_D_MAJOR,
          bool K_D_MAJOR, bool V_KEY_MAJOR>
struct FlashWgmma {
  static constexpr int BQ = 64 * WG_M, COLS = BK * WG_M / 2, NT = COLS / 8;
  static constexpr int DP = (D + 15) / 16 * 16;
  using Rows = AttentionRows<T, 8, 4 * WG_M, DV, SPLIT, true>;
  static constexpr int DVP = Rows::DVP, FLOATS = Rows::FLOATS;
  static constexpr int CHUNKS = (KEYS + BK - 1) / BK, SHARE = (CHUNKS + SPLIT - 1) / SPLIT;
  static constexpr int Q_SLOT = MAX_SLOTS - 1;  // whose `empty` says when Q may be overwritten
  // A warp that has asked for products waits until the tensor cores take them. With narrow heads, whose
  // products take no longer than the exponentials, these are asked for one by one, with exponentials in
  // between: with 2048 and 8192 keys of 12 heads of 64 5 to 10 % less time; heads of 128 take 3 to 6 % more.
  static constexpr bool NARROW = DP <= 64 && DVP <= 64;
  // With 512 keys of 12 heads of 64 3 % less time, with 2048 the same, 8192 and a causal mask 5 % more.
  static constexpr bool LAGS = NARROW && SHARE > 1 && SHARE <= 8;
  static_assert(WG_M == 1 || WG_M == 2, "two warpgroups");
  static_assert(COLS % 16 == 0 && COLS <= 256 && SLOTS >= 2 && SLOTS <= Q_SLOT, "");
  // A slice along the keys begins at a panel of 64 columns.
  static_assert(WG_M == 2 || (COLS % 64 == 0 || (K_D_MAJOR && !V_KEY_MAJOR)), "");

  using TileQ = SwizzledTile<T, Q_D_MAJOR ? BQ : DP, Q_D_MAJOR ? DP : BQ>;
  using TileK = SwizzledTile<T, K_D_MAJOR ? BK : DP, K_D_MAJOR ? DP : BK>;
  using TileV = SwizzledTile<T, V_KEY_MAJOR ? DVP : BK, V_KEY_MAJOR ? BK : DVP>;

  // Layout: Q | ring | row statistics | fragments on their way out.
  static constexpr int SLOT = TileK::BYTES > TileV::BYTES ? TileK::BYTES : TileV::BYTES;
  static constexpr int STATS_AT = TileQ::BYTES + SLOTS * SLOT;
  static constexpr int OUT_AT = STATS_AT + Rows::STATS_BYTES;
  static constexpr int SHARED_BYTES = OUT_AT + Rows::OUT_BYTES;
  JM_DEVICE static unsigned char* slot(unsigned char* smem, int i) {
    return smem + TileQ::BYTES + i * SLOT;
  }

  // Producers: the tiles of chunks first .. last, for rows row0...
  template <class LoadQ, class LoadK, class LoadV>
  JM_DEVICE static void produce(unsigned char* smem, Roles* roles, Place& at, int row0, int first,
                                int last, const LoadQ& load_q, const LoadK& load_k,
                                const LoadV& load_v) {
    if (first >= last) return;
    const int thread = thread_id() - CONSUMERS;
    const auto fetch_k = [&](int i, int chunk) {
      mbarrier_wait(&roles->empty[i], at.parity(i) ^ 1);
      unsigned char* const k = slot(smem, i);
      if constexpr (K_D_MAJOR) TileK::template fill<PRODUCERS>(k, thread, chunk * BK, 0, load_k);
      else TileK::template fill<PRODUCERS>(k, thread, 0, chunk * BK, load_k);
    };
    const auto fetch_v = [&](int chunk) {
      mbarrier_wait(&roles->empty[at.slot], at.parity() ^ 1);
      unsigned char* const v = slot(smem, at.slot);
      if constexpr (V_KEY_MAJOR) TileV::template fill<PRODUCERS>(v, thread, 0, chunk * BK, load_v);
      else TileV::template fill<PRODUCERS>(v, thread, chunk * BK, 0, load_v);
      cp_async_mbarrier_arrive(&roles->full[at.slot]);
      at.template next<SLOTS>();
    };
    // What needs no queries first: theirs are free only when the task before has all its scores. Where
    // the first keys have landed, so have the queries.
    const int keys = at.slot;
    fetch_k(keys, first);
    at.template next<SLOTS>();
    if constexpr (CHUNKS == 1) fetch_v(first);
    mbarrier_wait(&roles->empty[Q_SLOT], at.parity(Q_SLOT) ^ 1);
    if constexpr (Q_D_MAJOR) TileQ::template fill<PRODUCERS>(smem, thread, row0, 0, load_q);
    else TileQ::template fill<PRODUCERS>(smem, thread, 0, row0, load_q);
    at.flip(Q_SLOT);
    cp_async_mbarrier_arrive(&roles->full[keys]);
    if constexpr (CHUNKS > 1) {
#pragma unroll 1
      for (int t = first; t < last; ++t) {
        if (t + 1 < last) {
          fetch_k(at.slot, t + 1);
          cp_async_mbarrier_arrive(&roles->full[at.slot]);
          at.template next<SLOTS>();
        }
        fetch_v(t);
      }
    }
  }

  // Consumers: takes the keys of chunks first .. last into account. logits: `Logits`.
  template <class L>
  JM_DEVICE static void consume(unsigned char* smem, Roles* roles, Place& at, Rows& rows, int first,
                                int last, const L& logits) {
    rows.reset();
    if (first >= last) return;
    const int wg = uniform(warp_id() / 4);
    const int row = WG_M == 2 ? wg * 64 : 0, col = WG_M == 2 ? 0 : wg * COLS;
    const bool speaks = speaks_for_warpgroup();
    const uint64_t queries = operand_slice<TileQ, Q_D_MAJOR>(smem, row, 0);
    const uint64_t keys = operand_slice<TileK, K_D_MAJOR>(slot(smem, 0), col, 0);
    const uint64_t values = operand_slice<TileV, V_KEY_MAJOR>(slot(smem, 0), 0, col);
    float s[NT][4];
    uint32_t p[NT / 2][4];
    const auto ready = [&] { mbarrier_wait(&roles->full[at.slot], at.parity()); };
    // Keys and values of the next products, both before the first of them: of two slots one is still in use.
    // Where there is a mask or a bias; without, 12 and 32 heads take 0.5 to 2.5 % less time if the values are
    // waited for behind the scores (with a causal mask 3 % more).
    constexpr bool PLAIN = L::SCALED && !L::MASKED, TOGETHER = SLOTS > 2 && !PLAIN;
    const auto next_ready = [&] {
      mbarrier_wait(&roles->full[at.slot], at.parity());
      if constexpr (TOGETHER) {
        const int v = at.slot + 1 == SLOTS ? 0 : at.slot + 1;
        mbarrier_wait(&roles->full[v], at.parity(v));
      }
      // What ptxas moves nothing over: 12 heads of 64 with a causal mask take 2 to 3 % less time.
      if constexpr (NARROW && !PLAIN) fence_proxy_async();
    };
    const auto release = [&](int i) {
      if (speaks) mbarrier_arrive(&roles->empty[i]);
    };
    ready();
    // The first warpgroup is at most this task ahead: the next one's queries have the place of these.
    if constexpr (LAGS)
      if (wg == 1) {
        mbarrier_wait(&roles->turn, at.parity(TURN));
        at.flip(TURN);
      }
    wgmma_fence();
    scores(s, queries, wgmma_descriptor_at(keys, at.slot * SLOT));
    wgmma_commit();
    wgmma_wait<0>();
    release(at.slot);
    if (first + 1 == last) release(Q_SLOT);
    at.template next<SLOTS>();
    rows.template weigh<true, KEYS, KEYS % BK != 0>(s, first * BK + col, logits);
    if constexpr (LAGS)
      if (wg == 0 && speaks) mbarrier_arrive(&roles->turn);
    Rows::pack(p, s);
    const auto last_values = [&](const uint32_t (&p)[NT / 2][4]) {
      ready();
      wgmma_fence();
      accumulate(rows, p, wgmma_descriptor_at(values, at.slot * SLOT), [](int) {});
      wgmma_commit();
      wgmma_wait<0>();
      release(at.slot);
      at.template next<SLOTS>();
    };
    if constexpr (SHARE == 1) {
      last_values(p);
    } else {
      // What is multiplied with the weights takes the registers for the other order (dropout: spills).
      constexpr bool BETWEEN = NARROW && !L::FACTORS;
      // Where there are registers for weights of two chunks, scores can stay until it is known what to make
      // of them: weights are relative to the maximum of before, unless their sums say that it is too
      // small. So behind the first chunk no maximum is looked for, and no weights are moved: with 512 keys
      // and more, 12 heads of 64 take 2 to 11 % less time (3 to 4 % where it was still looked for).
      constexpr bool TWICE = BETWEEN && L::SCALED;
      // Scores of chunk t to weights q beside the products of weights p.
      const auto step = [&](int t, const uint32_t (&p)[NT / 2][4], uint32_t (&q)[NT / 2][4]) {
        const int k = at.slot, key0 = t * BK + col;
        at.template next<SLOTS>();
        wgmma_fence();
        scores(s, queries, wgmma_descriptor_at(keys, k * SLOT));
        wgmma_commit();
        rows.fade_sums();
        if constexpr (!TOGETHER) ready();
        const int v = at.slot;
        const uint64_t value = wgmma_descriptor_at(values, v * SLOT);
        const auto scored = [&] {
          wgmma_results(s);
          release(k);
          if (t + 1 == last) release(Q_SLOT);
        };
        const auto added = [&] {
          at.template next<SLOTS>();
          // In front, because ptxas moves the wait for the values up to the first exponentials where no
          // other wait is between them.
          if (t + 1 < last) next_ready();
          wgmma_wait<0>();
          wgmma_results(rows.o);
          release(v);
        };
        if constexpr (BETWEEN) {
          constexpr int STEPS = NT / 2, HALF = STEPS / 2;
          float total[4] = {};
          const auto raise = [&](int i) {
            float(&a)[4] = s[2 * i], (&b)[4] = s[2 * i + 1];
            constexpr bool PART = KEYS % BK != 0;
            if constexpr (TWICE) {
              float x[4], y[4];
              rows.template raise<true, KEYS, PART>(x, a, key0 + i * 16, logits, total);
              rows.template raise<true, KEYS, PART>(y, b, key0 + i * 16 + 8, logits, total);
              Rows::pack(q[i], x, y);
            } else {
              rows.template raise<true, KEYS, PART>(a, a, key0 + i * 16, logits, total);
              rows.template raise<true, KEYS, PART>(b, b, key0 + i * 16 + 8, logits, total);
            }
          };
          const auto pack = [&](int i) {
            if constexpr (!TWICE) Rows::pack(q[i], s[2 * i], s[2 * i + 1]);
          };
          wgmma_wait<0>();
          scored();
          rows.template to_logits<KEYS, KEYS % BK != 0>(s, key0, logits);
          if constexpr (TWICE) {
            rows.fades = false;
            // The end of a block of instructions, over which ptxas takes no exponential: 2048 and 8192
            // keys take 3 to 6 % less time, 2048 with a causal mask the same.
            if (!rows.near) nanosleep(0);
          } else {
            rows.template aim<false>(s, logits);
          }
          wgmma_fence();
          accumulate(rows, p, value, [&](int i) {
            if (i % 2 == 1) raise(i / 2);
          });
          wgmma_commit();
          added();
#pragma unroll
          for (int i = HALF; i < STEPS; ++i) {
            raise(i);
            if (i < 2 * HALF) pack(i - HALF);
          }
#pragma unroll
          for (int i = HALF; i < STEPS; ++i) pack(i);
          if constexpr (TWICE)
            if (!rows.near || Rows::template outgrown<NT>(total)) {
              rows.template aim<false>(s, logits);
#pragma unroll
              for (int e = 0; e < 4; ++e) total[e] = 0.0f;
#pragma unroll
              for (int i = 0; i < STEPS; ++i) raise(i);
            }
          rows.template add<false>(total);
        } else {
          wgmma_fence();
          accumulate(rows, p, value, [](int) {});
          wgmma_commit();
          wgmma_wait<1>();
          scored();
          rows.template weigh<false, KEYS, KEYS % BK != 0>(s, key0, logits);
          added();
          Rows::pack(q, s);
        }
      };
      if (first + 1 < last) next_ready();
      if constexpr (TWICE) {
        uint32_t q[NT / 2][4];
#pragma unroll 1
        for (int t = first + 1;; t += 2) {
          if (t == last) {
            rows.fade_sums();
            last_values(p);
            break;
          }
          step(t, p, q);
          if (t + 1 == last) {
            rows.fade_sums();
            last_values(q);
            break;
          }
          step(t + 1, q, p);
        }
      } else {
#pragma unroll 1
        for (int t = first + 1; t < last; ++t) step(t, p, p);
        rows.fade_sums();
        last_values(p);
      }
    }
  }

  template <int LANES, bool ROUNDED, class F>
  JM_DEVICE static void finish(unsigned char* smem, Rows& rows, int valid, float unit,
                               float* workspace, int split, uint32_t* arrivals, const F& f) {
    rows.template finish<LANES, ROUNDED>(smem + STATS_AT, smem + OUT_AT, valid, unit, workspace, split,
                                arrivals, f);
  }

 private:
  JM_DEVICE static void scores(float (&s)[NT][4], uint64_t q, uint64_t k) {
    wgmma<T, !Q_D_MAJOR, !K_D_MAJOR, true>(s, q, k);
#pragma unroll
    for (int d = 16; d < DP; d += 16)
      wgmma<T, !Q_D_MAJOR, !K_D_MAJOR>(s, operand_slice<TileQ, Q_D_MAJOR>(q, 0, d),
                                       operand_slice<TileK, K_D_MAJOR>(k, 0, d));
  }

  // beside(i): what is done when the products of step i have been asked for.
  template <class Beside>
  JM_DEVICE static void accumulate(Rows& rows, const uint32_t (&p)[NT / 2][4], uint64_t v,
                                   const Beside& beside) {
#pragma unroll
    for (int i = 0; i < NT / 2; ++i) {
      wgmma_registers<T, !V_KEY_MAJOR>(rows.o, p[i], operand_slice<TileV, V_KEY_MAJOR>(v, 0, i * 16));
      beside(i);
    }
  }
};

}  // namespace jaxmono
