// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

#include "models/families/model_file.hpp"

// GGUF files of language models: what llama.cpp calls their sizes and tensors.

namespace headgate::models {

/// The family of the file's general.architecture. Throws io::FileError with those that are read.
const Family& family_of_gguf(const io::GgufFile& file);

/// Throws io::FileError, naming what is missing, does not fit, or is asked for and not supported: any value of the
/// architecture that is not known, such as NAME.expert_count.
DecoderConfig config_of_gguf(const io::GgufFile& file, const Family& family);

/// Where a parameter lies.
StoredRows stored_in_gguf(const Parameter& parameter, const DecoderConfig& config, const Family& family);

/// Tensors that a file may have beside the parameters.
bool is_beside_parameters_in_gguf(const std::string& name);

}  // namespace headgate::models
