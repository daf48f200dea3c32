// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <string_view>

#include "headgate/tensor.hpp"
#include "models/decoder/config.hpp"
#include "models/families/family.hpp"
#include "models/io/file_error.hpp"

// Reads and writes config.json in Hugging Face's format for the families of family.hpp:
// - model_type is a family, such as "qwen3", or "headgate" if no public family computes the same.
// - The other keys are those of kConfigKeys. RoPE's keys may also be in rope_parameters or rope_scaling.
// - A missing key has the default of the family's config class in transformers.
// - Keys that would change the model, such as hidden_act and mlp_bias, must have a value that this decoder supports.
// - Keys that do not affect the model, such as dtype and use_cache, are ignored.
// - Any other key is refused unless it is null.

namespace headgate::models {

/// Returns the text of config.json, with model_type "qwen3" if Qwen3 computes the same as `config`, otherwise
/// "headgate".
std::string write_config(const DecoderConfig& config);

/// Returns a public family, such as Qwen3, in whose format the model can be written: the family computes the same as
/// file.config and stores gates in the layout file.layout. Returns kHeadgate, this library's own format, if no public
/// family does.
const Family& public_family(const FileConfig& file);

/// Returns `config` together with the public family that computes the same, or kHeadgate if there is none. The gate
/// layout is per_query_head for Qwen3.5, otherwise separate.
FileConfig public_file(const DecoderConfig& config);

/// Returns the text of config.json for public_family(file). Writes the key gate_layout if the gate's rows
/// are stored among the rows of q. Omits it for Qwen3.5, which has only one layout.
std::string write_public_config(const FileConfig& file, DType dtype);

/// Writes `text` to config.json in `directory`. If model_type is "headgate" and the model has no experts, also writes
/// its Python code, kModelingFile (modeling_code.hpp). Throws io::WriteError.
void write_config_files(const std::string& directory, const std::string& text);

/// Parses and checks the text of a config.json. Messages begin with `path`. Throws io::FileError that names the key.
FileConfig parse_file_config(const std::string& path, std::string_view text);
DecoderConfig parse_config(const std::string& path, std::string_view text);

/// Reads a config.json. Throws io::FileError.
FileConfig read_file_config(const std::string& path);
DecoderConfig read_config(const std::string& path);

}  // namespace headgate::models
