// SPDX-License-Identifier: Apache-2.0
#include "models/generate/files.hpp"

#include <algorithm>
#include <filesystem>
#include <system_error>

#include "models/io/input_file.hpp"
#include "models/io/json.hpp"

namespace headgate::generate {
namespace {

constexpr std::size_t kMaxBytes = std::size_t{1} << 26;
constexpr int kMaxDepth = 32;
constexpr const char* kEndId = "eos_token_id";
constexpr const char* kTemplate = "chat_template";

bool exists(const std::string& path) {
  std::error_code error;
  return std::filesystem::exists(path, error);
}

/// Returns the object in a JSON file; an empty one if there is no file.
io::Json object_in(const std::string& path) {
  if (!exists(path)) return io::Json::object();
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
    // An unsigned number above the largest i64 becomes negative, which is outside the vocabulary too.
    add(path, kEndId, value.get<std::int64_t>());
  }
  /// Returns the ids in ascending order, each once.
  std::vector<std::int32_t> take() {
    std::sort(ids_.begin(), ids_.end());
    ids_.erase(std::unique(ids_.begin(), ids_.end()), ids_.end());
    return std::move(ids_);
  }

 private:
  std::int64_t vocab_;
  std::vector<std::int32_t> ids_;
};

void add_end_ids(EndIds& ids, const std::string& path) {
  const io::Json json = object_in(path);
  const auto found = json.find(kEndId);
  if (found == json.end() || found->is_null()) return;
  if (!found->is_array()) return ids.add(path, *found);
  for (const io::Json& id : *found) ids.add(path, id);
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
  if (const std::string file = directory + "/chat_template.jinja"; exists(file)) return io::read_text(file, kMaxBytes);
  const std::string path = directory + "/tokenizer_config.json";
  const io::Json json = object_in(path);
  const auto found = json.find(kTemplate);
  return found == json.end() ? "" : template_of(path, *found);
}

}  // namespace

GenerationFiles read_generation_files(const std::string& path, const models::ModelFile& model) {
  GenerationFiles out;
  EndIds ids(model.config().vocab);
  if (const io::GgufFile* gguf = model.gguf()) {
    for (const char* name : {"eos", "eot", "eom", "fim_pad", "fim_rep", "fim_sep"}) {  // as in llama.cpp
      const std::string key = std::string("tokenizer.ggml.") + name + "_token_id";
      if (gguf->has(key)) ids.add(path, key, gguf->integer(key));
    }
    constexpr const char* kKey = "tokenizer.chat_template";
    if (gguf->has(kKey)) out.chat_template = gguf->string(kKey);
  } else {
    for (const char* file : {"/generation_config.json", "/config.json"}) add_end_ids(ids, path + file);
    out.chat_template = template_in(path);
  }
  out.end_ids = ids.take();
  return out;
}

}  // namespace headgate::generate
