// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "headgate/attention.hpp"
#include "headgate/statistics.hpp"
#include "library/core/element.hpp"

namespace headgate {

/// Queries and keys that attend to each other, as rows of the tensors.
struct Sequence {
  std::int64_t b = 0;               ///< batch of what has a row for each query
  std::int64_t kb = 0;              ///< batch of what has a row for each key, where that is not paged
  std::int64_t q0 = 0, T = 0;       ///< its queries are rows q0 … q0 + T
  std::int64_t k0 = 0, S = 0;       ///< its keys are rows k0 … k0 + S
  std::int64_t keys = 0;            ///< of which those before `keys` are seen and read
  std::int64_t first_position = 0;  ///< query i stands at key position first_position + i
  std::int64_t number = 0;          ///< among the call's sequences, and its row of the block table
};

struct CallReport;

/// A side without a limit, in options and problems.
inline constexpr std::int64_t kNoWindow = -1;

/// The arguments that both passes share, checked and in normal form.
struct Problem {
  std::int64_t B = 0, Hq = 0, Hkv = 0, T = 0, S = 0, D = 0, Dv = 0;
  std::int64_t group = 1;  ///< Hq / Hkv
  std::int64_t N = 0;      ///< sequences: B, or those of a packed batch
  double scale = 1.0;
  double softcap = 0.0;  ///< 0: none
  /// Key j is visible to a query at position at iff at − window_left ≤ j ≤ at + window_right; kNoWindow for no limit.
  /// Causality is folded in.
  std::int64_t window_left = kNoWindow, window_right = kNoWindow;
  GateFn gate_fn = GateFn::none;  ///< none when no gate is present
  GateOp gate_op = GateOp::mul;
  bool gate_headwise = false;
  double gate_threshold = 0.0;  ///< > 0: rows whose gate is at most this are not computed; the gate multiplies
  Precision precision = Precision::exact;
  double dropout = 0.0;  ///< of weights, < 1
  std::int64_t dropout_seed = 0;
  std::int64_t page = 0;         ///< tokens of a page of k and v, which the block table orders; 0: not paged
  ExecutionContext context;      ///< resolved()
  CallReport* report = nullptr;  ///< what the backend tells of the call; null: nothing
  /// As given, but for bias and mask, stretched to (B,Hq,T,S) by stride 0, and gate, absent where gate_fn is none.
  AttentionInputs inputs;

  bool packed() const { return inputs.cu_seqlens_q.present(); }
  /// Whether the keys of a packed batch lie one after the other too; else each sequence has pages of its own.
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
  /// Where the last query stands, plus one, unless offsets say otherwise: past the last key of S, hidden or not; of a
  /// packed batch over pages, whose S is room for the longest, past the last key that is there.
  std::int64_t end_of_keys(const Sequence& s) const { return packed() && page > 0 ? s.keys : s.S; }
  /// Of query head h of sequence n.
  double alibi_slope(std::int64_t n, std::int64_t h) const {
    return load(inputs.alibi_slopes, 0, 0, inputs.alibi_slopes.shape[2] == 1 ? 0 : n, h);
  }
  double sink(std::int64_t h) const { return load(inputs.sinks, 0, 0, 0, h); }
};

/// All that a forward pass reads and writes.
struct ForwardProblem : Problem {
  AttentionOutputs outputs;
};

/// All that a backward pass reads and writes.
struct BackwardProblem : Problem {
  AttentionSaved saved;
  AttentionIncoming incoming;
  AttentionGradients gradients;
};

/// All that statistics read and write. Its v is absent, and its gate too unless first_gated is asked for; Dv is the
/// gate's.
struct StatisticsProblem : Problem {
  bool causal = false;  ///< no query sees a key behind it, and some may see their own
  ConstTensorView lse;
  StatisticsSelection selection;
  AttentionStatistics outputs;
};

/// Throws Error, naming the argument and the values, unless the arguments fit together. Reads the small vectors
/// (key_lengths, query_offsets, cu_seqlens_q, cu_seqlens_k, alibi_slopes, sinks), check_backward also lse, and no other
/// tensor data.
ForwardProblem check_forward(const AttentionOutputs& outputs, const AttentionInputs& inputs,
                             const AttentionOptions& options);
BackwardProblem check_backward(const AttentionGradients& gradients, const AttentionInputs& inputs,
                               const AttentionSaved& saved, const AttentionIncoming& incoming,
                               const AttentionOptions& options);
StatisticsProblem check_statistics(const AttentionStatistics& outputs, const AttentionInputs& inputs,
                                   const ConstTensorView& lse, const StatisticsSelection& selection,
                                   const AttentionOptions& options);

}  // namespace headgate
