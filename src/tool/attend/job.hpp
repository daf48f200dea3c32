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

/// Paths; empty where not given.
struct Files {
  PerTensor<std::string, kAttentionInputs> inputs;
  PerTensor<std::string, kIncomingTensors> incoming;
  PerTensor<std::string, kAttentionOutputs> outputs;
  std::string grad_dir;
  Statistics statistics;

  bool has_gate() const { return !inputs[&AttentionInputs::gate].empty(); }
};

/// The files' arrays, in the dtypes of the computation.
struct Arrays {
  PerTensor<io::Array, kAttentionInputs> inputs;
  PerTensor<io::Array, kIncomingTensors> incoming;

  const io::Array& q() const { return inputs[&AttentionInputs::q]; }
};

struct Results {
  PerTensor<io::Array, kAttentionOutputs> outputs;
  PerTensor<io::Array, kAttentionGradients> gradients;
  std::array<io::Array, kStatisticsOutputs.size()> statistics;  ///< in the order of the rows
};

/// Throws if two outputs have the same path, an output would overwrite an input, or the directory of an output is not
/// writable. Writes nothing.
void check_outputs(const Files& files);

/// Reads every input. q, k, v, gate and grad-out are converted to `dtype`, or must share one dtype where it is empty;
/// k and v of int8 stay so.
/// Throws io::FileError or Error.
Arrays read_inputs(const Files& files, std::optional<DType> dtype);

/// Computes the results that `files` has paths for. `off_by_one`: a sink logit of 0 for every head. Throws
/// io::FileError and Error for arrays that do not fit.
Results compute(const Files& files, const Arrays& arrays, const AttentionOptions& options, bool off_by_one);

/// Writes all output files atomically: all of them or none.
void write_outputs(const Files& files, const Results& results);

}  // namespace headgate::attend
