// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <optional>
#include <string>

#include "headgate/attention.hpp"
#include "io/npy.hpp"

// One `headgate attend`: files in, attention_forward and attention_backward, files out.

namespace headgate::cli {

/// Paths; empty where not given.
struct AttendFiles {
  std::string q, k, v, gate, bias, mask, key_lengths, alibi, sinks, grad_out;
  std::string out, lse, weights, grad_dir;
};

/// The files' arrays, in the dtypes of the computation.
struct AttendArrays {
  io::Array q, k, v, gate, bias, mask, key_lengths, alibi, sinks, grad_out;
};

struct AttendResults {
  io::Array y, lse, attn, weights;
  io::Array dq, dk, dv, dgate, dbias, dsinks;
};

/// Refuses two outputs at one path, and outputs in directories that take no file; nothing is written yet.
void check_outputs(const AttendFiles& files);

/// Reads every input. q, k, v, gate and grad-out are converted to `dtype`, or must share one dtype where it is empty.
/// Throws io::FileError or UsageError.
AttendArrays read_inputs(const AttendFiles& files, std::optional<DType> dtype);

/// `off_by_one`: a sink logit of 0 for every head. Throws UsageError on arrays that do not fit.
AttendResults attend(const AttendFiles& files, const AttendArrays& arrays, const AttentionOptions& options,
                     bool off_by_one);

/// Every output file whole, or none of them.
void write_outputs(const AttendFiles& files, const AttendResults& results);

}  // namespace headgate::cli
