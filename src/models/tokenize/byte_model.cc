// SPDX-License-Identifier: Apache-2.0
#include "models/tokenize/byte_model.hpp"

#include <cstddef>
#include <cstdint>

#include "models/io/exists.hpp"
#include "models/io/input_file.hpp"
#include "models/io/json.hpp"
#include "models/io/run_state.hpp"
#include "models/tokenize/tokenizer.hpp"

namespace headgate::tokenize {
namespace {

using io::Json;

constexpr std::size_t kMaxBytes = std::size_t{1} << 24;
constexpr int kMaxDepth = 16;
constexpr std::uint64_t kBytes = 256;
/// Key of the BOS id in config.json. In a model whose tokens are bytes, the value is kByteBos if BOS preceded each text
/// in training. Otherwise it is null.
constexpr const char* kBosKey = "bos_token_id";

/// Parses the text of a file, which must be a JSON object.
Json object_of(const std::string& path, const std::string& text) {
  Json json = io::parse_json(path, text, kMaxDepth);
  if (!json.is_object()) io::fail(path, "not a JSON object");
  return json;
}

/// Returns whether object[key] exists and equals `value`.
template <typename Value>
bool has(const Json& object, const char* key, const Value& value) {
  const auto found = object.find(key);
  return found != object.end() && *found == value;
}

/// Returns the config of the text model, which is a part of the file if the model also reads images.
const Json& text_config_of(const Json& file) {
  const auto text = file.find("text_config");
  return text != file.end() && text->is_object() ? *text : file;
}

/// Returns whether a training run put BOS before each sequence. Runs of the task bigram-backcopy always do.
bool trained_after_bos(const Json& json) { return has(json, "bos", "on") || has(json, "task", "bigram-backcopy"); }

/// Returns whether a training run read the ids of a tokenizer.
bool trained_on_ids(const Json& json) {
  const auto hash = json.find("tokenizer_hash");
  return hash != json.end() && *hash != Json("");
}

}  // namespace

ByteText byte_text_of(const std::string& directory) {
  if (io::exists(directory + "/tokenizer.json")) return ByteText::none;
  const std::string path = directory + "/config.json", state = io::read_run_state(directory);
  const Json file = object_of(path, io::read_text(path, kMaxBytes));
  const Json& config = text_config_of(file);
  const auto vocab = config.find("vocab_size");
  const bool has_vocab = vocab != config.end() && vocab->is_number_unsigned();
  const std::uint64_t tokens = has_vocab ? vocab->get<std::uint64_t>() : kBytes + 1;
  const Json run = state.empty() ? Json::object() : object_of(directory + "/" + io::kRunState, state);
  if (trained_on_ids(run)) return ByteText::none;
  const bool trained_here = !state.empty(), begins = has(config, kBosKey, kByteBos);
  const bool few = tokens <= kBytes || tokens == kVocabWithByteBos;
  const bool without_bos = has(config, "model_type", "headgate") && has(config, kBosKey, nullptr);
  if (!few && !begins && !trained_here && !without_bos) return ByteText::none;
  if (begins && tokens <= kBytes) {
    io::fail(path, "{} {} is outside the vocabulary of {} tokens", kBosKey, kByteBos, tokens);
  }
  if (config.contains(kBosKey)) return begins ? ByteText::after_bos : ByteText::plain;
  const bool after_bos = trained_here ? trained_after_bos(run) : tokens == kVocabWithByteBos;
  return after_bos ? ByteText::after_bos : ByteText::plain;
}

bool has_byte_bos(const std::string& config_file) {
  const Json file = object_of(config_file, io::read_text(config_file, kMaxBytes));
  return has(text_config_of(file), kBosKey, kByteBos);
}

}  // namespace headgate::tokenize
