// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "models/tokenize/tokenizer.hpp"

namespace headgate::tokenize {

/// Holds the tokenizer of a GGUF file. Each member is the value of the key tokenizer.ggml.NAME, where NAME is the name
/// of the member.
struct GgufVocabulary {
  std::string model;                ///< "gpt2" for byte-level BPE, or "llama" for SentencePiece's BPE
  std::string pre;                  ///< for gpt2: the pre-tokenizer, which splits text into words, such as "qwen2"
  std::vector<std::string> tokens;  ///< spelling of each id
  std::vector<std::string> merges;  ///< for gpt2: merges in the form "left right"
  /// For llama: score of each id; merges that produce tokens of higher score come first.
  std::vector<float> scores;
  std::vector<std::int64_t> token_type;  ///< type of each id; if empty, all tokens are normal
  std::optional<std::int64_t> bos_token_id, eos_token_id, unknown_token_id;
  std::optional<bool> add_bos_token;  ///< if absent: true for `pre` llama-bpe and `model` llama, as in llama.cpp
  std::optional<bool> add_eos_token;
  std::optional<bool> add_space_prefix;  ///< if absent: true for `model` llama
};

/// Makes the tokenizer. `name` is the file name in messages. Throws io::FileError if values are contradictory or not
/// supported.
std::unique_ptr<Tokenizer> make_gguf_tokenizer(const std::string& name, const GgufVocabulary& vocabulary);

/// Converts the tokenizer to the text of an equivalent tokenizer.json. Throws io::FileError as make_gguf_tokenizer()
/// does, and if tokenizer.json cannot express a feature.
std::string gguf_tokenizer_json(const std::string& name, const GgufVocabulary& vocabulary);

}  // namespace headgate::tokenize
