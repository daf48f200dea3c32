// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <numeric>
#include <span>

#include "headgate/linear_attention.hpp"
#include "library/linear_attention/token_range.hpp"

namespace headgate {

class Call;

/// The checked arguments that forward and backward passes have in common.
struct LinearProblem {
  std::int64_t B = 0, Hq = 0, Hk = 0, Hv = 0, T = 0, D = 0, Dv = 0;
  std::int64_t N = 0;  ///< number of sequences: those of a packed batch (varlen), otherwise B
  double scale = 1.0;
  bool has_delta = true;  ///< whether the rule has a delta: it writes u = β (v − e^g Sᵀ k) to the state instead of v
  bool normalises = false;                 ///< whether q and k are divided by their L2 norms
  double eps = 0.0;                        ///< eps in the L2 norms √(Σ x² + eps)
  Precision precision = Precision::exact;  ///< native16 permits products of bf16 numbers
  ExecutionContext context;                ///< resolved()
  LinearAttentionInputs inputs;            ///< beta has stride 0 between heads if all heads share it

  /// Returns the number of heads of y.
  std::int64_t Ho() const { return Hq > Hv ? Hq : Hv; }
  /// heads_per_state() returns R, the number of output heads that read one state. query_head() returns the query head
  /// of output head ho. key_head() returns the key head of state h.
  std::int64_t heads_per_state() const { return Ho() / Hv; }
  std::int64_t query_head(std::int64_t ho) const { return ho / (Ho() / Hq); }
  std::int64_t key_head(std::int64_t h) const { return h / (Hv / Hk); }
  /// A group is a set of consecutive states that share no head of q or k with states outside the group. groups()
  /// returns the number of groups. group_states() returns the number of states in each group.
  std::int64_t groups() const { return std::gcd(std::gcd(Hq, Hk), Hv); }
  std::int64_t group_states() const { return Hv / groups(); }

  bool has_decay() const { return inputs.decay.present(); }
  bool decays_by_feature() const { return has_decay() && inputs.decay.shape[3] != 1; }
  TokenRange sequence(std::int64_t n) const { return sequence_of_batch(inputs.cu_seqlens, n, T); }
};

/// The checked arguments of a forward pass. linear_attention_statistics() also runs a forward pass, whose only output
/// is the final state.
struct LinearForwardProblem : LinearProblem {
  LinearAttentionOutputs outputs;

  /// Returns M, the number of snapshots of each sequence.
  std::int64_t snapshots() const { return snapshots_of(inputs.snapshot_lengths); }
};

/// The checked arguments of a backward pass.
struct LinearBackwardProblem : LinearProblem {
  LinearAttentionIncoming incoming;
  LinearAttentionGradients gradients;
  bool sums_beta = false;  ///< whether all heads share beta; dbeta is then summed over the heads
  /// Indices of the sequences that the kernel computes. If empty, the kernel computes all N sequences.
  std::span<const std::int64_t> chosen = {};

  /// chosen_count() returns the number of sequences that the kernel computes. chosen_sequence(n) returns the tokens of
  /// the n-th of these sequences.
  std::int64_t chosen_count() const { return chosen.empty() ? N : static_cast<std::int64_t>(chosen.size()); }
  TokenRange chosen_sequence(std::int64_t n) const {
    return sequence(chosen.empty() ? n : chosen[static_cast<std::size_t>(n)]);
  }

  /// Returns whether a requested gradient needs scans 3 and 4 of the backward pass (cpu/backward_kernel.cc).
  bool needs_key_scans() const {
    return gradients.dq.present() || gradients.dk.present() || gradients.ddecay.present();
  }
};

/// These functions check the arguments and return them as a problem. They throw Error, with names and values, if
/// arguments are invalid or do not fit together. They read no tensor data except cu_seqlens and snapshot_lengths. Only
/// check_linear_forward() permits snapshot_lengths; the others refuse them.
LinearProblem check_linear_inputs(Call& call, const LinearAttentionInputs& in, const LinearAttentionOptions& options);
LinearForwardProblem check_linear_forward(const LinearAttentionOutputs& outputs, const LinearAttentionInputs& inputs,
                                          const LinearAttentionOptions& options);
LinearBackwardProblem check_linear_backward(const LinearAttentionGradients& gradients,
                                            const LinearAttentionInputs& inputs,
                                            const LinearAttentionIncoming& incoming,
                                            const LinearAttentionOptions& options);

/// Runs the kernel on the context's vector target. Throws Cancelled. Throws std::bad_alloc before any output is
/// written.
void cpu_linear_forward(const LinearForwardProblem& problem);
void cpu_linear_backward(const LinearBackwardProblem& problem);

}  // namespace headgate
