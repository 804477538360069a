// Sums, products, quotients and bits. See numeric.cuh for the list.
#pragma once
#include "jaxmono/narrow.cuh"
#include "jaxmono/types.cuh"

namespace jaxmono {

// Unsigned type in which arithmetic wraps without being promoted to int.
template <class T>
using Wrapping = typename BitsOf<(sizeof(T) < 4 ? 4 : sizeof(T))>::type;


#define JM_ARITHMETIC(NAME, OP, BOOL)                                                         \
  template <class T>                                                                          \
  JM_DEVICE T op_##NAME(T a, T b) {                                                           \
    if constexpr (is_narrow<T>) return convert<T>(convert<float>(a) OP convert<float>(b));    \
    else if constexpr (is_wide_float<T>) return a OP b;                                       \
    else if constexpr (is_bool<T>) return a BOOL b;                                           \
    else return static_cast<T>(static_cast<Wrapping<T>>(a) OP static_cast<Wrapping<T>>(b));   \
  }
JM_ARITHMETIC(add, +, ||)
JM_ARITHMETIC(subtract, -, !=)
JM_ARITHMETIC(multiply, *, &&)
#undef JM_ARITHMETIC

template <class T>
JM_DEVICE T op_square(T x) {
  return op_multiply(x, x);
}

template <class T>
JM_DEVICE T op_negate(T x) {
  if constexpr (is_narrow<T>) return T{static_cast<Bits<T>>(x.bits ^ SIGN_BIT<T>)};
  else if constexpr (is_wide_float<T>) return -x;
  else return static_cast<T>(0 - static_cast<Wrapping<T>>(x));
}

template <class T>
JM_DEVICE T op_abs(T x) {
  if constexpr (is_float<T>)
    return bitcast<T>(static_cast<Bits<T>>(bitcast<Bits<T>>(x) & ~SIGN_BIT<T>));
  else if constexpr (is_signed<T>) return x < 0 ? op_negate(x) : x;
  else return x;
}

template <class T>
JM_DEVICE T op_sign(T x) {
  if constexpr (is_narrow<T>) return convert<T>(op_sign(convert<float>(x)));
  else if constexpr (is_wide_float<T>) return x > 0 ? T(1) : x < 0 ? T(-1) : x;  // NaN and zeros stay
  else if constexpr (is_signed<T>) return x > 0 ? T(1) : x < 0 ? T(-1) : T(0);
  else return static_cast<T>(x != 0);
}

// How far from 0 an integer is.
template <class T>
JM_DEVICE Wrapping<T> magnitude(T x) {
  const Wrapping<T> bits = static_cast<Wrapping<T>>(x);
  if constexpr (is_signed<T>) return x < 0 ? 0 - bits : bits;
  else return bits;
}

// Of unsigned numbers; where b is 0, by which nothing is divided, any: who asks mends it. Of 32 bits as ptxas
// divides: a reciprocal from below, a step of Newton's method, and two corrections, but the rest comes with
// them, and what it does for a b of 0 is left out.
template <class T>
struct Divided {
  T quotient, rest;
  JM_DEVICE Divided(T a, T b) {
#ifndef JAXMONO_EMULATE
    if constexpr (sizeof(T) == 4) {
      float r;
      asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(r) : "f"(__uint2float_ru(b)));
      // Times 2^32, less 2 units in the last place.
      uint32_t y = __float2uint_rz(bitcast<float>(bitcast<uint32_t>(r) + 0x0ffffffeu));
      y += __umulhi(y, (0 - b) * y);
      quotient = __umulhi(y, a);
      rest = a - quotient * b;
#pragma unroll
      for (int i = 0; i < 2; ++i)  // with a predicate: the compiler would compare and select more
        asm("{ .reg .pred p; setp.ge.u32 p, %1, %2; @p sub.u32 %1, %1, %2; @p add.u32 %0, %0, 1; }"
            : "+r"(quotient), "+r"(rest) : "r"(b));
      return;
    }
#endif
    if (b == 0) b = 1;
    quotient = a / b;
    rest = a % b;
  }
};

// Of f32 as XLA has them on a GPU: to 2 units in the last place, without a slow path (narrow.cuh).
template <class T>
JM_DEVICE T op_divide(T a, T b) {
  if constexpr (is_narrow<T>) {
    return convert<T>(fast_divide(convert<float>(a), convert<float>(b)));
  } else if constexpr (is_same<T, float>) {
    return fast_divide(a, b);
  } else if constexpr (is_wide_float<T>) {
    return a / b;
  } else {
    Wrapping<T> q = Divided(magnitude(a), magnitude(b)).quotient;
    if constexpr (is_signed<T>) q = (a ^ b) < 0 ? 0 - q : q;
    return b == 0 ? static_cast<T>(-1) : static_cast<T>(q);
  }
}

template <class T>
JM_DEVICE T op_remainder(T a, T b) {
  if constexpr (is_narrow<T>) {
    return convert<T>(fmodf(convert<float>(a), convert<float>(b)));
  } else if constexpr (is_same<T, float>) {
    return fmodf(a, b);
  } else if constexpr (is_same<T, double>) {
    return fmod(a, b);
  } else {
    Wrapping<T> rest = Divided(magnitude(a), magnitude(b)).rest;
    if constexpr (is_signed<T>) rest = a < 0 ? 0 - rest : rest;
    return b == 0 ? a : static_cast<T>(rest);
  }
}

// By a positive number that the compiler knows: it multiplies.
template <class T>
JM_DEVICE T op_divide_by(T a, T b) { return static_cast<T>(a / b); }
template <class T>
JM_DEVICE T op_remainder_by(T a, T b) { return static_cast<T>(a % b); }

// Of signed integers, rounded down, and what that leaves, of b's sign: of what JAX makes of x // 0 and x % 0, -1
// or, unless x is 0, -2, and x (floor_division.py).
template <class T>
JM_DEVICE T op_floor_divide(T a, T b) {
  const Divided of(magnitude(a), magnitude(b));
  const Wrapping<T> q = of.quotient;
  const Wrapping<T> down = (a ^ b) < 0 ? 0 - q - (of.rest != 0) : q;
  return static_cast<T>(b == 0 ? 0 - Wrapping<T>(1) - (a != 0) : down);
}

template <class T>
JM_DEVICE T op_floor_remainder(T a, T b) {
  const Wrapping<T> by = magnitude(b), rest = Divided(magnitude(a), by).rest;
  const Wrapping<T> up = (a ^ b) < 0 && rest != 0 ? by - rest : rest;
  return b == 0 ? a : static_cast<T>(b < 0 ? 0 - up : up);
}

template <class T>
JM_DEVICE T op_power(T a, T b) {
  if constexpr (is_narrow<T>) {
    return convert<T>(powf(convert<float>(a), convert<float>(b)));
  } else if constexpr (is_same<T, float>) {
    return powf(a, b);
  } else if constexpr (is_same<T, double>) {
    return pow(a, b);
  } else {
    if constexpr (is_signed<T>)
      if (b < 0) return a == 1 ? T(1) : a == -1 ? static_cast<T>(b & 1 ? -1 : 1) : T(0);
    Wrapping<T> base = static_cast<Wrapping<T>>(a), out = 1;
    for (Bits<T> n = static_cast<Bits<T>>(b); n != 0; n = static_cast<Bits<T>>(n >> 1)) {
      if (n & 1) out *= base;
      base *= base;
    }
    return static_cast<T>(out);
  }
}


// BOOL: the same of bools, which are then no bytes on the way (x mod 1000, with its tests of signs, had 14
// instructions and has 8).
#define JM_BITWISE(NAME, OP, BOOL)                                                        \
  template <class T>                                                                      \
  JM_DEVICE T op_##NAME(T a, T b) {                                                       \
    if constexpr (is_bool<T>) return a BOOL b;                                            \
    else return static_cast<T>(a OP b);                                                   \
  }
JM_BITWISE(and, &, &&)
JM_BITWISE(or, |, ||)
JM_BITWISE(xor, ^, !=)
#undef JM_BITWISE

template <class T>
JM_DEVICE T op_not(T x) {
  if constexpr (is_bool<T>) return !x;
  else return static_cast<T>(~x);
}

template <class T>
JM_DEVICE T op_shift_left(T x, T n) {
  const Bits<T> amount = static_cast<Bits<T>>(n);
  if (amount >= 8 * sizeof(T)) return 0;
  return static_cast<T>(static_cast<Wrapping<T>>(x) << amount);
}

template <class T>
JM_DEVICE T op_shift_right_logical(T x, T n) {
  const Bits<T> amount = static_cast<Bits<T>>(n);
  if (amount >= 8 * sizeof(T)) return 0;
  return static_cast<T>(static_cast<Bits<T>>(x) >> amount);
}

template <class T>
JM_DEVICE T op_shift_right_arithmetic(T x, T n) {
  const Bits<T> amount = static_cast<Bits<T>>(n), most = 8 * sizeof(T) - 1;
  const int shift = static_cast<int>(amount < most ? amount : most);
  const Bits<T> bits = static_cast<Bits<T>>(x);
  // For unsigned T too the top bit is copied.
  const Bits<T> flip = bits & SIGN_BIT<T> ? static_cast<Bits<T>>(~Bits<T>(0)) : Bits<T>(0);
  return static_cast<T>(static_cast<Bits<T>>(static_cast<Bits<T>>(bits ^ flip) >> shift) ^ flip);
}

template <class T>
JM_DEVICE T op_popcnt(T x) {
  const uint64_t bits = static_cast<uint64_t>(static_cast<Bits<T>>(x));
#ifdef JAXMONO_EMULATE
  return static_cast<T>(__builtin_popcountll(bits));
#else
  if constexpr (sizeof(T) <= 4) return static_cast<T>(__popc(static_cast<unsigned>(bits)));
  else return static_cast<T>(__popcll(bits));
#endif
}

template <class T>
JM_DEVICE T op_count_leading_zeros(T x) {
  const uint64_t bits = static_cast<uint64_t>(static_cast<Bits<T>>(x));
#ifdef JAXMONO_EMULATE
  const int zeros = bits == 0 ? 64 : __builtin_clzll(bits);
#else
  const int zeros = __clzll(static_cast<long long>(bits));
#endif
  return static_cast<T>(zeros - (64 - 8 * static_cast<int>(sizeof(T))));
}

}  // namespace jaxmono
