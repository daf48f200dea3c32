// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "models/tokenize/tokenizer.hpp"

namespace headgate::tokenize {

/// Describes a tokenizer as a GGUF file does: each member is one of the keys tokenizer.ggml.*.
struct GgufVocabulary {
  std::string model;                ///< "gpt2": byte-level BPE; "llama": SentencePiece's BPE
  std::string pre;                  ///< of gpt2: how text is split into words; a name such as qwen2
  std::vector<std::string> tokens;  ///< spellings by id
  std::vector<std::string> merges;  ///< of gpt2: "left right"
  std::vector<float> scores;        ///< of llama, for each token: of two merges, the one into a higher score is first
  std::vector<std::int64_t> token_type;  ///< of each token; empty: all are normal
  std::optional<std::int64_t> bos_token_id, eos_token_id, unknown_token_id;
  std::optional<bool> add_bos_token;  ///< absent: only for llama-bpe and the model llama, as in llama.cpp
  std::optional<bool> add_eos_token;
  std::optional<bool> add_space_prefix;  ///< absent: only for the model llama
};

/// `name`: that of the file, for messages. Throws io::FileError for contradictory or unsupported values.
std::unique_ptr<Tokenizer> make_gguf_tokenizer(const std::string& name, const GgufVocabulary& vocabulary);

/// Returns the tokenizer.json of the same tokenizer. Throws as make_gguf_tokenizer does, and for what tokenizer.json
/// cannot express.
std::string gguf_tokenizer_json(const std::string& name, const GgufVocabulary& vocabulary);

}  // namespace headgate::tokenize
