// Vec<T, N>: N neighbouring values of one thread. Every op_ function has a v_ form that works on Vecs
// and scalars mixed; loads and stores of Vecs are as wide as the hardware allows.
#pragma once
#include "jaxmono/index.cuh"
#include "jaxmono/narrow.cuh"
#include "jaxmono/numeric.cuh"
#include "jaxmono/platform.cuh"
#include "jaxmono/ptx.cuh"
#include "jaxmono/types.cuh"

namespace jaxmono {

JM_DEVICE constexpr int vec_align(int bytes) {
  return bytes % 16 == 0 ? 16 : bytes % 8 == 0 ? 8 : bytes % 4 == 0 ? 4 : bytes % 2 == 0 ? 2 : 1;
}

template <class T, int N>
struct alignas(vec_align(sizeof(T) * N) > alignof(T) ? vec_align(sizeof(T) * N) : alignof(T)) Vec {
  T x[N];
};

template <class T>
JM_DEVICE const T& at(const T& x, int) {
  return x;
}
template <class T, int N>
JM_DEVICE const T& at(const Vec<T, N>& v, int lane) {
  return v.x[lane];
}

// The number of lanes of the first Vec among some types; 0 if all are scalars.
template <class... A>
struct Lanes {
  static constexpr int value = 0;
};
template <class T, int N, class... A>
struct Lanes<Vec<T, N>, A...> {
  static constexpr int value = N;
};
template <class S, class... A>
struct Lanes<S, A...> {
  static constexpr int value = Lanes<A...>::value;
};

template <class T>
struct NoReference {
  using type = T;
};
template <class T>
struct NoReference<const T> {
  using type = T;
};
template <class T>
struct NoReference<T&> : NoReference<T> {};

template <int N, class T>
JM_DEVICE Vec<T, N> splat(const T& x) {
  Vec<T, N> v;
#pragma unroll
  for (int i = 0; i < N; ++i) v.x[i] = x;
  return v;
}

// Of two vectors the elements from FIRST (0 or 1) on.
template <int FIRST, class T, int N>
JM_DEVICE Vec<T, N / 2> every_second(const Vec<T, N>& x) {
  Vec<T, N / 2> v;
#pragma unroll
  for (int i = 0; i < N / 2; ++i) v.x[i] = x.x[2 * i + FIRST];
  return v;
}

// base, base + step, base + 2 * step...
template <int N, class I>
JM_DEVICE Vec<I, N> lane_steps(I base, I step) {
  Vec<I, N> v;
#pragma unroll
  for (int i = 0; i < N; ++i) v.x[i] = base + i * step;
  return v;
}

// ---- element-wise functions ----------------------------------------------------------------------

#define JM_LIFT(name)                                                                     \
  template <class... A>                                                                   \
  JM_DEVICE auto v_##name(const A&... a) {                                                \
    using R = typename NoReference<decltype(op_##name(at(a, 0)...))>::type;               \
    Vec<R, Lanes<A...>::value> r;                                                         \
    JM_UNROLL for (int i = 0; i < Lanes<A...>::value; ++i) r.x[i] = op_##name(at(a, i)...); \
    return r;                                                                             \
  }
#define JM_UNROLL _Pragma("unroll")

JM_LIFT(abs) JM_LIFT(cbrt) JM_LIFT(ceil) JM_LIFT(count_leading_zeros)
JM_LIFT(exponential) JM_LIFT(exponential_minus_one) JM_LIFT(floor) JM_LIFT(is_finite) JM_LIFT(log)
JM_LIFT(log_plus_one) JM_LIFT(logistic) JM_LIFT(negate) JM_LIFT(not) JM_LIFT(popcnt)
JM_LIFT(round_nearest_afz) JM_LIFT(round_nearest_even) JM_LIFT(rsqrt) JM_LIFT(sign)
JM_LIFT(sqrt) JM_LIFT(tan) JM_LIFT(tanh) JM_LIFT(acos) JM_LIFT(acosh) JM_LIFT(asin) JM_LIFT(asinh)
JM_LIFT(atan) JM_LIFT(atanh) JM_LIFT(bessel_i1e) JM_LIFT(cosh) JM_LIFT(digamma) JM_LIFT(erf)
JM_LIFT(erf_inv) JM_LIFT(erfc) JM_LIFT(is_inf) JM_LIFT(is_neg_inf) JM_LIFT(is_pos_inf)
JM_LIFT(lgamma) JM_LIFT(sinh) JM_LIFT(square)
JM_LIFT(narrow_exponential) JM_LIFT(narrowed_exponential) JM_LIFT(narrow_logistic) JM_LIFT(narrow_erf) JM_LIFT(narrow_erfc)
JM_LIFT(narrow_divide) JM_LIFT(narrow_reciprocal) JM_LIFT(narrow_log) JM_LIFT(narrow_log_plus_one)
JM_LIFT(narrow_tanh)
JM_LIFT(bf16_gelu) JM_LIFT(f16_gelu) JM_LIFT(bf16_logistic) JM_LIFT(f16_logistic)
JM_LIFT(bf16_softplus) JM_LIFT(f16_softplus) JM_LIFT(bf16_log)
JM_LIFT(add) JM_LIFT(and) JM_LIFT(atan2) JM_LIFT(divide) JM_LIFT(maximum) JM_LIFT(minimum)
JM_LIFT(multiply) JM_LIFT(or) JM_LIFT(power) JM_LIFT(remainder) JM_LIFT(shift_left)
JM_LIFT(shift_right_arithmetic) JM_LIFT(shift_right_logical) JM_LIFT(subtract) JM_LIFT(xor)
JM_LIFT(divide_by) JM_LIFT(remainder_by) JM_LIFT(floor_divide) JM_LIFT(floor_remainder)
JM_LIFT(next_after) JM_LIFT(polygamma) JM_LIFT(zeta)
JM_LIFT(clamp) JM_LIFT(select) JM_LIFT(reduce_precision) JM_LIFT(total_order)
JM_LIFT(compare_eq) JM_LIFT(compare_ne) JM_LIFT(compare_lt) JM_LIFT(compare_le)
JM_LIFT(compare_gt) JM_LIFT(compare_ge)

#undef JM_LIFT

// One branch for the far ones of all lanes.
#define JM_WAVES(name, COSINE)                                                            \
  template <class T, int N>                                                               \
  JM_DEVICE Vec<T, N> v_##name(const Vec<T, N>& x) {                                      \
    Vec<T, N> y;                                                                          \
    if constexpr (is_same<T, float>) waves<COSINE>(y.x, x.x);                             \
    else JM_UNROLL for (int i = 0; i < N; ++i) y.x[i] = op_##name(x.x[i]);                \
    return y;                                                                             \
  }
JM_WAVES(sine, false) JM_WAVES(cosine, true)
#undef JM_WAVES

// Those whose result is of a type that is not their operands'.
#define JM_LIFT_TO(name)                                                                  \
  template <class To, class... A>                                                         \
  JM_DEVICE auto v_##name(const A&... a) {                                                \
    Vec<To, Lanes<A...>::value> r;                                                        \
    JM_UNROLL for (int i = 0; i < Lanes<A...>::value; ++i) r.x[i] = op_##name<To>(at(a, i)...); \
    return r;                                                                             \
  }
JM_LIFT_TO(nearest) JM_LIFT_TO(nearest_from) JM_LIFT_TO(nearest_to) JM_LIFT_TO(nearest_between)
#undef JM_LIFT_TO

template <int N>
JM_DEVICE Vec<float, N> v_narrow_divide(const Vec<float, N>& a, const float& b) {
  Vec<float, N> out;
  const float magnitude = fabsf(b);
  if (magnitude > 1e-30f && magnitude < 1e30f) {
    const float r = fast_reciprocal(b);
#pragma unroll
    for (int i = 0; i < N; ++i) out.x[i] = a.x[i] * r;
  } else {
#pragma unroll
    for (int i = 0; i < N; ++i) out.x[i] = fast_divide(a.x[i], b);
  }
  return out;
}

template <int N>
struct BytesOf {
  using type = Bits<Vec<uint8_t, N>>;
};
template <>
struct BytesOf<16> {
  using type = Bits128;
};

// N elements as they lie in memory, in pieces of at most 16 bytes. p is aligned to a piece.
template <class T, int N>
struct Raw {
  static constexpr int BYTES = sizeof(T) * N;
  static constexpr int PIECE = BYTES > 16 ? 16 : BYTES;
  using Piece = typename BytesOf<PIECE>::type;
  union {
    Piece piece[BYTES / PIECE];
    uint32_t pair[BYTES / 4 ? BYTES / 4 : 1];
    Vec<T, N> v;
  };
  JM_DEVICE Raw() {}
};

// ---- conversions ---------------------------------------------------------------------------------

template <class A, class B>
constexpr bool same_type = false;
template <class A>
constexpr bool same_type<A, A> = true;

// Two bf16 as floats.
JM_DEVICE void bf16x2_to_floats(uint32_t pair, float& low, float& high) {
  low = bitcast<float>(pair << 16);
  high = bitcast<float>(pair & 0xffff0000u);
}

template <class To, class T, int N>
JM_DEVICE Vec<To, N> convert(const Vec<T, N>& v);

// Pairs of bf16 as words: as elements, the second of a pair is first taken out, then shifted back.
template <class To, class T, int N>
JM_DEVICE Vec<To, N> from_raw(const Raw<T, N>& raw) {
  if constexpr (N % 2 == 0 && same_type<T, bf16> && same_type<To, float>) {
    Vec<float, N> r;
#pragma unroll
    for (int i = 0; i < N; i += 2) bf16x2_to_floats(raw.pair[i / 2], r.x[i], r.x[i + 1]);
    return r;
  } else {
    return convert<To>(raw.v);
  }
}

template <class To, class T, int N>
JM_DEVICE Vec<To, N> convert(const Vec<T, N>& v) {
  Vec<To, N> r;
  if constexpr (N % 2 == 0 && same_type<T, float> && (same_type<To, bf16> || same_type<To, f16>)) {
#pragma unroll
    for (int i = 0; i < N; i += 2) {
      const uint32_t pair = same_type<To, bf16> ? floats_to_bf16x2(v.x[i], v.x[i + 1])
                                                : floats_to_f16x2(v.x[i], v.x[i + 1]);
      r.x[i] = bitcast<To>(static_cast<uint16_t>(pair));
      r.x[i + 1] = bitcast<To>(static_cast<uint16_t>(pair >> 16));
    }
  } else if constexpr (N % 2 == 0 && same_type<T, float> && is_f8<To>) {
#pragma unroll
    for (int i = 0; i < N; i += 2) {
      const uint16_t pair = floats_to_f8x2<To>(v.x[i], v.x[i + 1]);
      r.x[i] = To{static_cast<uint8_t>(pair)};
      r.x[i + 1] = To{static_cast<uint8_t>(pair >> 8)};
    }
  } else if constexpr (N % 2 == 0 && same_type<T, bf16> && same_type<To, float>) {
    Raw<T, N> raw;
    raw.v = v;
    return from_raw<To>(raw);
  } else if constexpr (N % 2 == 0 && is_f8<T> && same_type<To, float>) {
#pragma unroll
    for (int i = 0; i < N; i += 2) {
      const uint32_t pair =
          f8x2_to_f16x2<T>(static_cast<uint16_t>(v.x[i].bits | v.x[i + 1].bits << 8));
      r.x[i] = f16_to_float(static_cast<uint16_t>(pair));
      r.x[i + 1] = f16_to_float(static_cast<uint16_t>(pair >> 16));
    }
  } else {
#pragma unroll
    for (int i = 0; i < N; ++i) r.x[i] = convert<To>(v.x[i]);
  }
  return r;
}

template <class To, class T, int N>
JM_DEVICE Vec<To, N> bitcast(const Vec<T, N>& v) {
  Vec<To, N> r;
#pragma unroll
  for (int i = 0; i < N; ++i) r.x[i] = bitcast<To>(v.x[i]);
  return r;
}

// To is f16, bf16 or an 8-bit float: the nearest value of that type, still held as float.
template <class To, class T>
JM_DEVICE float rounded(const T& x) {
  return convert<float>(convert<To>(x));
}
template <class To, class T, int N>
JM_DEVICE Vec<float, N> rounded(const Vec<T, N>& v) {
  if constexpr (N % 2 == 0 && same_type<T, float> && same_type<To, bf16>) {
    Vec<float, N> r;
#pragma unroll
    for (int i = 0; i < N; i += 2)
      bf16x2_to_floats(floats_to_bf16x2(v.x[i], v.x[i + 1]), r.x[i], r.x[i + 1]);
    return r;
  } else {
    return convert<float>(convert<To>(v));
  }
}

// ---- memory --------------------------------------------------------------------------------------

template <class To, int N, class T>
JM_DEVICE Vec<To, N> load(const T* p) {
  Raw<T, N> raw;
#pragma unroll
  for (int i = 0; i < Raw<T, N>::BYTES / Raw<T, N>::PIECE; ++i)
    raw.piece[i] = reinterpret_cast<const typename Raw<T, N>::Piece*>(p)[i];
  return from_raw<To>(raw);
}
template <class To, class T>
JM_DEVICE To load(const T* p) {
  return convert<To>(*p);
}

// The same for memory that nothing in the launch writes.
template <class To, int N, class T>
JM_DEVICE Vec<To, N> load_ro(const T* p) {
  Raw<T, N> raw;
#pragma unroll
  for (int i = 0; i < Raw<T, N>::BYTES / Raw<T, N>::PIECE; ++i)
    raw.piece[i] = ld_nc(reinterpret_cast<const typename Raw<T, N>::Piece*>(p) + i);
  return from_raw<To>(raw);
}
template <class To, class T>
JM_DEVICE To load_ro(const T* p) {
  return convert<To>(bitcast<T>(ld_nc(reinterpret_cast<const Bits<T>*>(p))));
}

template <class T, int N, class X>
JM_DEVICE Raw<T, N> to_raw(const Vec<X, N>& x) {
  Raw<T, N> raw;
  if constexpr (N % 2 == 0 && same_type<X, float> && (same_type<T, bf16> || same_type<T, f16>)) {
    // As elements, the halves of each pair were taken apart and put together: an instruction for each.
#pragma unroll
    for (int i = 0; i < N; i += 2)
      raw.pair[i / 2] = same_type<T, bf16> ? floats_to_bf16x2(x.x[i], x.x[i + 1])
                                           : floats_to_f16x2(x.x[i], x.x[i + 1]);
  } else {
    raw.v = convert<T>(x);
  }
  return raw;
}

template <class T, int N, class X>
JM_DEVICE void store(T* p, const Vec<X, N>& x) {
  const Raw<T, N> raw = to_raw<T>(x);
#pragma unroll
  for (int i = 0; i < Raw<T, N>::BYTES / Raw<T, N>::PIECE; ++i)
    reinterpret_cast<typename Raw<T, N>::Piece*>(p)[i] = raw.piece[i];
}
template <class T, int N, class X>
JM_DEVICE void store(T* p, const X& x) {
  store<T, N>(p, splat<N>(x));
}
// To global memory, each piece in one instruction (st_global_whole).
template <class T, int N, class X>
JM_DEVICE void store_whole(T* p, const Vec<X, N>& x) {
  if constexpr (Raw<T, N>::PIECE >= 4) {
    const Raw<T, N> raw = to_raw<T>(x);
#pragma unroll
    for (int i = 0; i < Raw<T, N>::BYTES / Raw<T, N>::PIECE; ++i)
      st_global_whole(reinterpret_cast<typename Raw<T, N>::Piece*>(p) + i, raw.piece[i]);
  } else {
    store<T, N>(p, x);
  }
}
template <class T, int N, class X>
JM_DEVICE void store_whole(T* p, const X& x) {
  store_whole<T, N>(p, splat<N>(x));
}
// The same where it is wanted; x is computed anywhere.
template <class T, int N, class X>
JM_DEVICE void store_if(T* p, const Vec<X, N>& x, bool wanted) {
  if constexpr (Raw<T, N>::PIECE >= 4) {
    const Raw<T, N> raw = to_raw<T>(x);
#pragma unroll
    for (int i = 0; i < Raw<T, N>::BYTES / Raw<T, N>::PIECE; ++i)
      st_global_if(reinterpret_cast<typename Raw<T, N>::Piece*>(p) + i, raw.piece[i], wanted);
  } else if (wanted) {
    store<T, N>(p, x);
  }
}
template <class T, int N, class X>
JM_DEVICE void store_if(T* p, const X& x, bool wanted) {
  store_if<T, N>(p, splat<N>(x), wanted);
}
template <class T, class X>
JM_DEVICE void store(T* p, const X& x) {
  *p = convert<T>(x);
}

}  // namespace jaxmono
