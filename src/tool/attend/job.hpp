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

// Implements `headgate attend`: reads arrays from .npy files, runs attention on them and writes the results to .npy
// files.

namespace headgate::attend {

/// Selects the outputs of attention_statistics to write, and the directory for their files.
/// Each file has the output's name, such as entropy.npy.
struct Statistics {
  std::string directory;               ///< directory of the files; empty: no files are written
  std::int64_t top_keys = 0;           ///< keys per row in topk_index and topk_weight; 0: neither is written
  std::optional<std::int64_t> window;  ///< window W of the output window_share, in keys; empty: not written
  std::vector<std::int64_t> queries;   ///< queries whose weights are written as the output `rows`
  bool gated = false;                  ///< whether to write the output first_gated

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
  std::array<io::Array, kStatisticsOutputs.size()> statistics;  ///< statistics, one for each row of kStatisticsOutputs
};

/// Checks the paths of all output files. Throws the same errors as check_paths() if a path is unusable. Writes nothing.
void check_outputs(const Files& files);

/// Computes the outputs, statistics and gradients that `files` asks for.
/// `off_by_one` gives every head a sink logit of 0. Throws io::FileError or Error if the arrays do not fit together.
Results compute(const Files& files, const Arrays& arrays, const AttentionOptions& options, bool off_by_one,
                const OnStage& on_stage);

/// Writes all output files, or none if one of them fails. Returns the list of files.
std::vector<io::NpyWriter::Entry> write_outputs(const Files& files, const Results& results);

}  // namespace headgate::attend
