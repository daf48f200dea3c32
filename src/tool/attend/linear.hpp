// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "headgate/linear_attention.hpp"
#include "library/core/linear_attention_rows.hpp"
#include "tool/attend/operation.hpp"

// What `headgate linear` does: arrays from .npy files, linear attention forward and backward, results to .npy files.

namespace headgate::attend {

struct LinearTables {
  static constexpr const auto& kInputs = kLinearInputs;
  static constexpr const auto& kIncoming = kLinearIncoming;
  static constexpr const auto& kOutputs = kLinearOutputs;
  static constexpr const auto& kGradients = kLinearGradients;
};

using LinearFiles = OperationFiles<LinearTables>;
using LinearArrays = OperationArrays<LinearTables>;
using LinearResults = OperationResults<LinearTables>;

/// Throws as check_paths does. Writes nothing.
void check_outputs(const LinearFiles& files);

/// Computes the results that `files` has paths for. Throws io::FileError and Error for arrays that do not fit.
LinearResults compute(const LinearFiles& files, const LinearArrays& arrays, const LinearAttentionOptions& options);

/// Writes all output files atomically: all of them or none.
void write_outputs(const LinearFiles& files, const LinearResults& results);

}  // namespace headgate::attend
