// SPDX-License-Identifier: Apache-2.0
#include "models/tokenize/tokenizer_file.hpp"

#include <algorithm>
#include <array>
#include <filesystem>
#include <string_view>
#include <system_error>

#include "models/io/given_path.hpp"
#include "models/io/input_file.hpp"
#include "models/io/safetensors.hpp"
#include "models/tokenize/gguf_file.hpp"
#include "models/tokenize/open.hpp"
#include "models/tokenize/tokenizer_json.hpp"

namespace headgate::tokenize {
namespace {

namespace fs = std::filesystem;

/// Returns the path of tokenizer.json in `directory` or in its subdirectory `checkpoint`. Throws io::FileError if
/// neither directory has one.
std::string file_in(const std::string& path, const std::string& directory) {
  std::error_code ignored;
  for (const char* place : {"/tokenizer.json", "/checkpoint/tokenizer.json"}) {
    if (fs::exists(directory + place, ignored)) return directory + place;
  }
  io::fail(path, "no tokenizer.json in this directory");
}

}  // namespace

TokenizerFile open_tokenizer_file(const std::string& path) {
  std::string file = io::given_path(path);
  std::error_code ignored;
  const bool is_directory = fs::is_directory(file, ignored);
  if (is_directory) file = file_in(path, file);
  TokenizerFile out;
  out.json =
      is_gguf_file(file) ? gguf_tokenizer_json(file, read_gguf_vocabulary(io::GgufFile(file))) : read_json_text(file);
  out.tokenizer = parse_tokenizer_json(file, out.json);
  if (is_directory) check_files_beside(fs::path(file).parent_path().string(), *out.tokenizer);
  io::Checksum hash;
  hash.add(out.json.data(), out.json.size());
  out.hash = hash.text();
  return out;
}

std::int32_t end_of_text(const Tokenizer& tokenizer) {
  constexpr std::array<std::string_view, 5> kNames{"<|endoftext|>", "<|end_of_text|>", "</s>", "<eos>", "<|end|>"};
  for (const std::string_view name : kNames) {
    const std::int32_t id = tokenizer.find(name);
    if (id != kNoToken && tokenizer.special(id)) return id;
  }
  return kNoToken;
}

std::vector<std::int32_t> leading_special_ids(const Tokenizer& tokenizer) {
  constexpr std::string_view kText = "a";
  const Encoding with = tokenizer.encode(kText, {.spans = true});
  const std::vector<std::int32_t> without = tokenizer.encode(kText, {.add_special = false}).ids;
  if (!without.empty())
    return {with.ids.begin(), std::search(with.ids.begin(), with.ids.end(), without.begin(), without.end())};
  // No token represents kText, so all ids are special tokens. Special tokens in front of a text have empty spans at
  // offset 0. Special tokens after it have empty spans at the end of the text, so end > 0 finds the first of them.
  const auto after = std::find_if(with.spans.begin(), with.spans.end(), [](Span span) { return span.end > 0; });
  return {with.ids.begin(), with.ids.begin() + (after - with.spans.begin())};
}

}  // namespace headgate::tokenize
