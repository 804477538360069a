// One function per element-wise op of hlo/ops.py, named op_<kind>, with XLA's semantics. T is any
// element type for which StableHLO has the op; narrower ones compute in float and round once.
//
//   floats     abs add subtract multiply divide remainder power atan2 negate sign square sqrt rsqrt cbrt
//              exponential exponential_minus_one log log_plus_one logistic sine cosine tan asin acos
//              atan sinh cosh tanh asinh acosh atanh erf erfc erf_inv lgamma digamma bessel_i1e zeta
//              polygamma floor ceil round_nearest_afz round_nearest_even is_finite is_inf is_pos_inf
//              is_neg_inf next_after reduce_precision(x, exponent_bits, mantissa_bits) real imag conj
//   integers   abs add subtract multiply divide remainder power negate sign square and or xor not
//              shift_left shift_right_arithmetic shift_right_logical popcnt count_leading_zeros
//   bool       add or maximum: or; multiply and minimum: and; xor subtract: xor; not
//   all        maximum minimum (NaN wins, -0 < +0) clamp(low, x, high) select(pred, a, b)
//              compare_eq _ne _lt _le _gt _ge -> bool; total_order(x) -> an integer that orders as
//              IEEE totalOrder does; total_order<bf16>(float) as a bf16 would
// Corner cases of integers: x / 0 = -1 (all ones), x % 0 = x, MIN / -1 = MIN, MIN % -1 = 0, shifts of
// at least the width give 0 or copies of the sign, sums and products wrap.
#pragma once
#include "jaxmono/arithmetic.cuh"
#include "jaxmono/forms.cuh"
#include "jaxmono/functions.cuh"
#include "jaxmono/order.cuh"
