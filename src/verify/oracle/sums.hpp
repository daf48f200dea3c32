// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>

namespace headgate::reference {

/// Compensated sum (Neumaier), as accurate as a sum in twice the precision. Plain f64 sums would err as much as the f64
/// kernels.
class CompensatedSum {
 public:
  void add(double term) {
    const double next = sum_ + term;
    lost_ += std::abs(sum_) >= std::abs(term) ? (sum_ - next) + term : (term - next) + sum_;
    sum_ = next;
  }
  double value() const { return std::isfinite(lost_) ? sum_ + lost_ : sum_; }  // an infinite term makes lost_ NaN

 private:
  double sum_ = 0.0;
  double lost_ = 0.0;
};

/// Repeats a kernel's sum term by term and bounds the rounding errors that its like (nearly equal) terms can add up to.
///
/// An addition errs by at most u times its partial sum, and by no more than the term. It loses the term's bits below
/// the spacing of numbers at the partial sum. Terms that agree in those bits lose the same amount, so their errors add
/// up in full; errors of other terms partly cancel. The bound is the sum, in units of u, of all partial sums at which a
/// term is like the previous term.
class LikeTerms {
 public:
  /// Adds the next term, which belongs to `block`. The terms of a block are added from zero, then the blocks are added.
  void add(double term, std::int64_t block, double unit_roundoff) {
    if (block != block_) {
      if (like_) bound_ += std::abs(whole_);  // sums of blocks of like terms are like terms too
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
  /// Largest relative difference of like terms: they agree in ten bits. Terms far below the spacing at the partial sum
  /// could otherwise count as like by chance.
  static constexpr double kAlike = 0x1p-10;

  double last_ = std::numeric_limits<double>::quiet_NaN();
  double partial_ = 0.0;
  double whole_ = 0.0;
  double bound_ = 0.0;
  std::int64_t block_ = -1;
  bool like_ = false;
};

}  // namespace headgate::reference
