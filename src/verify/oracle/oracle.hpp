// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <vector>

#include "headgate/attention.hpp"
#include "verify/oracle/gates.hpp"

// Gated attention in f64, forward and backward, by plain loops over materialised softmax rows: the reference for the
// kernels. Arguments are assumed to be valid (attention_forward and attention_backward check them); any dtype and any
// strides. Results are contiguous. A hidden key is never read.

namespace headgate::reference {

struct ForwardArrays {
  std::vector<double> y;        // (B,Hq,T,Dv)
  std::vector<double> attn;     // (B,Hq,T,Dv)  o, before the gate
  std::vector<double> lse;      // (B,Hq,T)
  std::vector<double> weights;  // (B,Hq,T,S)
};

/// `magnitude` bounds what rounding can reach in each element: the sum of the absolute values of the terms that make
/// it up, times 1 + A, where A bounds the absolute terms of the row's logits (a logit's absolute error is a relative
/// error of its weight). Multiplied by a small count of unit roundoffs it is the error bound of
/// docs/reference/numerics.md.
///
/// `inherited`: how far an element moves, per unit roundoff of bf16, as native16 rounds what it multiplies.
struct Forward : ForwardArrays {
  ForwardArrays magnitude;
  ForwardArrays inherited;
};

/// Each has the shape of its input; empty where the input is absent.
struct BackwardArrays {
  std::vector<double> dq;      // (B,Hq,T,D)
  std::vector<double> dk;      // (B,Hkv,S,D)
  std::vector<double> dv;      // (B,Hkv,S,Dv)
  std::vector<double> dgate;   // (B,Hq,T,1|Dv)
  std::vector<double> dbias;   // shape of bias
  std::vector<double> dsinks;  // (Hq)
};

/// `inherited`: how far an element moves, per unit roundoff of storage, when y and attn are read back rounded to the
/// dtype of q, as the kernels read them, and as native16 rounds what it multiplies. `like_terms`: what the rounding of
/// terms that are alike adds up to, per unit roundoff of the compute type; 0 where all terms differ.
struct Backward : BackwardArrays {
  BackwardArrays magnitude;
  BackwardArrays inherited;
  BackwardArrays like_terms;
};

/// `first_sequence`: the number of batch 0 among the sequences of a call, by which dropout chooses.
Forward forward(const AttentionInputs& inputs, const AttentionOptions& options, std::int64_t first_sequence = 0);

/// S: the columns of weights.
inline std::int64_t key_columns(const AttentionInputs& in) {
  return in.block_table.present() ? in.block_table.shape[3] * in.k.shape[2] : in.k.shape[2];
}

/// Row i of head h in batch b alone: y and attn (Dv), lse (1), weights (S). Not of a packed batch.
Forward forward_row(const AttentionInputs& inputs, const AttentionOptions& options, std::int64_t b, std::int64_t h,
                    std::int64_t i);

/// Gradients of Σ dy∘y + Σ dlse·lse, from the inputs alone.
Backward backward(const AttentionInputs& inputs, const AttentionIncoming& incoming, const AttentionOptions& options,
                  std::int64_t first_sequence = 0);

/// g(z), g′(z) and their ratio of a gate function; 1, 0 and 0 for none.
using GateValue = GateTerms<double>;
GateValue gate_value(GateFn fn, double z);

/// The magnitude of g(z) that kernels compute for inputs of `dtype`.
double gate_magnitude(GateFn fn, double z, DType dtype);
/// The same of g′(z).
double gate_slope_magnitude(GateFn fn, double z, DType dtype);

}  // namespace headgate::reference
