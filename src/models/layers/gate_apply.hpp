// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "headgate/attention.hpp"
#include "models/layers/arguments.hpp"

// Computes gates outside the attention kernels: gates on projections, on the layer's output, and gates shared by all
// heads.

namespace headgate::layers {

// Conventions of the functions below: `fn` must not be GateFn::none. The logits z(N,H,F) have F = D features, or F = 1
// for one gate per head. Strides of 0 may broadcast z over tokens or heads.

/// The function g of a gate, and the operation (mul or add) that combines g(z) with the gated tensor.
struct GateRule {
  GateFn fn;
  GateOp op;
};

/// Computes g(N,H,F) = fn(z).
template <typename T>
void gate_values(View<T, 3> g, ConstView<T, 3> z, GateFn fn, const ExecutionContext& context);

/// Applies a gate to u: the result is u ∘ g(z) for GateOp::mul, and u + g(z) for GateOp::add. Sets y(N,H,D) to the
/// result or adds the result to y, as `update` selects. y may be u. If u and z are bf16, y may be f32.
template <typename Y, typename T = Y>
void gate_apply(View<Y, 3> y, ConstView<T, 3> u, ConstView<T, 3> z, const GateRule& rule, Update update,
                const ExecutionContext& context);

/// Computes the gradients du(N,H,D) and dz(N,H,F) from dy(N,H,D). du may be dy.
/// - mul: du = dy ∘ g(z), dz = dy ∘ u ∘ g′(z).
/// - add: du = dy, dz = dy ∘ g′(z).
/// If F = 1, dz is summed over D. Even if z is broadcast, dz has its own numbers for every token and head.
template <typename T>
void gate_apply_backward(View<T, 3> du, View<T, 3> dz, ConstView<T, 3> dy, ConstView<T, 3> u, ConstView<T, 3> z,
                         const GateRule& rule, const ExecutionContext& context);

/// Computes g(N,D) = mean over heads of g(z(N,H,D)).
template <typename T>
void shared_gate(View<T, 2> g, ConstView<T, 3> z, GateFn fn, const ExecutionContext& context);

/// Computes dz(N,H,D), the gradient of the logits, from dg(N,H,D). Row h of dg is head h's part of the shared gate's
/// gradient.
/// dz(n,h,d) = g′(z(n,h,d)) / H · Σ_h' dg(n,h',d). dz may be dg.
template <typename T>
void shared_gate_backward(View<T, 3> dz, ConstView<T, 3> dg, ConstView<T, 3> z, GateFn fn,
                          const ExecutionContext& context);

/// Adds the bias b(W) to each row of x(N,W).
template <typename T>
void add_bias(View<T, 2> x, ConstView<Wide<T>, 1> b, const ExecutionContext& context);

/// Adds the column sums of dx(N,W) to db(W): db(w) += Σ_n dx(n,w). Sums in f64 in the order of n.
template <typename W, typename T = W>
void add_column_sums(View<W, 1> db, ConstView<T, 2> dx, const ExecutionContext& context);

}  // namespace headgate::layers
