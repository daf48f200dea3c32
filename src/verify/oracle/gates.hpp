// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cmath>
#include <optional>

#include "headgate/attention.hpp"

// Gate functions of the oracle. R is a real type, or a type that also tracks errors or derivatives. exp and log1p of R
// are found by argument-dependent lookup.

namespace headgate::reference {

/// Returns σ(z) = 1 / (1 + e^−z) with a small relative error for every z. For 1 − σ(z), use sigmoid(−z), which avoids
/// cancellation.
template <typename R>
R sigmoid(const R& z) {
  using std::exp;
  return R{1.0} / (R{1.0} + exp(-z));
}

/// Returns log(1 + eᶻ) without overflow or cancellation.
template <typename R>
R softplus(const R& z) {
  using std::exp, std::log1p;
  return z < R{0.0} ? log1p(exp(z)) : z + log1p(exp(-z));
}

template <typename R>
struct GateTerms {
  R value;                 ///< g(z)
  R slope;                 ///< g′(z)
  std::optional<R> ratio;  ///< g′(z)/g(z); empty for functions that can be 0
};

template <typename R>
GateTerms<R> gate_terms(GateFn fn, const R& z) {
  const R minus = -z, s = sigmoid(z), c = sigmoid(minus);  // c = 1 − s
  switch (fn) {
    case GateFn::none: break;
    case GateFn::sigmoid: return {s, s * c, c};
    case GateFn::sigmoid2: return {R{2.0} * s, R{2.0} * s * c, c};
    case GateFn::ns_sigmoid: return {R{0.5} + R{0.5} * s, R{0.5} * s * c, s * c / (R{1.0} + s)};
    case GateFn::silu: return {z * s, s * (R{1.0} + z * c), {}};
    // Far below 0, softplus and σ both underflow, and their ratio tends to 1.
    case GateFn::softplus: return {softplus(z), s, z < R{-700.0} ? R{1.0} : s / softplus(z)};
    case GateFn::identity: return {z, R{1.0}, {}};
  }
  return {R{1.0}, R{0.0}, R{0.0}};
}

}  // namespace headgate::reference
