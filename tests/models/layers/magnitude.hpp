// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <random>
#include <type_traits>
#include <vector>

#include "headgate/tensor.hpp"
#include "verify/tolerance.hpp"

// Defines the tolerance of layers and models (docs/reference/numerics.md, "Tolerances of layers and models"). Plain
// formulas over Number give a value and the magnitude that roundings act on. A Tape gives the same for gradients and,
// by jitter, the effect of roundings on results many operations deep. central_difference bounds the error of a
// difference of losses.

namespace headgate::layers {

/// Holds a value computed in f64 with M, the sum of the absolute values of its terms, and n, the number of terms of its
/// sums.
struct Number {
  double value = 0.0;
  double magnitude = 0.0;
  std::int64_t terms = 0;
  std::int64_t node = -1;  ///< index on the tape; −1: a constant

  Number() = default;
  Number(double exact) : value(exact), magnitude(std::abs(exact)) {}  // NOLINT(google-explicit-constructor)
};

/// Records the operations on Numbers while it lives, one tape at a time, and differentiates them in reverse.
class Tape {
 public:
  Tape() { active = this; }
  /// Moves every input and every result by a relative ±jitter, drawn from `seed`, like an evaluation with its own
  /// roundings. A tape that does not record has no gradients but is faster.
  Tape(double jitter, std::uint64_t seed, bool records = true) : jitter_(jitter), records_(records), random_(seed) {
    active = this;
  }
  ~Tape() { active = nullptr; }
  Tape(const Tape&) = delete;
  Tape& operator=(const Tape&) = delete;

  std::vector<Number> inputs(const std::vector<double>& values) {
    std::vector<Number> out(values.begin(), values.end());
    for (Number& x : out) {
      x.value = moved(x.value);
      x.node = records_ ? add({}) : kUnrecorded;
    }
    return out;
  }

  /// Goes from dy, the gradient of a scalar to y, to the gradients of everything that y depends on.
  void differentiate(const std::vector<Number>& y, const std::vector<double>& dy) {
    adjoints_.assign(nodes_.size(), {});
    for (std::size_t i = 0; i < y.size(); ++i) accumulate(y[i].node, dy[i]);
    for (std::size_t node = nodes_.size(); node-- > 0;) {
      const Number& outer = adjoints_[node];
      if (outer.magnitude == 0.0) continue;
      for (const Edge& edge : nodes_[node]) {
        if (edge.parent < 0) continue;
        Number share = moved(outer.value * edge.slope.value);
        share.magnitude = product_magnitude(outer, edge.slope);
        share.terms = std::max(outer.terms, edge.slope.terms);
        accumulate(edge.parent, share);
      }
    }
  }
  /// Returns the gradient of each x; 0 if y does not depend on it.
  std::vector<Number> gradients(const std::vector<Number>& x) const {
    std::vector<Number> out;
    out.reserve(x.size());
    for (const Number& input : x)
      out.push_back(input.node < 0 ? Number() : adjoints_[static_cast<std::size_t>(input.node)]);
    return out;
  }

  /// |a||b| (1 + excess of a + excess of b), where the excess is M over the value: relative errors add up.
  static double product_magnitude(const Number& a, const Number& b) {
    return a.magnitude * std::abs(b.value) + std::abs(a.value) * b.magnitude - std::abs(a.value * b.value);
  }

  /// Returns the result of one or two operands, and records the slope to each.
  static Number result(Number made, const Number& a, const Number& slope_a, const Number& b = {},
                       const Number& slope_b = {}) {
    if (active == nullptr || (a.node < 0 && b.node < 0)) return made;
    made.value = active->moved(made.value);
    made.node = active->records_ ? active->add({Edge{a.node, slope_a}, Edge{b.node, slope_b}}) : kUnrecorded;
    return made;
  }

 private:
  struct Edge {
    std::int64_t parent = -1;
    Number slope;
  };
  using Node = std::array<Edge, 2>;
  static constexpr std::int64_t kUnrecorded = 0;  // not a constant, and not on a tape

  std::int64_t add(const Node& node) {
    nodes_.push_back(node);
    return static_cast<std::int64_t>(nodes_.size()) - 1;
  }
  void accumulate(std::int64_t node, const Number& share) {
    if (node < 0) return;
    Number& sum = adjoints_[static_cast<std::size_t>(node)];
    sum.terms = sum.magnitude == 0.0 ? share.terms : std::max(sum.terms, share.terms) + 1;
    sum.value = moved(sum.value + share.value);
    sum.magnitude += share.magnitude;
  }

  double moved(double x) {
    if (jitter_ == 0.0) return x;
    if (signs_left_ == 0) {
      signs_ = random_();
      signs_left_ = 64;
    }
    const bool up = (signs_ >> --signs_left_ & 1U) != 0;
    return x * (1.0 + (up ? jitter_ : -jitter_));
  }

  inline static thread_local Tape* active = nullptr;
  double jitter_ = 0.0;
  bool records_ = true;
  std::mt19937_64 random_;
  std::uint64_t signs_ = 0;  // one bit a sign
  int signs_left_ = 0;
  std::vector<Node> nodes_;
  std::vector<Number> adjoints_;
};

/// Makes a value with its magnitude and number of terms.
inline Number number(double value, double magnitude, std::int64_t terms) {
  Number out = value;
  out.magnitude = magnitude;
  out.terms = terms;
  return out;
}

inline Number operator+(const Number& a, const Number& b) {
  const std::int64_t terms = std::max(a.terms, b.terms) + 1;
  return Tape::result(number(a.value + b.value, a.magnitude + b.magnitude, terms), a, 1.0, b, 1.0);
}

inline Number operator-(const Number& a) { return Tape::result(number(-a.value, a.magnitude, a.terms), a, -1.0); }

inline Number operator-(const Number& a, const Number& b) { return a + -b; }

inline Number operator*(const Number& a, const Number& b) {
  const std::int64_t terms = std::max(a.terms, b.terms);
  return Tape::result(number(a.value * b.value, Tape::product_magnitude(a, b), terms), a, b, b, a);
}

/// 1/x, to first order in the relative error of x.
inline Number inverse(const Number& x) {
  const double y = 1.0 / x.value;
  const Number made = number(y, std::abs(y) * x.magnitude / std::abs(x.value), x.terms);
  const Number slope = number(-y * y, Tape::product_magnitude(made, made), x.terms);
  return Tape::result(made, x, slope);
}

inline Number operator/(const Number& a, const Number& b) { return a * inverse(b); }

/// An absolute error of x is a relative error of e^x.
inline Number exp(const Number& x) {
  const double y = std::exp(x.value);
  const Number made = number(y, y * (1.0 + x.magnitude), x.terms);
  return Tape::result(made, x, made);
}

/// A relative error of x is an absolute error of log x.
inline Number log(const Number& x) {
  const double excess = x.magnitude / x.value;
  const double y = std::log(x.value);
  return Tape::result(number(y, std::abs(y) + excess, x.terms), x, number(1.0 / x.value, excess / x.value, x.terms));
}

/// An absolute error of x is one of log(1 + x), divided by 1 + x.
inline Number log1p(const Number& x) {
  const double y = std::log1p(x.value), slope = 1.0 / (1.0 + x.value);
  const double excess = x.magnitude * slope;
  return Tape::result(number(y, std::abs(y) + excess, x.terms), x, number(slope, slope * (1.0 + excess), x.terms));
}

/// The root halves relative errors.
inline Number sqrt(const Number& x) {
  const double y = std::sqrt(x.value);
  const double relative = 0.5 * (1.0 + x.magnitude / x.value);
  return Tape::result(number(y, y * relative, x.terms), x, number(0.5 / y, 0.5 / y * relative, x.terms));
}

inline Number& operator+=(Number& a, const Number& b) { return a = a + b; }
inline Number& operator-=(Number& a, const Number& b) { return a = a - b; }
inline bool operator<(const Number& a, const Number& b) { return a.value < b.value; }

inline Number sigmoid(const Number& z) { return inverse(Number(1.0) + exp(-z)); }
inline Number silu(const Number& z) { return z * sigmoid(z); }

template <typename T>
DType dtype_of() {
  static_assert(std::is_same_v<T, float> || std::is_same_v<T, double>);
  return std::is_same_v<T, float> ? DType::f32 : DType::f64;
}

/// Returns how far a result computed in `dtype` may be from x: both were rounded, x in f64.
inline double tolerance_of(DType dtype, const Number& x) {
  const auto rule = [&x](DType compute) {
    return verify::Tolerance::of(compute, compute, x.terms)(x.value, x.magnitude);
  };
  return rule(dtype) + rule(DType::f64);
}

/// Step of the differences, near ∛u: truncation, of order h², and rounding, of order u/h, are then about equal.
inline constexpr double kDifferenceStep = 0x1p-17;

/// A slope from differences, and the bound of its error.
struct Slope {
  double value = 0.0;
  double tolerance = 0.0;
};

/// loss(t) near t = 0, in f64; `at_zero` is loss(0) with its magnitude. With D(h) = (loss(h) − loss(−h)) / 2h:
/// truncation is h² loss‴/6, a third of D(2h) − D(h); each loss is off by its tolerance τ, hence D(h) by τ/h and the
/// third of the difference by half of that.
template <class Loss>
Slope central_difference(const Loss& loss, const Number& at_zero) {
  constexpr double h = kDifferenceStep;
  const auto difference = [&loss](double step) { return (loss(step) - loss(-step)) / (2.0 * step); };
  const double near = difference(h), far = difference(2.0 * h);
  const double tau = tolerance_of(DType::f64, at_zero);
  return {near, std::abs(far - near) / 3.0 + 1.5 * tau / h};
}

}  // namespace headgate::layers
