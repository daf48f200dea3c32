// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

#include "models/families/model_file.hpp"

// Maps llama.cpp's names of sizes and tensors in GGUF files to the names of this library.

namespace headgate::models {

/// Returns the family for the file's general.architecture. Throws io::FileError that lists the supported architectures.
const Family& family_of_gguf(const io::GgufFile& file);

/// Reads the config of a GGUF file. Throws io::FileError that names a missing, invalid or unsupported value. Unknown
/// keys of the architecture, such as NAME.expert_count, are refused.
DecoderConfig config_of_gguf(const io::GgufFile& file, const Family& family);

/// Locates a parameter in a GGUF file.
TensorLocation stored_in_gguf(const Parameter& parameter, const DecoderConfig& config, const Family& family);

/// Returns whether a GGUF file may contain the tensor, although the model has no such parameter.
bool is_extra_tensor_in_gguf(const std::string& name, const FileConfig& file);

/// Returns FileConfig::further_layers.
std::int64_t further_layers_of_gguf(const io::GgufFile& file, const DecoderConfig& config);

}  // namespace headgate::models
