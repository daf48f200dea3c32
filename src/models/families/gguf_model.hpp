// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

#include "models/families/model_file.hpp"

// Maps llama.cpp's names of sizes and tensors in GGUF files to this library's.

namespace headgate::models {

/// Returns the family of the file's general.architecture. Throws io::FileError, which lists the supported ones.
const Family& family_of_gguf(const io::GgufFile& file);

/// Throws io::FileError, naming what is missing, does not fit, or is not supported. Refuses any unknown value of the
/// architecture, such as NAME.expert_count.
DecoderConfig config_of_gguf(const io::GgufFile& file, const Family& family);

/// Locates a parameter.
TensorLocation stored_in_gguf(const Parameter& parameter, const DecoderConfig& config, const Family& family);

/// Returns whether a file may have the tensor in addition to the parameters.
bool is_extra_tensor_in_gguf(const std::string& name, const FileConfig& file);

/// Returns FileConfig::further_layers.
std::int64_t further_layers_of_gguf(const io::GgufFile& file, const DecoderConfig& config);

}  // namespace headgate::models
