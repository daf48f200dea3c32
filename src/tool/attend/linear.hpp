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

// What `headgate linear` does: arrays from .npy files, linear attention forward and backward, results to .npy files.

namespace headgate::attend {

struct LinearTables {
  static constexpr const auto& kInputs = kLinearInputs;
  static constexpr const auto& kIncoming = kLinearIncoming;
  static constexpr const auto& kOutputs = kLinearOutputs;
  static constexpr const auto& kGradients = kLinearGradients;
};

/// What of the weights and statistics is written, into a directory: a file for each output, under its name.
struct LinearFigureFiles {
  std::string directory;              ///< empty for none
  std::vector<std::int64_t> queries;  ///< of the weights

  bool wants_weights() const { return !directory.empty() && !queries.empty(); }
  /// Means over queries are left to the reader of the file of all queries.
  bool wants(const LinearStatisticsOutput& output) const {
    return !directory.empty() && output.of != LinearFigureOf::sequence;
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
  std::array<io::Array, kLinearWeights.size()> weights;        ///< in the order of the rows
  std::array<io::Array, kLinearStatistics.size()> statistics;  ///< likewise
};

/// Throws as check_paths does. Writes nothing.
void check_outputs(const LinearFiles& files);

/// Computes the results that `files` has paths for. Throws io::FileError and Error for arrays that do not fit.
LinearResults compute(const LinearFiles& files, const LinearArrays& arrays, const LinearAttentionOptions& options,
                      const OnStage& on_stage);

/// Writes all output files atomically: all of them or none. Returns them.
std::vector<io::NpyWriter::Entry> write_outputs(const LinearFiles& files, const LinearResults& results);

}  // namespace headgate::attend
