// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "headgate/attention.hpp"
#include "headgate/statistics.hpp"
#include "library/core/element.hpp"

namespace headgate {

/// Locates one sequence's queries and keys in the tensors. Queries attend only to keys of their own sequence.
struct Sequence {
  std::int64_t b = 0;               ///< batch index in q and other tensors with one row per query
  std::int64_t kb = 0;              ///< batch index in k and other tensors with one row per key; unused if k is paged
  std::int64_t q0 = 0, T = 0;       ///< row of the first query in q; number of queries
  std::int64_t k0 = 0, S = 0;       ///< row of the first key in k; number of keys
  std::int64_t keys = 0;            ///< number of keys that are read; key_lengths hides the keys after them
  std::int64_t first_position = 0;  ///< key position of query 0; query i is at first_position + i
  std::int64_t number = 0;          ///< index of the sequence in the call, and row of the sequence in the block table
};

struct CallReport;

/// Value of window_left or window_right for a side without a limit.
inline constexpr std::int64_t kNoWindow = -1;

/// Holds the checked arguments that forward, backward and statistics calls have in common.
struct Problem {
  std::int64_t B = 0, Hq = 0, Hkv = 0, T = 0, S = 0, D = 0, Dv = 0;
  std::int64_t group = 1;  ///< query heads that share a key/value head: Hq / Hkv
  std::int64_t N = 0;      ///< number of sequences; equal to B unless the batch is packed
  double scale = 1.0;
  double softcap = 0.0;  ///< 0: none
  /// A query at position p sees key j if p − window_left ≤ j ≤ p + window_right. kNoWindow means no limit on that side.
  /// Causality limits window_right to 0.
  std::int64_t window_left = kNoWindow, window_right = kNoWindow;
  GateFn gate_fn = GateFn::none;  ///< GateFn::none if there is no gate
  GateOp gate_op = GateOp::mul;
  bool gate_headwise = false;
  double gate_threshold = 0.0;  ///< if > 0, skips rows whose |g(z)| are all at most this; gate_op must be mul
  Precision precision = Precision::exact;
  double dropout = 0.0;  ///< probability that an attention weight is dropped, in [0, 1)
  std::int64_t dropout_seed = 0;
  std::int64_t key_block_size = 1;  ///< keys per entry of key_indices
  std::int64_t page = 0;            ///< tokens per page of k and v; 0 if there is no block table
  ExecutionContext context;         ///< execution context, with its defaults filled in
  CallReport* report = nullptr;     ///< receives the routes that the backend takes, unless null
  /// The caller's inputs with two changes:
  ///   Broadcast dimensions get their full size and stride 0. bias, key_bias and mask become (B,Hq,T,S), sinks
  ///     (B,Hq,T,1), and key_indices (B,Hkv,T,K).
  ///   gate is absent if gate_fn is none.
  AttentionInputs inputs;
  bool sinks_by_query = false;  ///< true if there is a sink logit per query head and query, false if per query head

  bool packed() const { return inputs.cu_seqlens_q.present(); }
  /// Returns true if keys are packed like queries. In a packed batch with a block table, each sequence has its own
  /// pages instead.
  bool packs_keys() const { return packed() && page == 0; }
  std::int64_t sequences() const { return N; }
  Sequence sequence(std::int64_t n) const {
    Sequence s{.b = n, .kb = n, .T = T, .S = S, .number = n};
    if (packed()) {
      s.b = 0;
      s.q0 = load_index(inputs.cu_seqlens_q, n);
      s.T = load_index(inputs.cu_seqlens_q, n + 1) - s.q0;
    }
    if (packs_keys()) {
      s.kb = 0;
      s.k0 = load_index(inputs.cu_seqlens_k, n);
      s.S = load_index(inputs.cu_seqlens_k, n + 1) - s.k0;
    }
    s.keys = inputs.key_lengths.present() ? load_index(inputs.key_lengths, n) : s.S;
    s.first_position = inputs.query_offsets.present() ? load_index(inputs.query_offsets, n) : end_of_keys(s) - s.T;
    return s;
  }
  /// Returns the key position after the last query, for calls without query_offsets:
  ///   in a packed batch with pages, the sequence's number of keys, because S is the capacity of its block table row;
  ///   otherwise S, even if key_lengths hides the last keys.
  std::int64_t end_of_keys(const Sequence& s) const { return packed() && page > 0 ? s.keys : s.S; }
  /// Returns the ALiBi slope of query head h in sequence n.
  double alibi_slope(std::int64_t n, std::int64_t h) const {
    return load(inputs.alibi_slopes, 0, 0, inputs.alibi_slopes.shape[2] == 1 ? 0 : n, h);
  }
  /// Returns the sink logit of query i of sequence s, in query head h.
  double sink(const Sequence& s, std::int64_t h, std::int64_t i) const {
    return load(inputs.sinks, s.b, h, s.q0 + i, 0);
  }
};

/// Holds the checked arguments of a forward pass. If y is absent, Dv is 0, v has no columns, and gate is absent.
struct ForwardProblem : Problem {
  AttentionOutputs outputs;
};

/// Holds the checked arguments of a backward pass.
struct BackwardProblem : Problem {
  AttentionSaved saved;
  AttentionIncoming incoming;
  AttentionGradients gradients;
};

/// Holds the checked arguments of attention_statistics. There is no v, and no gate unless first_gated is requested.
/// Dv is the last dimension of gate, or 1 without a gate.
struct StatisticsProblem : Problem {
  bool causal = false;  ///< true if queries see the key at their own position, and no later key
  ConstTensorView lse;
  StatisticsSelection selection;
  AttentionStatistics outputs;
};

/// The next functions check the arguments of a call and return them as a problem.
/// If an argument is invalid, they throw Error with the argument's name and values.
/// They read the elements of integer inputs, alibi_slopes and sinks only. check_backward() also reads those of lse.
ForwardProblem check_forward(const AttentionOutputs& outputs, const AttentionInputs& inputs,
                             const AttentionOptions& options);
BackwardProblem check_backward(const AttentionGradients& gradients, const AttentionInputs& inputs,
                               const AttentionSaved& saved, const AttentionIncoming& incoming,
                               const AttentionOptions& options);
StatisticsProblem check_statistics(const AttentionStatistics& outputs, const AttentionInputs& inputs,
                                   const ConstTensorView& lse, const StatisticsSelection& selection,
                                   const AttentionOptions& options);

}  // namespace headgate
