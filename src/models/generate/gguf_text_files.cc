// SPDX-License-Identifier: Apache-2.0
#include "models/generate/gguf_text_files.hpp"

#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <string_view>
#include <utility>

#include "models/generate/files.hpp"
#include "models/io/json.hpp"
#include "models/tokenize/gguf_file.hpp"

namespace headgate::generate {
namespace {

using Json = nlohmann::ordered_json;

/// Returns the token id that the file has for `key`. Returns nullopt if the file does not have the key or the id is
/// outside the vocabulary.
std::optional<std::int64_t> token_of(const io::GgufFile& file, std::string_view key, std::size_t vocab) {
  if (!file.has(key)) return std::nullopt;
  const std::int64_t id = file.integer(key);
  return id >= 0 && static_cast<std::size_t>(id) < vocab ? std::optional(id) : std::nullopt;
}

/// Returns the text of tokenizer_config.json. Leaves out special tokens that are ordinary words of `tokenizer`, because
/// transformers would make them added tokens and so change the ids of texts.
std::string tokenizer_config(const models::ModelFile& model, const GenerationFiles& generation,
                             const tokenize::Tokenizer& tokenizer) {
  Json out = {{"tokenizer_class", "PreTrainedTokenizerFast"},
              {"model_max_length", model.config().seq_len},
              {"clean_up_tokenization_spaces", false}};
  for (const auto& [name, spelling] : generation.special_tokens) {
    if (tokenizer.find_added(spelling) != nullptr) out[name] = spelling;
  }
  if (!generation.chat_template.empty()) out["chat_template"] = generation.chat_template;
  return io::json_text(out);
}

std::string generation_config(const models::ModelFile& model, const std::vector<std::int32_t>& end_ids) {
  Json out = Json::object();
  const auto vocab = static_cast<std::size_t>(model.config().vocab);
  const auto bos = token_of(*model.gguf(), "tokenizer.ggml.bos_token_id", vocab);
  const auto pad = token_of(*model.gguf(), "tokenizer.ggml.padding_token_id", vocab);
  if (bos) out["bos_token_id"] = *bos;
  if (end_ids.size() == 1) out["eos_token_id"] = end_ids.front();
  if (end_ids.size() > 1) out["eos_token_id"] = end_ids;
  if (pad) out["pad_token_id"] = *pad;
  return io::json_text(out);
}

}  // namespace

GgufTextFiles gguf_text_files(const std::string& path, const models::ModelFile& model) {
  const GenerationFiles generation = read_generation_files(path, model);
  GgufTextFiles out;
  try {
    const tokenize::GgufVocabulary vocabulary = tokenize::read_gguf_vocabulary(*model.gguf());
    // Calls tokenizer_config() before any file is added, because it can throw.
    std::string config = tokenizer_config(model, generation, *tokenize::make_gguf_tokenizer(path, vocabulary));
    out.files.push_back({"tokenizer.json", tokenize::gguf_tokenizer_json(path, vocabulary)});
    out.files.push_back({"tokenizer_config.json", std::move(config)});
  } catch (const io::FileError& error) {
    out.no_tokenizer = error.what();
  }
  out.files.push_back({"generation_config.json", generation_config(model, generation.end_ids)});
  return out;
}

}  // namespace headgate::generate
