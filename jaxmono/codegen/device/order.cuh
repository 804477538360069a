// Extrema, selection and comparison. See numeric.cuh for the list.
#pragma once
#include "jaxmono/special.cuh"
#include "jaxmono/types.cuh"

namespace jaxmono {

template <class T>
JM_DEVICE T op_maximum(T a, T b) {
  if constexpr (is_narrow<T>) {
    return convert<T>(op_maximum(convert<float>(a), convert<float>(b)));
#ifndef JAXMONO_EMULATE
  } else if constexpr (is_same<T, float>) {
    float out;
    asm("max.NaN.f32 %0, %1, %2;" : "=f"(out) : "f"(a), "f"(b));
    return out;
#endif
  } else if constexpr (is_wide_float<T>) {
    if (a == b) return bitcast<Bits<T>>(a) & SIGN_BIT<T> ? b : a;
    return a != a || a > b ? a : b;
  } else {
    return a > b ? a : b;
  }
}

template <class T>
JM_DEVICE T op_minimum(T a, T b) {
  if constexpr (is_narrow<T>) {
    return convert<T>(op_minimum(convert<float>(a), convert<float>(b)));
#ifndef JAXMONO_EMULATE
  } else if constexpr (is_same<T, float>) {
    float out;
    asm("min.NaN.f32 %0, %1, %2;" : "=f"(out) : "f"(a), "f"(b));
    return out;
#endif
  } else if constexpr (is_wide_float<T>) {
    if (a == b) return bitcast<Bits<T>>(a) & SIGN_BIT<T> ? a : b;
    return a != a || a < b ? a : b;
  } else {
    return a < b ? a : b;
  }
}

template <class T>
JM_DEVICE T op_clamp(T low, T x, T high) {
  return op_minimum(op_maximum(low, x), high);
}

// The nearest integer of what is limited by whole numbers. NaN is 0.
template <class To>
JM_DEVICE To op_nearest(float x) {
  return nearest<To>(x);
}
template <class To>
JM_DEVICE To op_nearest_from(float x, float low) {
  return nearest<To>(op_maximum(x, low));
}
template <class To>
JM_DEVICE To op_nearest_to(float x, float high) {
  return nearest<To>(op_minimum(x, high));
}
template <class To>
JM_DEVICE To op_nearest_between(float x, float low, float high) {
  return nearest<To>(op_clamp(low, x, high));
}

template <class T>
JM_DEVICE T op_select(bool pred, T on_true, T on_false) {
  return pred ? on_true : on_false;
}

#define JM_COMPARE(NAME, OP)                                                              \
  template <class T>                                                                      \
  JM_DEVICE bool op_compare_##NAME(T a, T b) {                                            \
    if constexpr (is_narrow<T>) return convert<float>(a) OP convert<float>(b);            \
    else return a OP b;                                                                   \
  }
JM_COMPARE(eq, ==)
JM_COMPARE(ne, !=)
JM_COMPARE(lt, <)
JM_COMPARE(le, <=)
JM_COMPARE(gt, >)
JM_COMPARE(ge, >=)
#undef JM_COMPARE

template <class As = void, class T>
JM_DEVICE auto op_total_order(T x) {
  if constexpr (!is_same<As, void> && !is_same<As, T>) {
    return op_total_order(convert<As>(x));
  } else if constexpr (is_float<T>) {
    // Negative numbers order backwards by their magnitude bits.
    const Bits<T> bits = bitcast<Bits<T>>(x);
    using Signed = decltype(signed_of(Bits<T>{}));
    return static_cast<Signed>(bits & SIGN_BIT<T> ? bits ^ static_cast<Bits<T>>(~SIGN_BIT<T>) : bits);
  } else {
    return x;
  }
}

}  // namespace jaxmono
