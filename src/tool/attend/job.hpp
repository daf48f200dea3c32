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

// What `headgate attend` does: arrays from .npy files, attention forward and backward, results to .npy files.

namespace headgate::attend {

/// What of attention_statistics is written, into a directory: a file for each output, under its name.
struct Statistics {
  std::string directory;               ///< empty for none
  std::int64_t top_keys = 0;           ///< 0: no topk_index and topk_weight
  std::optional<std::int64_t> window;  ///< none: no window_share
  std::vector<std::int64_t> queries;   ///< of rows
  bool gated = false;                  ///< first_gated

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
  std::array<io::Array, kStatisticsOutputs.size()> statistics;  ///< in the order of the rows
};

/// Throws as check_paths does. Writes nothing.
void check_outputs(const Files& files);

/// Computes the results that `files` has paths for. `off_by_one`: a sink logit of 0 for every head. Throws
/// io::FileError and Error for arrays that do not fit.
Results compute(const Files& files, const Arrays& arrays, const AttentionOptions& options, bool off_by_one,
                const OnStage& on_stage);

/// Writes all output files atomically: all of them or none. Returns them.
std::vector<io::NpyWriter::Entry> write_outputs(const Files& files, const Results& results);

}  // namespace headgate::attend
