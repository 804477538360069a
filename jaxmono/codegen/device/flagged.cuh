// Values that a stage leaves for the next one without a grid barrier: each lies in a word together with
// the number of the launch that it is of (Lamport's flag in the datum; LL in NCCL). Who needs it looks
// at it until it is there.
//
//   16-bit T   a 4-byte word: value, low half of the epoch
//   32-bit T   an 8-byte word: value, epoch
//
//   producer   store<T, N>(at, x)    a store; nothing is released or counted
//   consumer   load<To, N>(at)       asks, and again until all N are of this launch
//              ask, all_there, from  the same in steps: several pieces on their way at once
//              ask, landed           the same in two halves, with work between them
//
// Words are of the module, zero at load, and belong to one buffer for good. Every launch, of stages that
// repeat every trip, writes all of them once and has a number of its own: so a word is of this one or of the
// one before, whatever 16 bits of the epoch say. None has the number 0.
// A word is read and written in one access of its own size or of several words:
// the hardware may tear an access of 16 bytes between words, never a word.
#pragma once
#include "jaxmono/kernel.cuh"
#include "jaxmono/sync.cuh"
#include "jaxmono/vec.cuh"

namespace jaxmono {

// Of other sizes: nothing has flags, but overloads of load and store name the type.
template <int BYTES>
struct FlaggedBits {
  using Word = void;
};
template <>
struct FlaggedBits<2> {
  using Word = uint32_t;
  using Value = uint16_t;
  static constexpr int VALUE_AT = 16;
  static constexpr uint32_t EPOCH_MASK = 0xffffu;
};
template <>
struct FlaggedBits<4> {
  using Word = uint64_t;
  using Value = uint32_t;
  static constexpr int VALUE_AT = 32;
  static constexpr uint32_t EPOCH_MASK = 0xffffffffu;
};

// Where flagged values of type T are: what a pointer is to plain ones.
template <class T>
struct Flagged {
  using Bits = FlaggedBits<sizeof(T)>;
  using Word = typename Bits::Word;
  Word* at;
  uint32_t epoch;

  template <class I>
  JM_DEVICE Flagged operator+(I i) const {
    return {at + i, epoch};
  }
  template <class I>
  JM_DEVICE Flagged operator-(I i) const {
    return {at - i, epoch};
  }
};

// BYTES of words and the numbers of the last launch and the last trip. At least one grid barrier is in every
// kernel that has them, so block 0 may count at the end: all have read the numbers by then.
template <int BYTES>
struct FlaggedWords {
  alignas(16) uint32_t words[BYTES / 4];
  uint32_t launches, trips;
};
#ifdef JAXMONO_EMULATE
template <int BYTES>
struct FlaggedState : emulate::ModuleState {
  FlaggedWords<BYTES> state = {};
  FlaggedState() : ModuleState(&state, sizeof state) {}
};
#else
template <int BYTES>
struct FlaggedState {
  FlaggedWords<BYTES> state;
};
#endif

template <int BYTES>
JM_DEVICE uint32_t this_launch(FlaggedState<BYTES>* flags) {
  return ld_relaxed_gpu(&flags->state.launches) + 1;
}
template <int BYTES>
JM_DEVICE void launch_ends(FlaggedState<BYTES>* flags, uint32_t epoch) {
  if (block_id() == 0 && thread_id() == 0) st_relaxed_gpu(&flags->state.launches, epoch);
}

template <int BYTES>
JM_DEVICE uint32_t trips_before(FlaggedState<BYTES>* flags) {
  return ld_relaxed_gpu(&flags->state.trips);
}
template <int BYTES>
JM_DEVICE void trips_end(FlaggedState<BYTES>* flags, uint32_t trips) {
  if (block_id() == 0 && thread_id() == 0) st_relaxed_gpu(&flags->state.trips, trips);
}

template <class T, int BYTES>
JM_DEVICE Flagged<T> flagged(FlaggedState<BYTES>* flags, long long bytes, uint32_t epoch) {
  return {reinterpret_cast<typename Flagged<T>::Word*>(
              reinterpret_cast<unsigned char*>(flags->state.words) + bytes),
          epoch};
}
template <class T, int BYTES>
JM_DEVICE Flagged<T> flagged(FlaggedState<BYTES>* flags, Reference r, uint32_t epoch) {
  return flagged<T>(flags, 16ll * r.offset, epoch);
}

// N neighbouring words, in accesses of at most 16 bytes.
template <class T, int N>
struct Asked {
  using Bits = typename Flagged<T>::Bits;
  using Word = typename Flagged<T>::Word;
  static constexpr int MOST = 16 / sizeof(Word);
  static constexpr int WIDE = N % MOST == 0 ? MOST : N % 2 == 0 ? 2 : 1;
  static constexpr bool LONG_PAIRS = sizeof(Word) == 8 && WIDE == 2;
  struct alignas(sizeof(Word) * WIDE) Part {
    Word word[WIDE];
  };
  Part part[N / WIDE];

  JM_DEVICE void ask(const Flagged<T>& from) {
#pragma unroll
    for (int i = 0; i < N / WIDE; ++i) {
      const Part* const p = reinterpret_cast<const Part*>(from.at) + i;
      if constexpr (LONG_PAIRS) part[i] = ld_relaxed_gpu_2x64(p);
      else part[i] = ld_relaxed_gpu(p);
    }
  }
  JM_DEVICE bool all_there(uint32_t epoch) const {
    uint32_t other = 0;
#pragma unroll
    for (int i = 0; i < N; ++i) other |= static_cast<uint32_t>(part[i / WIDE].word[i % WIDE]) ^ epoch;
    return (other & Bits::EPOCH_MASK) == 0;
  }
  JM_DEVICE T value(int i) const {
    const Word word = part[i / WIDE].word[i % WIDE];
    return bitcast<T>(static_cast<typename Bits::Value>(word >> Bits::VALUE_AT));
  }
};

template <class To, class T, int N>
JM_DEVICE Vec<To, N> from(const Asked<T, N>& asked) {
  Vec<To, N> out;
#pragma unroll
  for (int i = 0; i < N; ++i) out.x[i] = convert<To>(asked.value(i));
  return out;
}

// What was asked for at `at`, once it is there.
template <class T, int N>
JM_DEVICE void wait_for(Asked<T, N>& asked, const Flagged<T>& at) {
  wait_together(
      [&] {
        if (!asked.all_there(at.epoch)) asked.ask(at);
        return asked.all_there(at.epoch);
      },
      "a flagged value");
}

// Of several, each followed by where it is from: asks again for those that have not come; whether all have.
template <class A, class F, class... Rest>
JM_DEVICE void ask_missing(A& asked, const F& at, Rest&... rest) {
  if (!asked.all_there(at.epoch)) asked.ask(at);
  if constexpr (sizeof...(rest) > 0) ask_missing(rest...);
}
template <class A, class F, class... Rest>
JM_DEVICE bool all_have_come(const A& asked, const F& at, const Rest&... rest) {
  bool all = asked.all_there(at.epoch);
  if constexpr (sizeof...(rest) > 0) all &= all_have_come(rest...);
  return all;
}
// The same, until all have: what is asked for again is on its way together.
template <class... X>
JM_DEVICE void wait_for_all(X&&... x) {
  wait_together(
      [&] {
        ask_missing(x...);
        return all_have_come(x...);
      },
      "flagged values");
}

template <class To, class T, int N>
JM_DEVICE Vec<To, N> landed(Asked<T, N>& asked, const Flagged<T>& at) {
  wait_for(asked, at);
  return from<To>(asked);
}
template <class To, class T>
JM_DEVICE To landed(Asked<T, 1>& asked, const Flagged<T>& at) {
  wait_for(asked, at);
  return convert<To>(asked.value(0));
}

template <class To, int N, class T>
JM_DEVICE Vec<To, N> load(const Flagged<T>& at) {
  Asked<T, N> asked;
  asked.ask(at);
  return landed<To>(asked, at);
}
template <class To, class T>
JM_DEVICE To load(const Flagged<T>& at) {
  Asked<T, 1> asked;
  asked.ask(at);
  return landed<To>(asked, at);
}

template <class T, int N, class X>
JM_DEVICE void store(const Flagged<T>& at, const Vec<X, N>& x) {
  using A = Asked<T, N>;
  using Word = typename A::Word;
  const Vec<T, N> values = convert<T>(x);
#pragma unroll
  for (int i = 0; i < N; i += A::WIDE) {
    typename A::Part out;
#pragma unroll
    for (int e = 0; e < A::WIDE; ++e)
      out.word[e] = static_cast<Word>(bitcast<typename A::Bits::Value>(values.x[i + e]))
                        << A::Bits::VALUE_AT |
                    (at.epoch & A::Bits::EPOCH_MASK);
    auto* const p = reinterpret_cast<typename A::Part*>(at.at + i);
    if constexpr (A::LONG_PAIRS) st_relaxed_gpu_2x64(p, out);
    else st_relaxed_gpu(p, out);
  }
}
template <class T, int N, class X>
JM_DEVICE void store(const Flagged<T>& at, const X& x) {
  store<T, N>(at, splat<N>(x));
}
template <class T, class X>
JM_DEVICE void store(const Flagged<T>& at, const X& x) {
  store<T, 1>(at, Vec<X, 1>{x});
}
template <class T, int N, class X>
JM_DEVICE void store_whole(const Flagged<T>& at, const X& x) {
  store<T, N>(at, x);
}
template <class T, int N, class X>
JM_DEVICE void store_if(const Flagged<T>& at, const X& x, bool wanted) {
  if (wanted) store<T, N>(at, x);
}

}  // namespace jaxmono
