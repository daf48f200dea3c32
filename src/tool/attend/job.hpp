// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "headgate/attention.hpp"
#include "library/core/attention_tensors.hpp"
#include "library/core/statistics_outputs.hpp"
#include "models/io/npy.hpp"
#include "tool/attend/operation.hpp"

// Implements `headgate attend`: reads arrays from .npy files, runs attention forward and backward, writes .npy files.

namespace headgate::attend {

/// Selects the outputs of attention_statistics and the directory for them. Each output becomes a file with its name.
struct Statistics {
  std::string directory;               ///< empty: no statistics are written
  std::int64_t top_keys = 0;           ///< keys per row in topk_index and topk_weight; 0: neither is written
  std::optional<std::int64_t> window;  ///< empty: no window_share
  std::vector<std::int64_t> queries;   ///< queries of the output `rows`
  bool gated = false;                  ///< whether first_gated is written

  bool wants(const StatisticsOutput& output) const;
};

struct AttentionTables {
  static constexpr const auto& kInputs = kAttentionInputs;
  static constexpr const auto& kIncoming = kIncomingTensors;
  static constexpr const auto& kOutputs = kAttentionOutputs;
  static constexpr const auto& kGradients = kAttentionGradients;
};

struct Files : OperationFiles<AttentionTables> {
  Statistics statistics;

  bool has_gate() const { return !inputs[&AttentionInputs::gate].empty(); }
};

using Arrays = OperationArrays<AttentionTables>;

struct Results : OperationResults<AttentionTables> {
  std::array<io::Array, kStatisticsOutputs.size()> statistics;  ///< in the order of kStatisticsOutputs
};

/// Checks the paths of all output files and throws as check_paths does. Writes nothing.
void check_outputs(const Files& files);

/// Computes the results that `files` has paths for. `off_by_one` gives every head a sink logit of 0. Throws
/// io::FileError and Error for arrays that do not fit.
Results compute(const Files& files, const Arrays& arrays, const AttentionOptions& options, bool off_by_one,
                const OnStage& on_stage);

/// Writes all output files atomically (all of them or none) and returns their entries.
std::vector<io::NpyWriter::Entry> write_outputs(const Files& files, const Results& results);

}  // namespace headgate::attend
