// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <numeric>

#include "headgate/linear_attention.hpp"
#include "library/linear_attention/token_range.hpp"

namespace headgate {

class Call;

/// The arguments that both passes share, checked and in normal form.
struct LinearProblem {
  std::int64_t B = 0, Hq = 0, Hk = 0, Hv = 0, T = 0, D = 0, Dv = 0;
  std::int64_t N = 0;  ///< sequences: B, or those of a packed batch
  double scale = 1.0;
  bool has_delta = true;         ///< whether what the state returns for k is taken off v
  bool normalises = false;       ///< whether q and k are divided by their L2 norms
  double eps = 0.0;              ///< of the norms
  ExecutionContext context;      ///< resolved()
  LinearAttentionInputs inputs;  ///< beta stretched to (B,Hv,T,1) by stride 0

  /// Heads of y.
  std::int64_t Ho() const { return Hq > Hv ? Hq : Hv; }
  /// Heads of q and y that read one state, and states that one query head or one key head reads.
  std::int64_t readers() const { return Ho() / Hv; }
  std::int64_t query_head(std::int64_t ho) const { return ho / (Ho() / Hq); }
  std::int64_t key_head(std::int64_t h) const { return h / (Hv / Hk); }
  /// Groups of states that share no head of q or k with one another, and the states of each.
  std::int64_t groups() const { return std::gcd(std::gcd(Hq, Hk), Hv); }
  std::int64_t group_states() const { return Hv / groups(); }

  bool has_decay() const { return inputs.decay.present(); }
  bool decays_by_feature() const { return has_decay() && inputs.decay.shape[3] != 1; }
  TokenRange sequence(std::int64_t n) const { return sequence_of_batch(inputs.cu_seqlens, n, T); }
};

/// All that a forward pass reads and writes. Without y, for which the statistics have no use, it leaves the state.
struct LinearForwardProblem : LinearProblem {
  LinearAttentionOutputs outputs;
};

/// All that a backward pass reads and writes.
struct LinearBackwardProblem : LinearProblem {
  LinearAttentionIncoming incoming;
  LinearAttentionGradients gradients;
  bool sums_beta = false;  ///< whether all heads share beta, so that dbeta is their sum

  /// Whether a gradient is asked for that only scans of the transposed states give.
  bool needs_key_scans() const {
    return gradients.dq.present() || gradients.dk.present() || gradients.ddecay.present();
  }
};

/// Throws Error, naming the argument and the values, unless the arguments fit together. Reads cu_seqlens, and no other
/// tensor data.
LinearProblem check_linear_inputs(Call& call, const LinearAttentionInputs& in, const LinearAttentionOptions& options);
LinearForwardProblem check_linear_forward(const LinearAttentionOutputs& outputs, const LinearAttentionInputs& inputs,
                                          const LinearAttentionOptions& options);
LinearBackwardProblem check_linear_backward(const LinearAttentionGradients& gradients,
                                            const LinearAttentionInputs& inputs,
                                            const LinearAttentionIncoming& incoming,
                                            const LinearAttentionOptions& options);

/// Kernels run on the context's vector target. They throw nothing but std::bad_alloc, before any output is written, and
/// Cancelled.
void cpu_linear_forward(const LinearForwardProblem& problem);
void cpu_linear_backward(const LinearBackwardProblem& problem);

}  // namespace headgate
