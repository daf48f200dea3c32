// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "library/core/view.hpp"

// Counts the directions of a product of two thin matrices from their Gram matrices: a head's W_v W_o, and what a head
// writes to the residual stream over a text.

namespace headgate::xray {

/// A symmetric matrix (n,n), row-major.
struct Gram {
  std::int64_t n = 0;
  std::vector<double> values;

  /// Adds a matrix of the same size, as that of other rows of x.
  void add(const Gram& other) {
    for (std::size_t i = 0; i < values.size(); ++i) values[i] += other.values[i];
  }
};

/// Computes x xᵀ of x(n,m).
Gram gram_of_rows(View<const float, 2> x);
/// Computes xᵀ x of x(m,n).
Gram gram_of_columns(View<const float, 2> x);

/// Returns the singular values of a bᵀ, largest first, from aᵀa and bᵀb, both (n,n): n of them, since the others are 0.
/// Values below 1e-7 of the largest are lost in rounding. NaN if an input is not finite, or if LAPACK's iteration does
/// not converge.
std::vector<double> singular_values(const Gram& a, const Gram& b);

/// Returns e^H of σ/Σσ, H the entropy: 1 for a single direction, n for n equal ones; 0 if all are 0. Source: Roy and
/// Vetterli, The effective rank, 2007.
double effective_rank(const std::vector<double>& singular_values);

}  // namespace headgate::xray
