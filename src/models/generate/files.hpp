// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "models/families/model_file.hpp"

namespace headgate::generate {

/// Holds what a model's files say about generating text.
struct GenerationFiles {
  std::vector<std::int32_t> end_ids;  ///< tokens that end a text, ascending, each in the model's vocabulary
  std::string chat_template;          ///< Jinja; empty: none
  /// What chat templates call the tokenizer's tokens, and their spelling: {"bos_token", "<s>"}, …
  std::vector<std::pair<std::string, std::string>> special_tokens;
};

/// Reads a directory or a GGUF file. Directory: eos_token_id of generation_config.json and of config.json, one id or a
/// list; chat_template.jinja, or else chat_template of tokenizer_config.json (if it has several, the one named
/// default) or of chat_template.json; bos_token and others of tokenizer_config.json, or of
/// special_tokens_map.json if the first has no added_tokens_decoder. GGUF: tokenizer.ggml.eos_token_id
/// and eot_token_id, tokenizer.chat_template; the tokens of bos_token_id and others. `path`: what `model` was opened
/// from. Throws io::FileError, also for an id outside the vocabulary.
GenerationFiles read_generation_files(const std::string& path, const models::ModelFile& model);

}  // namespace headgate::generate
