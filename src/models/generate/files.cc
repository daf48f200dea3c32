// SPDX-License-Identifier: Apache-2.0
#include "models/generate/files.hpp"

#include <algorithm>
#include <array>
#include <string_view>

#include "models/io/exists.hpp"
#include "models/io/input_file.hpp"
#include "models/io/json.hpp"
#include "models/tokenize/token_content.hpp"

namespace headgate::generate {
namespace {

constexpr std::size_t kMaxBytes = std::size_t{1} << 26;
constexpr int kMaxDepth = 32;
constexpr const char* kEndId = "eos_token_id";
constexpr const char* kTemplate = "chat_template";

/// Holds the name of a special token in chat templates, and the GGUF key of its id.
struct Role {
  const char* name;
  const char* gguf_key;
};
constexpr std::array<Role, 7> kRoles{{{"bos_token", "tokenizer.ggml.bos_token_id"},
                                      {"eos_token", "tokenizer.ggml.eos_token_id"},
                                      {"unk_token", "tokenizer.ggml.unknown_token_id"},
                                      {"sep_token", "tokenizer.ggml.seperator_token_id"},
                                      {"pad_token", "tokenizer.ggml.padding_token_id"},
                                      {"cls_token", "tokenizer.ggml.cls_token_id"},
                                      {"mask_token", "tokenizer.ggml.mask_token_id"}}};

/// A key of generation_config.json that changes which tokens transformers chooses, even without sampling. It changes
/// nothing if its value is `neutral`, null or empty.
struct ChoiceKey {
  const char* key;
  double neutral;
};
constexpr double kNone = -1.0;  // no number is neutral
constexpr std::array<ChoiceKey, 13> kChoiceKeys{{{"repetition_penalty", 1.0},
                                                 {"encoder_repetition_penalty", 1.0},
                                                 {"no_repeat_ngram_size", 0.0},
                                                 {"sequence_bias", kNone},
                                                 {"bad_words_ids", kNone},
                                                 {"suppress_tokens", kNone},
                                                 {"begin_suppress_tokens", kNone},
                                                 {"min_length", 0.0},
                                                 {"min_new_tokens", 0.0},
                                                 {"forced_eos_token_id", kNone},
                                                 {"exponential_decay_length_penalty", kNone},
                                                 {"guidance_scale", 1.0},
                                                 {"num_beams", 1.0}}};

/// Returns the object in a JSON file, or an empty object if the file does not exist.
io::Json object_in(const std::string& path) {
  if (!io::exists(path)) return io::Json::object();
  io::Json json = io::parse_json(path, io::read_text(path, kMaxBytes), kMaxDepth);
  if (!json.is_object()) io::fail(path, "not a JSON object");
  return json;
}

class EndIds {
 public:
  explicit EndIds(std::int64_t vocab) : vocab_(vocab) {}

  void add(const std::string& path, const std::string& key, std::int64_t id) {
    if (id < 0 || id >= vocab_) io::fail(path, "{} {} is outside the vocabulary of {} tokens", key, id, vocab_);
    ids_.push_back(static_cast<std::int32_t>(id));
  }
  void add(const std::string& path, const io::Json& value) {
    if (!value.is_number_integer()) io::fail(path, "{} is neither an integer nor a list of integers", kEndId);
    // An unsigned number above the largest i64 becomes negative. add() throws for it.
    add(path, kEndId, value.get<std::int64_t>());
  }
  /// Returns the ids in ascending order without duplicates.
  std::vector<std::int32_t> take() {
    std::sort(ids_.begin(), ids_.end());
    ids_.erase(std::unique(ids_.begin(), ids_.end()), ids_.end());
    return std::move(ids_);
  }

 private:
  std::int64_t vocab_;
  std::vector<std::int32_t> ids_;
};

void add_end_ids(EndIds& ids, const std::string& path, const io::Json& json) {
  const auto found = json.find(kEndId);
  if (found == json.end() || found->is_null()) return;
  if (!found->is_array()) return ids.add(path, *found);
  for (const io::Json& id : *found) ids.add(path, id);
}

/// Reads the ids that end a text from generation_config.json and config.json. In models that also read images, the
/// object text_config of config.json has them.
std::vector<std::int32_t> end_ids_in(const std::string& directory, std::int64_t vocab) {
  EndIds ids(vocab);
  for (const char* file : {"/generation_config.json", "/config.json"}) {
    const std::string path = directory + file;
    const io::Json json = object_in(path);
    add_end_ids(ids, path, json);
    const auto text = json.find("text_config");
    if (text != json.end() && text->is_object()) add_end_ids(ids, path, *text);
  }
  return ids.take();
}

/// Returns the settings in generation_config.json that kChoiceKeys names, each as its key and its value in JSON.
std::vector<std::string> settings_not_followed(const std::string& directory) {
  constexpr std::size_t kMostText = 60;
  const io::Json json = object_in(directory + "/generation_config.json");
  std::vector<std::string> out;
  for (const ChoiceKey& each : kChoiceKeys) {
    const io::Json value = json.value(each.key, io::Json());
    if (value.is_null() || (value.is_structured() && value.empty())) continue;
    if (value.is_number() && value.get<double>() == each.neutral) continue;
    std::string text = io::printable(value.dump(-1, ' ', true));
    if (text.size() > kMostText) text = text.substr(0, kMostText) + "...";
    out.push_back(std::string(each.key) + " " + text);
  }
  return out;
}

std::string template_of(const std::string& path, const io::Json& value) {
  if (value.is_null()) return "";
  if (value.is_string()) return value.get<std::string>();
  if (!value.is_array()) io::fail(path, "{} is neither a string nor a list", kTemplate);
  for (const io::Json& entry : value) {
    if (!entry.is_object()) io::fail(path, "{}: an element is not an object", kTemplate);
    const auto name = entry.find("name"), text = entry.find("template");
    const bool whole = name != entry.end() && name->is_string() && text != entry.end() && text->is_string();
    if (!whole) io::fail(path, "{}: an element lacks the strings name and template", kTemplate);
    if (*name == "default") return text->get<std::string>();
  }
  io::fail(path, "{}: no element is named default", kTemplate);
}

std::string template_in(const std::string& directory) {
  if (const std::string file = directory + "/chat_template.jinja"; io::exists(file))
    return io::read_text(file, kMaxBytes);
  for (const char* file : {"/tokenizer_config.json", "/chat_template.json"}) {
    const std::string path = directory + file;
    const io::Json json = object_in(path);
    const auto found = json.find(kTemplate);
    if (found == json.end()) continue;
    if (std::string text = template_of(path, *found); !text.empty()) return text;
  }
  return "";
}

/// Adds a special token, or replaces the one with the same name.
void set_special_token(GenerationFiles& out, const std::string& name, const std::string& spelling) {
  std::erase_if(out.special_tokens, [&name](const auto& token) { return token.first == name; });
  out.special_tokens.emplace_back(name, spelling);
}

/// Adds the special tokens of `json` whose keys end with `suffix`. Omits keys that are names in kRoles, such as
/// bos_token.
void add_other_tokens(GenerationFiles& out, const io::Json& json, std::string_view suffix) {
  for (const auto& item : json.items()) {
    const bool role =
        std::any_of(kRoles.begin(), kRoles.end(), [&](const Role& each) { return each.name == item.key(); });
    const std::string* spelling = tokenize::token_content(item.value());
    if (!role && spelling != nullptr && item.key().ends_with(suffix)) set_special_token(out, item.key(), *spelling);
  }
}

/// Adds the special tokens of a tokenizer's JSON file. A token replaces an earlier one of the same name. Reads these
/// keys:
/// - the names in kRoles, such as bos_token
/// - other keys that end with "_token"
/// - the members of extra_special_tokens and model_specific_special_tokens
void add_special_tokens(GenerationFiles& out, const std::string& path, const io::Json& json) {
  for (const Role& role : kRoles) {
    const auto found = json.find(role.name);
    if (found == json.end() || found->is_null()) continue;
    const std::string* spelling = tokenize::token_content(*found);
    if (spelling == nullptr) {
      io::fail(path, "{} is neither a string nor an object with the string content", role.name);
    }
    set_special_token(out, role.name, *spelling);
  }
  add_other_tokens(out, json, "_token");
  for (const char* key : {"extra_special_tokens", "model_specific_special_tokens"}) {
    const auto named = json.find(key);
    if (named != json.end() && named->is_object()) add_other_tokens(out, *named, "");
  }
}

/// Reads special tokens from tokenizer_config.json. If that file has no added_tokens_decoder, also reads
/// special_tokens_map.json, as transformers does for old models.
void add_special_tokens(GenerationFiles& out, const std::string& directory) {
  const std::string path = directory + "/tokenizer_config.json", old_path = directory + "/special_tokens_map.json";
  const io::Json json = object_in(path);
  add_special_tokens(out, path, json);
  if (!json.contains("added_tokens_decoder")) add_special_tokens(out, old_path, object_in(old_path));
}

void add_special_tokens(GenerationFiles& out, const io::GgufFile& file) {
  constexpr const char* kTokens = "tokenizer.ggml.tokens";
  if (!file.has(kTokens)) return;
  const auto tokens = file.strings(kTokens);
  for (const Role& role : kRoles) {
    if (!file.has(role.gguf_key)) continue;
    const std::int64_t id = file.integer(role.gguf_key);
    if (id < 0 || static_cast<std::size_t>(id) >= tokens.size())
      continue;  // the id is out of range; reading the tokenizer throws for it
    out.special_tokens.emplace_back(role.name, std::string(tokens[static_cast<std::size_t>(id)]));
  }
}

}  // namespace

GenerationFiles read_generation_files(const std::string& path, const models::ModelFile& model) {
  GenerationFiles out;
  if (const io::GgufFile* gguf = model.gguf()) {
    EndIds ids(model.config().vocab);
    for (const char* name : {"eos", "eot", "eom", "fim_pad", "fim_rep", "fim_sep"}) {  // the keys that llama.cpp reads
      const std::string key = std::string("tokenizer.ggml.") + name + "_token_id";
      if (gguf->has(key)) ids.add(path, key, gguf->integer(key));
    }
    out.end_ids = ids.take();
    constexpr const char* kKey = "tokenizer.chat_template";
    if (gguf->has(kKey)) out.chat_template = gguf->string(kKey);
    add_special_tokens(out, *gguf);
  } else {
    out.end_ids = end_ids_in(path, model.config().vocab);
    out.chat_template = template_in(path);
    add_special_tokens(out, path);
    out.not_followed = settings_not_followed(path);
  }
  return out;
}

io::Json read_config_end_ids(const std::string& directory) {
  const io::Json json = object_in(directory + "/config.json");
  const auto text = json.find("text_config");
  const bool inner = text != json.end() && text->is_object() && text->contains(kEndId) && !text->at(kEndId).is_null();
  return inner ? text->at(kEndId) : json.value(kEndId, io::Json());
}

}  // namespace headgate::generate
