// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <string_view>

#include "headgate/tensor.hpp"
#include "models/decoder/config.hpp"
#include "models/families/family.hpp"
#include "models/io/file_error.hpp"

// config.json, as Hugging Face has it for the families of family.hpp, with the keys of kConfigKeys (config.hpp) and
//   model_type   of a family: "qwen3", …, or "headgate" where no other would compute the same
// RoPE's keys may also stand in rope_parameters or rope_scaling. A missing key has the default of transformers' config
// class of the family. Keys that would change the model (hidden_act, mlp_bias, …) are read only with the values that
// this decoder has, those that do not matter to it (dtype, use_cache, …) are passed over, and any other key is refused,
// unless it is null.

namespace headgate::models {

/// Returns the text of a config.json of "qwen3" or "headgate".
std::string write_config(const DecoderConfig& config);

/// Returns the family of `transformers` that computes the same as the config, if its files have the gate's rows where
/// the layout has them; "headgate" if there is none.
const Family& public_family(const FileConfig& file);

/// Returns the config with the layout in which a family of `transformers` stores it, separate if there is none, and the
/// family.
FileConfig public_file(const DecoderConfig& config);

/// Returns the text of a config.json of public_family(file), with gate_layout if that does not say where the gate's
/// rows are.
std::string write_public_config(const FileConfig& file, DType dtype);

/// Writes the text of a config.json into `directory`, and kModelingFile (modeling_code.hpp) beside it if it is of
/// "headgate". Throws io::WriteError.
void write_config_files(const std::string& directory, const std::string& text);

/// Parses the text of a config.json and checks it. `path` begins every message. Throws io::FileError, naming the key.
FileConfig parse_file_config(const std::string& path, std::string_view text);
DecoderConfig parse_config(const std::string& path, std::string_view text);

/// Reads a config.json. Throws io::FileError.
FileConfig read_file_config(const std::string& path);
DecoderConfig read_config(const std::string& path);

}  // namespace headgate::models
