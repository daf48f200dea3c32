// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <vector>

#include "headgate/attention.hpp"
#include "verify/oracle/gates.hpp"

// Reference for the kernels: gated attention in f64, forward and backward, by plain loops over materialised softmax
// rows. Arguments are assumed to be valid (attention_forward and attention_backward check them). Any dtype and any
// strides are accepted. Results are contiguous. Hidden keys are never read.

namespace headgate::reference {

struct ForwardArrays {
  std::vector<double> y;        // (B,Hq,T,Dv)
  std::vector<double> attn;     // (B,Hq,T,Dv)  o, the attention output before the gate
  std::vector<double> lse;      // (B,Hq,T)
  std::vector<double> weights;  // (B,Hq,T,S)
};

/// Outputs of the forward pass and their error bounds.
///
/// `magnitude` bounds the effect of rounding on each element: the sum of the absolute values of its terms, times 1 + A.
/// A bounds the sum of the absolute terms of the row's logits, because a logit's absolute error is a relative error of
/// its weight. `magnitude` times a small count of unit roundoffs is the error bound of docs/reference/numerics.md.
///
/// `inherited` is the change of an element, per unit roundoff of bf16, when native16 rounds the factors of its products
/// to bf16.
struct Forward : ForwardArrays {
  ForwardArrays magnitude;
  ForwardArrays inherited;
};

/// Gradients in the shapes of their inputs; empty if the input is absent.
struct BackwardArrays {
  std::vector<double> dq;      // (B,Hq,T,D)
  std::vector<double> dk;      // (B,Hkv,S,D)
  std::vector<double> dv;      // (B,Hkv,S,Dv)
  std::vector<double> dgate;   // (B,Hq,T,1|Dv)
  std::vector<double> dbias;   // same shape as bias
  std::vector<double> dsinks;  // (Hq)
};

/// Gradients and their error bounds.
///
/// `inherited` is the change of an element per unit roundoff of storage. Kernels read y and attn back rounded to the
/// dtype of q, and native16 rounds the factors of its products. `like_terms` is what the roundings of nearly equal
/// terms add up to, per unit roundoff of the compute type; 0 if all terms differ.
struct Backward : BackwardArrays {
  BackwardArrays magnitude;
  BackwardArrays inherited;
  BackwardArrays like_terms;
};

/// Computes the forward pass. `first_sequence` is the index of batch 0 among the sequences of the call, from which its
/// dropout mask is derived.
Forward forward(const AttentionInputs& inputs, const AttentionOptions& options, std::int64_t first_sequence = 0);

/// Returns S, the number of columns of weights.
inline std::int64_t key_columns(const AttentionInputs& in) {
  return in.block_table.present() ? in.block_table.shape[3] * in.k.shape[2] : in.k.shape[2];
}

/// Computes row i of head h in batch b alone: y and attn (Dv), lse (1), weights (S). Packed batches are not supported.
Forward forward_row(const AttentionInputs& inputs, const AttentionOptions& options, std::int64_t b, std::int64_t h,
                    std::int64_t i);

/// Returns the gradients of Σ dy∘y + Σ dlse·lse, computed from the inputs alone.
Backward backward(const AttentionInputs& inputs, const AttentionIncoming& incoming, const AttentionOptions& options,
                  std::int64_t first_sequence = 0);

/// g(z), g′(z) and g′(z)/g(z) of a gate function; 1, 0 and 0 for GateFn::none.
using GateValue = GateTerms<double>;
GateValue gate_value(GateFn fn, double z);

/// Returns the magnitude (error bound, see Forward) of g(z) as kernels compute it for inputs of `dtype`.
double gate_magnitude(GateFn fn, double z, DType dtype);
/// Returns the magnitude (error bound, see Forward) of g′(z) as kernels compute it for inputs of `dtype`.
double gate_slope_magnitude(GateFn fn, double z, DType dtype);

}  // namespace headgate::reference
