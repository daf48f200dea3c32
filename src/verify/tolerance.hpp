// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>

#include "headgate/tensor.hpp"

// The tolerance rule of docs/reference/numerics.md, "Tolerances".

namespace headgate::verify {

/// Returns the unit roundoff of the dtype: half the distance from 1 to the next larger number.
inline double unit_roundoff(DType dtype) {
  switch (dtype) {
    case DType::f64: return 0x1p-53;
    case DType::f16: return 0x1p-11;
    case DType::bf16: return 0x1p-8;
    default: return 0x1p-24;
  }
}

inline double smallest_subnormal(DType dtype) {
  switch (dtype) {
    case DType::f64: return 0x1p-1074;
    case DType::f16: return 0x1p-24;
    case DType::bf16: return 0x1p-133;
    default: return 0x1p-149;
  }
}

inline double largest_finite(DType dtype) {
  switch (dtype) {
    case DType::f64: return 0x1.fffffffffffffp1023;
    case DType::f16: return 65504.0;
    case DType::bf16: return 0x1.fep127;
    default: return 0x1.fffffep127;
  }
}

/// Returns the type in which the kernels accumulate.
inline DType compute_dtype(DType storage) { return storage == DType::f64 ? DType::f64 : DType::f32; }

/// Error of an element that is allowed for elementary functions and single operations, in unit roundoffs.
constexpr double kFunctionRoundings = 8.0;
/// Error that is allowed for a sum of n terms, in unit roundoffs per √n. The error of a sum grows as √n if the errors
/// of its terms have random signs. If terms are nearly equal, all errors have the same sign: Tolerance::sums is for
/// them.
constexpr double kRoundingsPerRootTerm = 0.5;

struct Tolerance {
  /// Factor of the element's magnitude (error bound): C unit roundoffs of the compute type, C ≥ 8.
  double compute = 0.0;
  /// Constant part: 8 + `terms` smallest subnormals of the compute type, plus one of the output's dtype.
  double underflow = 0.0;
  /// Factor of the inherited error: the unit roundoff of the dtype of q, in which y is saved.
  double saved = 0.0;
  /// Factor of the expected element's absolute value: the unit roundoff of the output's dtype.
  double storage = 0.0;
  /// Factor of the bound for nearly equal terms (LikeTerms): the unit roundoff of the compute type.
  double sums = 0.0;

  /// Returns the tolerance of an element. `q` and `output` are the dtypes of q and of the output.
  /// `terms` is the number of products in the longest chain of dependent sums behind the element.
  static Tolerance of(DType q, DType output, std::int64_t terms) {
    const DType compute = compute_dtype(q);
    const double c = kFunctionRoundings + kRoundingsPerRootTerm * std::sqrt(static_cast<double>(terms));
    // Equal subnormal terms have equal rounding errors, which add up instead of partly cancelling.
    const double steps = kFunctionRoundings + static_cast<double>(terms);
    return {c * unit_roundoff(compute), steps * smallest_subnormal(compute) + smallest_subnormal(output),
            unit_roundoff(q), unit_roundoff(output), unit_roundoff(compute)};
  }

  /// Returns the tolerance of a backward pass that reads a saved lse. The error of lse limits the accuracy of the
  /// weights.
  Tolerance with_saved_lse(DType q, DType lse) const {
    Tolerance t = *this;
    t.compute *= std::max(1.0, unit_roundoff(lse) / unit_roundoff(compute_dtype(q)));
    return t;
  }

  double operator()(double expected, double magnitude, double inherited = 0.0, double like_terms = 0.0) const {
    return compute * magnitude + underflow + saved * inherited + storage * std::abs(expected) + sums * like_terms;
  }
};

/// Returns |actual − expected| as a multiple of the tolerance; results up to 1 are correct. NaN matches only NaN. An
/// infinity matches itself, or an expected value that rounds to an infinity.
inline double error_ratio(double actual, double expected, double tolerance, DType output) {
  if (std::isnan(expected) || std::isnan(actual)) return std::isnan(expected) && std::isnan(actual) ? 0.0 : HUGE_VAL;
  if (actual == expected) return 0.0;
  if (std::isinf(actual)) {
    const double towards = actual > 0 ? expected : -expected;
    return towards + tolerance >= largest_finite(output) ? 0.0 : HUGE_VAL;
  }
  if (std::isinf(expected)) return HUGE_VAL;
  return std::abs(actual - expected) / tolerance;
}

}  // namespace headgate::verify
