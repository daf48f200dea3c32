// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

#include "models/decoder/parameters.hpp"
#include "models/io/file_error.hpp"

// Stores flat buffers, laid out as in a model's ParameterTable, in safetensors files with one tensor per parameter.

namespace headgate::models {

/// Values of all parameters in one flat buffer, such as the moments of AdamW. The file stores parameter NAME as the
/// tensor NAME + suffix.
struct FlatBuffer {
  std::string suffix;
  const float* values = nullptr;
};

/// Writes the tensors of all buffers to one file, completely or not at all. Throws io::FileError.
void write_tensors(const std::string& path, const ParameterTable& table, const std::vector<FlatBuffer>& buffers);

/// Selects the types that read_tensors() accepts. f32 is required to continue training bitwise identically. any_float
/// also accepts f16 and bf16 and widens them.
enum class StoredAs { f32, any_float };

/// Returns a buffer of table.total() elements for each suffix of tensor names. Checks that all tensors exist before
/// allocating. Throws io::FileError if the file is faulty, or if a tensor is missing or unknown. Also throws it if a
/// tensor has the wrong shape or type, or numbers that are not finite.
std::vector<std::vector<float>> read_tensors(const std::string& path, const ParameterTable& table,
                                             const std::vector<std::string>& suffixes, StoredAs stored);

}  // namespace headgate::models
