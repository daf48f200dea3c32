// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "library/core/view.hpp"

// Computes the effective rank of a product of two thin matrices from their Gram matrices. The X-ray applies it to W_v
// W_o of a head, and to the head's contribution to the residual stream.

namespace headgate::xray {

/// A symmetric matrix (n,n), row-major.
struct Gram {
  std::int64_t n = 0;
  std::vector<double> values;

  /// Adds a Gram matrix of the same size, for instance of further rows of x.
  void add(const Gram& other) {
    for (std::size_t i = 0; i < values.size(); ++i) values[i] += other.values[i];
  }
};

/// Computes x xᵀ of x(n,m).
Gram gram_of_rows(View<const float, 2> x);
/// Computes xᵀ x of x(m,n).
Gram gram_of_columns(View<const float, 2> x);

/// Returns the n largest singular values of a bᵀ, in descending order, from aᵀa and bᵀb, both (n,n). All others are 0.
/// Values below 1e-7 of the largest are lost in rounding. Returns NaN if an input is not finite or the eigenvalue
/// solver does not converge.
std::vector<double> singular_values(const Gram& a, const Gram& b);

/// Returns the effective rank e^H, where H is the entropy of σ/Σσ: 1 for one nonzero σ, n for n equal ones, 0 if all
/// are 0. Source: Roy and Vetterli, The effective rank, 2007.
double effective_rank(const std::vector<double>& singular_values);

}  // namespace headgate::xray
