// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <string_view>

#include "io/file_error.hpp"
#include "models/config.hpp"

// config.json, as Hugging Face has it for Qwen3, with the keys of kConfigKeys (config.hpp) and
//   model_type   "qwen3", or "headgate" where Qwen3 would compute something else
// rope_theta may also stand in rope_parameters. Keys of Qwen3 that would change the model (hidden_act,
// attention_bias, …) are read only with the values that this decoder has, those that do not matter to it (dtype,
// use_cache, …) are passed over, and any other key is refused.

namespace headgate::models {

/// The text of a config.json.
std::string write_config(const DecoderConfig& config);

/// The config that a config.json's text holds, valid. `path` begins every message. Throws io::FileError, naming the
/// key.
DecoderConfig parse_config(const std::string& path, std::string_view text);

/// Reads a config.json. Throws io::FileError.
DecoderConfig read_config(const std::string& path);

}  // namespace headgate::models
