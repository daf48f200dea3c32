// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "headgate/linear_attention.hpp"
#include "headgate/linear_attention_statistics.hpp"
#include "library/core/linear_attention_rows.hpp"
#include "library/core/linear_statistics_rows.hpp"
#include "tool/attend/operation.hpp"

// Implements `headgate linear`: reads arrays from .npy files, runs linear attention on them and writes the results to
// .npy files.

namespace headgate::attend {

struct LinearTables {
  static constexpr const auto& kInputs = kLinearInputs;
  static constexpr const auto& kIncoming = kLinearIncoming;
  static constexpr const auto& kOutputs = kLinearOutputs;
  static constexpr const auto& kGradients = kLinearGradients;
};

/// Selects the weights and statistics to write, and the directory for their files.
/// Each file has the output's name, such as reach.npy.
struct LinearFigureFiles {
  std::string directory;              ///< directory of the files; empty: no files are written
  std::vector<std::int64_t> queries;  ///< queries for which weights are written

  bool wants_weights() const { return !directory.empty() && !queries.empty(); }
  /// Returns whether a statistic is written.
  /// Means over a sequence are not written: users can compute them from the values per query.
  bool wants(const LinearStatisticsOutput& output) const {
    return !directory.empty() && output.dims != LinearOutputDims::sequence;
  }
  template <class Row>
  std::string path(const Row& row) const {
    return (std::filesystem::path(directory) / (std::string(row.name) + ".npy")).string();
  }
};

struct LinearFiles : OperationFiles<LinearTables> {
  LinearFigureFiles figures;
};

using LinearArrays = OperationArrays<LinearTables>;

struct LinearResults : OperationResults<LinearTables> {
  std::array<io::Array, kLinearWeights.size()> weights;        ///< weights, one for each row of kLinearWeights
  std::array<io::Array, kLinearStatistics.size()> statistics;  ///< statistics, one for each row of kLinearStatistics
};

/// Checks the paths of all output files. Throws the same errors as check_paths() if a path is unusable. Writes nothing.
void check_outputs(const LinearFiles& files);

/// Computes the outputs, weights, statistics and gradients that `files` asks for.
/// Throws io::FileError or Error if the arrays do not fit together.
LinearResults compute(const LinearFiles& files, const LinearArrays& arrays, const LinearAttentionOptions& options,
                      const OnStage& on_stage);

/// Writes all output files, or none if one of them fails. Returns the list of files.
std::vector<io::NpyWriter::Entry> write_outputs(const LinearFiles& files, const LinearResults& results);

}  // namespace headgate::attend
