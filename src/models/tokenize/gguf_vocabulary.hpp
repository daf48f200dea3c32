// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "models/tokenize/tokenizer.hpp"

namespace headgate::tokenize {

/// Tokenizer of a GGUF file. Each member is the value of a key tokenizer.ggml.*.
struct GgufVocabulary {
  std::string model;  ///< "gpt2": byte-level BPE; "llama": SentencePiece's BPE
  std::string pre;    ///< for gpt2: name of the pre-tokenizer, which splits text into words, such as qwen2
  std::vector<std::string> tokens;  ///< spelling of each id
  std::vector<std::string> merges;  ///< for gpt2: merges, written as "left right"
  std::vector<float> scores;        ///< for llama: score of each id; merges that make tokens of higher score come first
  std::vector<std::int64_t> token_type;  ///< type of each id; if empty, all are normal
  std::optional<std::int64_t> bos_token_id, eos_token_id, unknown_token_id;
  std::optional<bool> add_bos_token;  ///< if absent, true if `pre` is llama-bpe or `model` is llama, as in llama.cpp
  std::optional<bool> add_eos_token;
  std::optional<bool> add_space_prefix;  ///< if absent, true only for the model llama
};

/// Makes the tokenizer. `name` is the file name for messages. Throws io::FileError for contradictory or unsupported
/// values.
std::unique_ptr<Tokenizer> make_gguf_tokenizer(const std::string& name, const GgufVocabulary& vocabulary);

/// Returns the equivalent tokenizer.json. Throws io::FileError as make_gguf_tokenizer() does, and for features that
/// tokenizer.json cannot express.
std::string gguf_tokenizer_json(const std::string& name, const GgufVocabulary& vocabulary);

}  // namespace headgate::tokenize
