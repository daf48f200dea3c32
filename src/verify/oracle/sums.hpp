// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>

#include "headgate/tensor.hpp"

namespace headgate::reference {

/// Largest number of keys that a forward pass may sum without dividing them into blocks. It is kNarrowHeadRows, the
/// limit of the kernel of small heads.
inline constexpr std::int64_t kUncutKeys = 512;

/// Smallest factor C of the tolerance rule. The rule permits an error of C times a number's magnitude, in unit
/// roundoffs. To permit an error of x unit roundoffs, the oracle adds x / 8 to the magnitude.
inline constexpr double kLeastConstant = 8.0;

/// Returns the smallest error bound of a weight, in unit roundoffs of the compute type. The bound stands for an error
/// of the smallest normal number, because kernels may return 0 for an exponential below that number.
inline double weight_floor(DType dtype) { return dtype == DType::f64 ? 0x1p-969 : 0x1p-102; }

/// Compensated sum (Neumaier), as accurate as a sum in twice the precision. Plain f64 sums would have errors as large
/// as those of the f64 kernels.
class CompensatedSum {
 public:
  void add(double term) {
    const double next = sum_ + term;
    lost_ += std::abs(sum_) >= std::abs(term) ? (sum_ - next) + term : (term - next) + sum_;
    sum_ = next;
  }
  double value() const { return std::isfinite(lost_) ? sum_ + lost_ : sum_; }  // after an infinite term, lost_ is NaN

 private:
  double sum_ = 0.0;
  double lost_ = 0.0;
};

/// Repeats a kernel's sum, and bounds the rounding errors of terms that nearly equal the previous term.
/// Such terms lose the same low bits, so their errors add up. Errors of other terms partly cancel and are left out.
/// With the unit roundoff u, adding a term has an error of at most
///   min(|term|, u · |partial sum|)
/// bound() is the sum of these errors, divided by u.
class LikeTerms {
 public:
  /// Adds the next term. Kernels add the terms of each `block` starting from zero, then add the sums of the blocks.
  void add(double term, std::int64_t block, double unit_roundoff) {
    if (block != block_) {
      if (like_) bound_ += std::abs(whole_);  // the sums of blocks of nearly equal terms are also nearly equal
      partial_ = 0.0;
      block_ = block;
    }
    partial_ += term;
    whole_ += term;
    const double apart = std::abs(term - last_);
    like_ = apart <= 2.0 * unit_roundoff * std::abs(partial_) && apart <= kAlike * std::abs(term);
    if (like_) bound_ += std::min(std::abs(partial_), std::abs(term) / unit_roundoff);
    last_ = term;
  }

  double bound() const { return bound_; }

 private:
  /// Largest relative difference of two terms that count as nearly equal: their first ten bits agree.
  /// The other limit, 2u · |partial sum|, does not suffice: all terms far below it would count as nearly equal.
  static constexpr double kAlike = 0x1p-10;

  double last_ = std::numeric_limits<double>::quiet_NaN();
  double partial_ = 0.0;
  double whole_ = 0.0;
  double bound_ = 0.0;
  std::int64_t block_ = -1;
  bool like_ = false;
};

}  // namespace headgate::reference
