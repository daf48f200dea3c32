// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "headgate/attention.hpp"
#include "headgate/statistics.hpp"
#include "verify/operation_case.hpp"
#include "verify/oracle/oracle.hpp"
#include "verify/oracle/statistics.hpp"
#include "verify/spec.hpp"

namespace headgate::verify {

/// Holds the tensors of one test problem. Inputs are filled from the seed. Outputs, and everything that kernels must
/// not read, are poisoned with bytes 0xFF:
/// - k and v, or their scales, are NaN for keys at and beyond key_lengths;
/// - the bias is NaN for these keys, and where query and key belong to different packed sequences;
/// - entries of the block table beyond a sequence's length are invalid page numbers.
class Case : public OperationCase<CaseSpec, AttentionInputs, AttentionOptions, AttentionGradients> {
 public:
  explicit Case(const CaseSpec& spec, Placement placement = Placement::guarded, Passes passes = Passes::all);

  /// Returns the options for a backward pass: gate_threshold is 0, because only the forward pass supports a threshold.
  AttentionOptions backward_options() const;
  /// Returns the forward outputs that the spec requests.
  AttentionOutputs outputs() const;
  /// Returns the forward outputs that a backward pass needs.
  AttentionOutputs saving_outputs() const;
  AttentionSaved saved() const;
  const AttentionIncoming& incoming() const { return incoming_; }

  /// Range of the columns of `weights` that hold the keys of query i's own sequence.
  struct KeyColumns {
    std::int64_t first, count;
  };
  KeyColumns columns_of_query(std::int64_t i) const;

  const StatisticsSelection& selection() const { return selection_; }
  const AttentionStatistics& statistics() const { return statistics_; }

  void poison_statistics() { statistics_slabs_.poison(); }
  /// Returns the name of the first output, gradient or statistic with a byte written outside its view.
  std::optional<std::string> spilled() const;
  /// Returns all bytes of the statistics, including the guard zones.
  std::vector<std::uint8_t> statistics_bytes() const { return statistics_slabs_.bytes(); }

  /// Return the oracle's results, which are computed once and cached.
  const reference::Forward& expected_forward();
  /// Returns the oracle's forward pass without dropout, because statistics use the weights before dropout.
  const reference::Forward& expected_before_dropout();
  /// The oracle's max_logit and its magnitudes (error bounds), both in the order of the output's elements.
  struct MaxLogits {
    std::vector<double> value, magnitude;
  };
  MaxLogits expected_max_logits();
  const reference::Backward& expected_backward();
  const reference::Statistics& expected_statistics();

 private:
  void place_projection(Slabs& group, TensorView* q, TensorView* gate, TensorView* k, TensorView* v);
  void place_inputs();
  void place_incoming();
  void place_outputs();
  void place_gradients();
  void place_statistics();
  void fill_inputs();
  void place_cache();
  void fill_table();
  void fill_lists();
  void fill_gate();
  void fill_keys();
  void fill_first_rows();
  void fill_maps();
  void fill_vectors();
  void fill_sequences();

  /// Rows of q and k that belong to one sequence.
  struct Rows {
    std::int64_t q0, T, k0, S;
    std::int64_t keys;  ///< number of keys to read: those within key_lengths
  };
  Rows rows_of(std::int64_t n) const;
  std::int64_t sequence_of_query(std::int64_t i) const;
  std::int64_t sequence_of_key(std::int64_t b, std::int64_t j) const;
  bool key_is_read(std::int64_t b, std::int64_t j) const;
  bool bias_is_read(std::int64_t b, std::int64_t i, std::int64_t j) const;
  bool column_is_hidden(std::int64_t j) const;
  bool key_is_hidden(std::int64_t b, std::int64_t j) const;

  Slabs statistics_slabs_;
  TensorView q_, k_, v_, gate_, bias_, key_bias_, key_indices_, mask_, key_lengths_, query_offsets_, alibi_slopes_,
      sinks_, dy_, dlse_;
  TensorView cu_seqlens_q_, cu_seqlens_k_;
  TensorView block_table_, k_scale_, v_scale_, k_first_, v_first_;
  AttentionIncoming incoming_;
  AttentionOutputs outputs_;  // outputs() and saving_outputs() return parts of it
  StatisticsSelection selection_;
  AttentionStatistics statistics_;
  std::optional<reference::Forward> forward_, undropped_;
  std::optional<reference::Backward> backward_;
  std::optional<reference::Statistics> expected_statistics_;
};

}  // namespace headgate::verify
