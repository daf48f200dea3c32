// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "models/families/model_file.hpp"
#include "models/io/json.hpp"

namespace headgate::generate {

/// Holds the settings for generating text that a model's files contain.
struct GenerationFiles {
  /// Ids of the tokens that end a text, in ascending order; all are in the model's vocabulary.
  std::vector<std::int32_t> end_ids;
  std::string chat_template;  ///< source of the Jinja template; empty if the model has none
  /// Pairs of the name that chat templates use for a special token and its spelling, such as {"bos_token", "<s>"}.
  std::vector<std::pair<std::string, std::string>> special_tokens;
  /// Settings of generation_config.json that change which tokens the `transformers` package chooses. Headgate ignores
  /// them. Each text has a key and its value, such as "repetition_penalty 1.1".
  std::vector<std::string> not_followed{};
};

/// Reads the generation settings of `model`, which was opened from `path`. Throws io::FileError if a file is invalid or
/// an id is outside the vocabulary.
///
/// In a directory:
/// - end ids: eos_token_id in generation_config.json, in config.json and in its text_config; one id or a list
/// - chat template: chat_template.jinja, otherwise the key chat_template of tokenizer_config.json or
///   chat_template.json; from a list of templates, the one named "default"
/// - special tokens: tokenizer_config.json; also special_tokens_map.json if tokenizer_config.json has no
///   added_tokens_decoder
/// - settings that are not followed: generation_config.json
///
/// In a GGUF file, keys begin with tokenizer.ggml, except for the chat template:
/// - end ids: eos_token_id, eot_token_id, eom_token_id, fim_pad_token_id, fim_rep_token_id and fim_sep_token_id
/// - chat template: tokenizer.chat_template
/// - special tokens: bos_token_id, eos_token_id, unknown_token_id, …
GenerationFiles read_generation_files(const std::string& path, const models::ModelFile& model);

/// Returns the JSON value of eos_token_id in config.json of a directory. Prefers the value in text_config. Returns null
/// if there is none. Throws io::FileError.
io::Json read_config_end_ids(const std::string& directory);

}  // namespace headgate::generate
