// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "library/core/view.hpp"

// Computes the effective rank of a product a bᵀ of two tall matrices from their small Gram matrices aᵀa and bᵀb.
// The X-ray computes this rank for W_v W_o of a head, and for a head's contribution to the residual stream.

namespace headgate::xray {

/// A Gram matrix: symmetric, (n,n), row-major.
struct Gram {
  std::int64_t n = 0;
  std::vector<double> values;

  /// Adds another Gram matrix of the same size.
  /// Example: xᵀ x is the sum of the Gram matrices of the upper and the lower half of the rows of x.
  void add(const Gram& other) {
    for (std::size_t i = 0; i < values.size(); ++i) values[i] += other.values[i];
  }
};

/// Returns x xᵀ (n,n) for x (n,m).
Gram gram_of_rows(View<const float, 2> x);
/// Returns xᵀ x (n,n) for x (m,n).
Gram gram_of_columns(View<const float, 2> x);

/// Returns the n largest singular values of a product a bᵀ, in descending order. The product has no other nonzero ones.
/// The arguments are the Gram matrices aᵀa and bᵀb, (n,n).
/// Singular values below 1e-7 of the largest are lost to rounding.
/// Returns NaNs if an input is not finite or the eigenvalue solver does not converge.
std::vector<double> singular_values(const Gram& a, const Gram& b);

/// Returns the effective rank e^H of a matrix, where H is the entropy of its singular values σ divided by Σσ.
/// The effective rank is 1 if one σ is nonzero, n if n are nonzero and equal, and 0 if all are 0.
/// Source: Roy and Vetterli, The effective rank, 2007.
double effective_rank(const std::vector<double>& singular_values);

}  // namespace headgate::xray
