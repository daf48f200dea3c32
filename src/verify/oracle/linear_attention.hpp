// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <vector>

#include "headgate/linear_attention.hpp"

// Reference for the kernels: gated linear attention in f64, forward and backward. Runs the plain recurrence and its
// transpose, one token at a time. Arguments must be valid; they are not checked. Accepts any dtype and any strides.
// Results are contiguous.

namespace headgate::reference {

struct LinearForwardArrays {
  std::vector<double> y;          // (B,Ho,T,Dv)
  std::vector<double> state;      // (N,Hv,D,Dv)
  std::vector<double> snapshots;  // (N·M,Hv,D,Dv); empty without snapshot_lengths
};

/// Outputs of the forward pass and their error bounds. `magnitude` times a small number of unit roundoffs bounds the
/// rounding error of each element (docs/reference/numerics.md). linear_attention.cc explains the magnitudes of the
/// state.
struct LinearForward : LinearForwardArrays {
  LinearForwardArrays magnitude;
  /// Bounds the errors that native16 adds by rounding factors of products to bf16, in unit roundoffs of bf16. Empty for
  /// `exact`.
  LinearForwardArrays rounded;
};

/// Gradients in the shapes of their inputs. ddecay and dbeta are empty if that input is absent.
struct LinearBackwardArrays {
  std::vector<double> dq;      // (B,Hq,T,D)
  std::vector<double> dk;      // (B,Hk,T,D)
  std::vector<double> dv;      // (B,Hv,T,Dv)
  std::vector<double> ddecay;  // (B,Hv,T,1|D)
  std::vector<double> dbeta;   // (B,Hv|1,T,1)
  std::vector<double> dstate;  // (N,Hv,D,Dv)
};

struct LinearBackward : LinearBackwardArrays {
  LinearBackwardArrays magnitude;
  LinearBackwardArrays rounded;  ///< see LinearForward
};

/// Returns N, the number of sequences; each has one state per head of v.
inline std::int64_t linear_sequences(const LinearAttentionInputs& in) {
  return in.cu_seqlens.present() ? in.cu_seqlens.shape[3] - 1 : in.q.shape[0];
}

LinearForward linear_forward(const LinearAttentionInputs& inputs, const LinearAttentionOptions& options);

/// Returns the gradients of Σ dy∘y + Σ dstate∘S_T, where S_T is the final state. Needs only the inputs, no saved
/// outputs.
LinearBackward linear_backward(const LinearAttentionInputs& inputs, const LinearAttentionIncoming& incoming,
                               const LinearAttentionOptions& options);

}  // namespace headgate::reference
