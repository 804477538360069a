// Element types and conversions with XLA's semantics.
//
//   bf16, f16             two bytes; values are computed in float
//   f8e4m3, f8e5m2        one byte, the same (conversions in f8.cuh)
//   to_float(x)           any element type to float
//   from_float<T>(f)      float to any element type: `convert`
//   convert<To>(x)        float -> integer truncates, saturates, NaN gives 0; -> bool is x != 0;
//                         integers wrap; -> bf16 / f16 rounds to nearest even, NaN stays NaN
//   bitcast<To>(x)        same bits, same size
#pragma once
#include "jaxmono/elements.cuh"
#include "jaxmono/f8.cuh"
#include "jaxmono/to_integer.cuh"

namespace jaxmono {

template <class To, class From>
JM_DEVICE To convert(From x) {
  if constexpr (is_same<To, From>) {
    return x;
  } else if constexpr (is_same<From, bf16>) {
    return convert<To>(bf16_to_float(x.bits));
  } else if constexpr (is_same<From, f16>) {
    return convert<To>(f16_to_float(x.bits));
  } else if constexpr (is_f8<From>) {
    return convert<To>(f8_to_float(x));
  } else if constexpr (is_f8<To>) {
    if constexpr (is_same<From, double>) return double_to_f8<To>(x);
    else return float_to_f8<To>(static_cast<float>(x));
  } else if constexpr (is_same<To, bf16>) {
    return bf16{float_to_bf16(static_cast<float>(x))};  // f64 goes through f32, as in XLA
  } else if constexpr (is_same<To, f16>) {
    if constexpr (is_same<From, double>) return f16{double_to_f16(x)};
    else return f16{float_to_f16(static_cast<float>(x))};
  } else if constexpr (is_bool<To>) {
    return x != static_cast<From>(0);
  } else if constexpr (is_wide_float<From> && is_integer<To>) {
    return truncated<To>(x);
  } else {
    return static_cast<To>(x);
  }
}

template <class T>
JM_DEVICE float to_float(T x) {
  return convert<float>(x);
}
template <class T>
JM_DEVICE T from_float(float x) {
  return convert<T>(x);
}

}  // namespace jaxmono
