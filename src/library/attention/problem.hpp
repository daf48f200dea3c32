// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "headgate/attention.hpp"
#include "headgate/statistics.hpp"
#include "library/core/element.hpp"

namespace headgate {

/// Queries and keys that attend to each other, as ranges of rows of the tensors.
struct Sequence {
  std::int64_t b = 0;               ///< batch index in tensors with a row per query
  std::int64_t kb = 0;              ///< batch index in tensors with a row per key, if these are not paged
  std::int64_t q0 = 0, T = 0;       ///< first query row, and number of queries
  std::int64_t k0 = 0, S = 0;       ///< first key row, and number of keys
  std::int64_t keys = 0;            ///< number of keys that are visible and read, from the first on
  std::int64_t first_position = 0;  ///< query i stands at key position first_position + i
  std::int64_t number = 0;          ///< index among the call's sequences, and row of the block table
};

struct CallReport;

/// Value of window_left or window_right for a side without a limit.
inline constexpr std::int64_t kNoWindow = -1;

/// Arguments that both passes share, checked and normalised.
struct Problem {
  std::int64_t B = 0, Hq = 0, Hkv = 0, T = 0, S = 0, D = 0, Dv = 0;
  std::int64_t group = 1;  ///< Hq / Hkv
  std::int64_t N = 0;      ///< number of sequences: B, or the number of sequences in a packed batch
  double scale = 1.0;
  double softcap = 0.0;  ///< 0: none
  /// Key j is visible to a query at position `at` iff at − window_left ≤ j ≤ at + window_right. kNoWindow means no
  /// limit. Causality is included in window_right.
  std::int64_t window_left = kNoWindow, window_right = kNoWindow;
  GateFn gate_fn = GateFn::none;  ///< none if there is no gate
  GateOp gate_op = GateOp::mul;
  bool gate_headwise = false;
  double gate_threshold = 0.0;  ///< if > 0, rows with gates of at most this magnitude are skipped; the gate multiplies
  Precision precision = Precision::exact;
  double dropout = 0.0;  ///< probability of dropping a weight, in [0, 1)
  std::int64_t dropout_seed = 0;
  std::int64_t key_block_size = 1;  ///< keys per entry of key_indices
  std::int64_t page = 0;            ///< tokens per page of k and v, if a block table orders pages; 0: not paged
  ExecutionContext context;         ///< the context with its defaults resolved
  CallReport* report = nullptr;     ///< receives the backend's report, unless null
  /// The inputs as given, with two changes. By stride 0, bias, key_bias and mask are broadcast to (B,Hq,T,S), sinks
  /// to (B,Hq,T,1) and key_indices to (B,Hkv,T,K). gate is absent if gate_fn is none.
  AttentionInputs inputs;
  bool sinks_by_query = false;  ///< true if sinks are given for each query, false if for each head

  bool packed() const { return inputs.cu_seqlens_q.present(); }
  /// Returns true if the keys of a packed batch are packed like its queries. Otherwise each sequence has its own pages.
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
  /// Returns the key position after the last query, unless query_offsets are given. This is S, whether or not the last
  /// keys are hidden. In a packed batch over pages, S is the room for the longest sequence, so the result is the number
  /// of keys present.
  std::int64_t end_of_keys(const Sequence& s) const { return packed() && page > 0 ? s.keys : s.S; }
  /// Returns the ALiBi slope of query head h in sequence n.
  double alibi_slope(std::int64_t n, std::int64_t h) const {
    return load(inputs.alibi_slopes, 0, 0, inputs.alibi_slopes.shape[2] == 1 ? 0 : n, h);
  }
  /// Returns the sink logit of query i of a sequence in head h.
  double sink(const Sequence& s, std::int64_t h, std::int64_t i) const {
    return load(inputs.sinks, s.b, h, s.q0 + i, 0);
  }
};

/// Checked arguments of a forward pass. If y is absent, Dv is 0, v has no columns and gate is absent.
struct ForwardProblem : Problem {
  AttentionOutputs outputs;
};

/// Checked arguments of a backward pass.
struct BackwardProblem : Problem {
  AttentionSaved saved;
  AttentionIncoming incoming;
  AttentionGradients gradients;
};

/// Checked arguments of attention_statistics. v is absent, and so is gate unless first_gated is requested. Dv is the
/// gate's last dimension, or 1.
struct StatisticsProblem : Problem {
  bool causal = false;  ///< true if queries see no later key, but may see the key at their own position
  ConstTensorView lse;
  StatisticsSelection selection;
  AttentionStatistics outputs;
};

/// Check the arguments and return the problem. Throw Error, naming the argument and the values, unless the arguments
/// fit together. Only integer inputs, alibi_slopes and sinks are read, and lse by check_backward.
ForwardProblem check_forward(const AttentionOutputs& outputs, const AttentionInputs& inputs,
                             const AttentionOptions& options);
BackwardProblem check_backward(const AttentionGradients& gradients, const AttentionInputs& inputs,
                               const AttentionSaved& saved, const AttentionIncoming& incoming,
                               const AttentionOptions& options);
StatisticsProblem check_statistics(const AttentionStatistics& outputs, const AttentionInputs& inputs,
                                   const ConstTensorView& lse, const StatisticsSelection& selection,
                                   const AttentionOptions& options);

}  // namespace headgate
