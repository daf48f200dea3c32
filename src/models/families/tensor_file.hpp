// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

#include "models/decoder/parameters.hpp"
#include "models/io/file_error.hpp"

// Stores flat buffers, laid out as in a model's ParameterTable, in safetensors files with one tensor per parameter.

namespace headgate::models {

/// Views a flat buffer with one value per parameter element, such as a moment of AdamW. The tensor of the parameter
/// called NAME gets the name NAME + suffix in the file.
struct FlatBuffer {
  std::string suffix;
  const float* values = nullptr;
};

/// Writes the tensors of all buffers to one file, completely or not at all. Throws io::FileError.
void write_tensors(const std::string& path, const ParameterTable& table, const std::vector<FlatBuffer>& buffers);

/// Selects the element types that read_tensors() accepts:
/// - f32: only f32, as needed to continue training bitwise identically.
/// - any_float: f32, and also f16 and bf16, which are widened to f32.
enum class StoredAs { f32, any_float };

/// Returns a buffer of table.total() elements for each suffix of tensor names. Checks that all tensors exist before
/// allocating. Throws io::FileError in these cases:
/// - The file is faulty.
/// - A tensor is missing, is unknown, or has the wrong shape or type.
/// - A number is not finite.
std::vector<std::vector<float>> read_tensors(const std::string& path, const ParameterTable& table,
                                             const std::vector<std::string>& suffixes, StoredAs stored);

}  // namespace headgate::models
