// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "models/layers/arguments.hpp"

namespace headgate::layers {

struct AdamWOptions {
  double lr = 1e-3;
  double beta1 = 0.9;
  double beta2 = 0.95;
  double eps = 1e-8;
  double weight_decay = 0.0;    ///< decoupled weight decay: w −= lr · weight_decay · w
  double gradient_scale = 1.0;  ///< factor of g, for gradient clipping or accumulation
  std::int64_t step = 1;        ///< number of the step, from 1; the bias corrections are 1 − βᵗ
};

/// Updates parameters w(n) and moments m(n), v(n) in place from gradients g(n), in step number t. All are dense.
///   m = β₁m + (1 − β₁)g
///   v = β₂v + (1 − β₂)g²
///   w −= lr·(m/(1 − β₁ᵗ) / (√(v/(1 − β₂ᵗ)) + eps) + weight_decay·w)
template <typename T>
void adamw_step(View<T, 1> w, View<T, 1> m, View<T, 1> v, ConstView<T, 1> g, const AdamWOptions& options,
                const ExecutionContext& context);

/// Returns Σ x² of dense x(n), summed in f64. The result is bitwise identical at any number of threads. NaN and ∞
/// propagate.
template <typename T>
double squared_norm(const View<const T, 1>& x, const ExecutionContext& context);

}  // namespace headgate::layers
