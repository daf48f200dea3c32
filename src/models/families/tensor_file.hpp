// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

#include "models/decoder/parameters.hpp"
#include "models/io/file_error.hpp"

// Stores flat buffers of a model, laid out as in its ParameterTable, in safetensors files: one tensor a parameter.

namespace headgate::models {

/// A flat buffer (total) whose tensors have the names NAME + suffix.
struct FlatBuffer {
  std::string suffix;
  const float* values = nullptr;
};

/// Writes all tensors of all buffers, whole or not at all. Throws io::FileError.
void write_tensors(const std::string& path, const ParameterTable& table, const std::vector<FlatBuffer>& buffers);

/// f32: required to continue training bitwise identically. any_float: f16 and bf16 are read too, and widened.
enum class StoredAs { f32, any_float };

/// Returns one buffer (total) for each suffix. Throws io::FileError, naming the tensor if it is missing, unknown, of
/// another shape or dtype, or not finite, or for any fault of the file itself. Checks that all tensors exist before it
/// allocates.
std::vector<std::vector<float>> read_tensors(const std::string& path, const ParameterTable& table,
                                             const std::vector<std::string>& suffixes, StoredAs stored);

}  // namespace headgate::models
