// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <vector>

#include "headgate/attention.hpp"
#include "verify/oracle/gates.hpp"

// Reference for the kernels: gated attention in f64, forward and backward. Uses plain loops over materialised softmax
// rows. Arguments must be valid; they are not checked. Accepts any dtype and any strides. Results are contiguous.
// Hidden keys are never read.

namespace headgate::reference {

struct ForwardArrays {
  std::vector<double> y;          // (B,Hq,T,Dv)
  std::vector<double> attn;       // (B,Hq,T,Dv)  o, the attention output before the gate
  std::vector<double> lse;        // (B,Hq,T)
  std::vector<double> weights;    // (B,Hq,T,S)
  std::vector<double> max_logit;  // (B,Hq,T)
};

/// Outputs of the forward pass and their error bounds.
///
/// `magnitude` times a small number of unit roundoffs bounds the rounding error of each element
/// (docs/reference/numerics.md). It is the sum of the absolute values of the element's terms, times a factor 1 + A.
/// A bounds the sum of the absolute values of the terms of every logit in the row. The factor is needed because an
/// absolute error of a logit becomes a relative error of the logit's weight.
///
/// `inherited` bounds the errors that Precision::native16 adds, in unit roundoffs of bf16. With native16, kernels round
/// the factors of products to bf16.
struct Forward : ForwardArrays {
  ForwardArrays magnitude;
  ForwardArrays inherited;
};

/// Gradients in the shapes of their inputs. A gradient is empty if its input is absent.
struct BackwardArrays {
  std::vector<double> dq;      // (B,Hq,T,D)
  std::vector<double> dk;      // (B,Hkv,S,D)
  std::vector<double> dv;      // (B,Hkv,S,Dv)
  std::vector<double> dgate;   // (B,Hq,T,1|Dv)
  std::vector<double> dbias;   // same shape as bias
  std::vector<double> dsinks;  // same shape as sinks
};

/// Gradients and their error bounds. `magnitude` has the same meaning as in Forward.
///
/// `inherited` bounds the errors due to rounded inputs, in unit roundoffs of the dtype of q. Kernels read the saved y
/// and attn, which are rounded to this dtype. With native16, kernels also round the factors of products.
///
/// `like_terms` bounds the sum of the rounding errors of nearly equal terms (see LikeTerms), in unit roundoffs of the
/// compute type. `like_terms` is 0 if no successive terms are nearly equal.
struct Backward : BackwardArrays {
  BackwardArrays magnitude;
  BackwardArrays inherited;
  BackwardArrays like_terms;
};

/// Computes the forward pass. `first_sequence` is the index that the sequence in batch 0 has in its packed batch.
/// The dropout mask depends on this index.
Forward forward(const AttentionInputs& inputs, const AttentionOptions& options, std::int64_t first_sequence = 0);

/// Returns S, the number of columns of the weights.
inline std::int64_t key_columns(const AttentionInputs& in) {
  return in.block_table.present() ? in.block_table.shape[3] * in.k.shape[2] : in.k.shape[2];
}

/// Computes row i of head h in batch b alone: y and attn (Dv), lse and max_logit (1), weights (S). Packed batches are
/// not supported.
Forward forward_row(const AttentionInputs& inputs, const AttentionOptions& options, std::int64_t b, std::int64_t h,
                    std::int64_t i);

/// Returns the gradients of Σ dy∘y + Σ dlse·lse. Needs only the inputs, no saved outputs.
Backward backward(const AttentionInputs& inputs, const AttentionIncoming& incoming, const AttentionOptions& options,
                  std::int64_t first_sequence = 0);

/// g(z), g′(z) and g′(z)/g(z) of a gate function; 1, 0 and 0 for GateFn::none.
using GateValue = GateTerms<double>;
GateValue gate_value(GateFn fn, double z);

/// Returns the magnitude (error bound, see Forward) of g(z) in kernels whose q has `dtype`.
double gate_magnitude(GateFn fn, double z, DType dtype);
/// Returns the magnitude of the derivative g′(z) in kernels whose q has `dtype`.
double gate_slope_magnitude(GateFn fn, double z, DType dtype);

}  // namespace headgate::reference
