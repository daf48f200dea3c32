// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

#include "models/decoder/parameters.hpp"
#include "models/io/file_error.hpp"

// Flat buffers of a model, laid out as its ParameterTable has them, in safetensors files: one tensor a parameter.

namespace headgate::models {

/// A flat buffer (total) whose tensors are called NAME + suffix.
struct FlatBuffer {
  std::string suffix;
  const float* values = nullptr;
};

/// Writes all tensors of all buffers, whole or not at all. Throws io::FileError.
void write_tensors(const std::string& path, const ParameterTable& table, const std::vector<FlatBuffer>& buffers);

/// f32: what is to go on bit for bit. any_float: f16 and bf16 too, widened.
enum class StoredAs { f32, any_float };

/// One buffer (total) a suffix. Throws io::FileError, naming the tensor: missing, unknown, of another shape or dtype,
/// not finite, or any fault of the file itself. Nothing is allocated before all tensors are known to be there.
std::vector<std::vector<float>> read_tensors(const std::string& path, const ParameterTable& table,
                                             const std::vector<std::string>& suffixes, StoredAs stored);

}  // namespace headgate::models
