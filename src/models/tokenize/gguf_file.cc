// SPDX-License-Identifier: Apache-2.0
#include "models/tokenize/gguf_file.hpp"

#include <algorithm>
#include <optional>
#include <string>
#include <vector>

#include "models/io/gguf_keys.hpp"
#include "models/io/input_file.hpp"

namespace headgate::tokenize {
namespace {

/// Reads values of the keys tokenizer.ggml.*. A lookup marks its key as known. finish() throws if the file has another
/// key of the tokenizer that may change results.
class TokenizerValues {
 public:
  explicit TokenizerValues(const io::GgufFile& file) : file_(file) {}

  /// Returns the full name of a key, or nullopt if the file does not have the key.
  std::optional<std::string> find(const std::string& name) {
    known_.push_back("tokenizer.ggml." + name);
    return file_.has(known_.back()) ? std::optional(known_.back()) : std::nullopt;
  }
  std::optional<std::int64_t> integer(const std::string& name) {
    const auto key = find(name);
    return key ? std::optional(file_.integer(*key)) : std::nullopt;
  }
  std::optional<bool> flag(const std::string& name) {
    const auto key = find(name);
    return key ? std::optional(file_.boolean(*key)) : std::nullopt;
  }
  void finish(const std::string& model) const {
    for (const auto& [key, value] : file_.values()) {
      const bool known = !key.starts_with("tokenizer.") || std::find(known_.begin(), known_.end(), key) != known_.end();
      if (!known && !io::is_harmless_gguf_key(key, model)) {
        io::fail(file_.path(), "{} is not supported", io::printable(key, 80));
      }
    }
  }

 private:
  const io::GgufFile& file_;
  std::vector<std::string> known_;
};

}  // namespace

GgufVocabulary read_gguf_vocabulary(const io::GgufFile& file) {
  TokenizerValues in(file);
  GgufVocabulary out;
  const auto model = in.find("model"), tokens = in.find("tokens");
  for (const auto& [key, name] : {std::pair{model, "model"}, std::pair{tokens, "tokens"}}) {
    if (!key) io::fail(file.path(), "has no tokenizer: tokenizer.ggml.{} is missing", name);
  }
  out.model = file.string(*model);
  out.tokens = file.strings(*tokens);
  if (const auto key = in.find("pre")) out.pre = file.string(*key);
  if (const auto key = in.find("merges")) out.merges = file.strings(*key);
  if (const auto key = in.find("token_type")) out.token_type = file.integers(*key);
  if (const auto key = in.find("scores")) out.scores = file.numbers(*key);
  out.bos_token_id = in.integer("bos_token_id");
  out.eos_token_id = in.integer("eos_token_id");
  out.unknown_token_id = in.integer("unknown_token_id");
  out.add_bos_token = in.flag("add_bos_token");
  out.add_eos_token = in.flag("add_eos_token");
  out.add_space_prefix = in.flag("add_space_prefix");
  constexpr const char* kSpaces = "remove_extra_whitespaces";
  if (in.flag(kSpaces).value_or(false)) io::fail(file.path(), "tokenizer.ggml.{} is true, not supported", kSpaces);
  in.finish(out.model);
  return out;
}

}  // namespace headgate::tokenize
