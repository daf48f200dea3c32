// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "models/families/model_file.hpp"
#include "models/io/json.hpp"

namespace headgate::generate {

/// Holds the generation settings in a model's files.
struct GenerationFiles {
  std::vector<std::int32_t> end_ids;  ///< ids of tokens that end a text, ascending, each in the model's vocabulary
  std::string chat_template;          ///< source of the Jinja template; empty if the model has none
  /// Names that chat templates use for special tokens, each with its spelling: {"bos_token", "<s>"}, …
  std::vector<std::pair<std::string, std::string>> special_tokens;
};

/// Reads the generation settings of `model`, which was opened from `path`. Throws io::FileError, also for an id outside
/// the vocabulary.
///
/// A directory has these settings:
/// - end ids: eos_token_id, one id or a list, in generation_config.json, config.json and the text_config inside it
/// - chat template: chat_template.jinja, otherwise the key chat_template of tokenizer_config.json or
///   chat_template.json; of several templates, the one named "default"
/// - special tokens: tokenizer_config.json, and special_tokens_map.json if the first has no added_tokens_decoder
///
/// A GGUF file has these settings, under tokenizer.ggml if not stated otherwise:
/// - end ids: eos_token_id, eot_token_id, eom_token_id, fim_pad_token_id, fim_rep_token_id and fim_sep_token_id
/// - chat template: tokenizer.chat_template
/// - special tokens: bos_token_id, eos_token_id, unknown_token_id, …
GenerationFiles read_generation_files(const std::string& path, const models::ModelFile& model);

/// Returns eos_token_id in config.json of a directory, or in its text_config, as it stands there. Returns null if there
/// is none. Throws io::FileError.
io::Json read_config_end_ids(const std::string& directory);

}  // namespace headgate::generate
