// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "headgate/attention.hpp"
#include "layers/view.hpp"

// Gates outside the attention kernels: on projections, on the layer's output, and shared over heads.

namespace headgate::layers {

// `fn` is never GateFn::none.

/// g(N,H,D) = g(z).
template <typename T>
void gate_values(T* g, ConstHeadView<T> z, const HeadShape& shape, GateFn fn);

/// y(N,H,D) = u ∘ g(z) (mul) or u + g(z) (add); Store::add: += . z(N,H,F), F = D or 1 (one gate for all features);
/// strides of 0 repeat it over tokens or heads. y may be u itself.
template <typename T>
void gate_forward(HeadView<T> y, ConstHeadView<T> u, ConstHeadView<T> z, const HeadShape& shape,
                  std::int64_t gate_features, GateFn fn, GateOp op, Store store = Store::overwrite);

/// du(N,H,D) = dy ∘ g(z) or dy; dz(N,H,F) = dy ∘ u ∘ g′(z) or dy ∘ g′(z), summed over D when F = 1.
/// du may be dy itself; dz has a place for every token and head, also where z repeats.
template <typename T>
void gate_backward(HeadView<T> du, HeadView<T> dz, ConstHeadView<T> dy, ConstHeadView<T> u, ConstHeadView<T> z,
                   const HeadShape& shape, std::int64_t gate_features, GateFn fn, GateOp op);

/// g(N,D) = mean over heads of g(z(N,H,D)).
template <typename T>
void shared_gate_forward(T* g, ConstHeadView<T> z, const HeadShape& shape, GateFn fn);

/// In place on dz(N,H,D), which comes in as each head's gradient of the shared gate g:
/// dz(n,h,d) = g′(z(n,h,d)) / H · Σ_h' dz(n,h',d).
template <typename T>
void shared_gate_backward(HeadView<T> dz, ConstHeadView<T> z, const HeadShape& shape, GateFn fn);

/// x(N,W) += b(W), rows ldx apart.
template <typename T>
void add_bias(T* x, const T* b, std::int64_t N, std::int64_t W, std::int64_t ldx);

/// db(W) += Σ_n dx(n,·), rows ldx apart; summed in f64 in the order of n.
template <typename T>
void add_column_sums(T* db, const T* dx, std::int64_t N, std::int64_t W, std::int64_t ldx);

}  // namespace headgate::layers
