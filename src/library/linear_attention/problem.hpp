// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <numeric>

#include "headgate/linear_attention.hpp"
#include "library/linear_attention/token_range.hpp"

namespace headgate {

class Call;

/// The checked arguments that the forward and the backward pass share, in normal form.
struct LinearProblem {
  std::int64_t B = 0, Hq = 0, Hk = 0, Hv = 0, T = 0, D = 0, Dv = 0;
  std::int64_t N = 0;  ///< number of sequences: B, or the sequences of a packed batch (varlen)
  double scale = 1.0;
  bool has_delta = true;         ///< delta rule: whether the state's output for k is subtracted from v
  bool normalises = false;       ///< whether q and k are divided by their L2 norms
  double eps = 0.0;              ///< term added to the sums of squares in the L2 norms
  ExecutionContext context;      ///< resolved()
  LinearAttentionInputs inputs;  ///< beta is broadcast to (B,Hv,T,1) with stride 0

  /// Returns the number of heads of y.
  std::int64_t Ho() const { return Hq > Hv ? Hq : Hv; }
  /// readers() returns the number R of output heads that read one state. query_head() returns the query head of output
  /// head ho, and key_head() the key head of state h.
  std::int64_t readers() const { return Ho() / Hv; }
  std::int64_t query_head(std::int64_t ho) const { return ho / (Ho() / Hq); }
  std::int64_t key_head(std::int64_t h) const { return h / (Hv / Hk); }
  /// groups() returns the number of groups of states, and group_states() the number of states in each. States of
  /// different groups share no head of q or k.
  std::int64_t groups() const { return std::gcd(std::gcd(Hq, Hk), Hv); }
  std::int64_t group_states() const { return Hv / groups(); }

  bool has_decay() const { return inputs.decay.present(); }
  bool decays_by_feature() const { return has_decay() && inputs.decay.shape[3] != 1; }
  TokenRange sequence(std::int64_t n) const { return sequence_of_batch(inputs.cu_seqlens, n, T); }
};

/// The checked arguments of a forward pass. linear_attention_statistics() uses it too: of the outputs it has at most
/// the final state.
struct LinearForwardProblem : LinearProblem {
  LinearAttentionOutputs outputs;
};

/// The checked arguments of a backward pass.
struct LinearBackwardProblem : LinearProblem {
  LinearAttentionIncoming incoming;
  LinearAttentionGradients gradients;
  bool sums_beta = false;  ///< whether all heads share beta, so that dbeta is summed over the heads

  /// Returns whether a requested gradient needs the scans of the transposed states.
  bool needs_key_scans() const {
    return gradients.dq.present() || gradients.dk.present() || gradients.ddecay.present();
  }
};

/// Checks the arguments. Throws Error, which names the argument and its values, if they do not fit together. Reads no
/// tensor data except cu_seqlens.
LinearProblem check_linear_inputs(Call& call, const LinearAttentionInputs& in, const LinearAttentionOptions& options);
LinearForwardProblem check_linear_forward(const LinearAttentionOutputs& outputs, const LinearAttentionInputs& inputs,
                                          const LinearAttentionOptions& options);
LinearBackwardProblem check_linear_backward(const LinearAttentionGradients& gradients,
                                            const LinearAttentionInputs& inputs,
                                            const LinearAttentionIncoming& incoming,
                                            const LinearAttentionOptions& options);

/// Runs the kernel on the context's vector target. Throws only std::bad_alloc, before any output is written, and
/// Cancelled.
void cpu_linear_forward(const LinearForwardProblem& problem);
void cpu_linear_backward(const LinearBackwardProblem& problem);

}  // namespace headgate
