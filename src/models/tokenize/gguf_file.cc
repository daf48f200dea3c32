// SPDX-License-Identifier: Apache-2.0
#include "models/tokenize/gguf_file.hpp"

#include <optional>
#include <string>

namespace headgate::tokenize {
namespace {

std::string key_of(const std::string& name) { return "tokenizer.ggml." + name; }

std::optional<std::int64_t> integer(const io::GgufFile& file, const std::string& name) {
  if (!file.has(key_of(name))) return std::nullopt;
  return file.integer(key_of(name));
}

std::optional<bool> flag(const io::GgufFile& file, const std::string& name) {
  if (!file.has(key_of(name))) return std::nullopt;
  return file.boolean(key_of(name));
}

}  // namespace

GgufVocabulary read_gguf_vocabulary(const io::GgufFile& file) {
  GgufVocabulary out;
  out.model = file.string(key_of("model"));
  if (file.has(key_of("pre"))) out.pre = file.string(key_of("pre"));
  out.tokens = file.strings(key_of("tokens"));
  if (file.has(key_of("merges"))) out.merges = file.strings(key_of("merges"));
  if (file.has(key_of("token_type"))) out.token_type = file.integers(key_of("token_type"));
  if (file.has(key_of("scores"))) out.scores = file.numbers(key_of("scores"));
  out.bos_token_id = integer(file, "bos_token_id");
  out.eos_token_id = integer(file, "eos_token_id");
  out.unknown_token_id = integer(file, "unknown_token_id");
  out.add_bos_token = flag(file, "add_bos_token");
  out.add_eos_token = flag(file, "add_eos_token");
  out.add_space_prefix = flag(file, "add_space_prefix");
  return out;
}

}  // namespace headgate::tokenize
