// SPDX-License-Identifier: Apache-2.0
#include "models/tokenize/open.hpp"

#include <filesystem>
#include <string_view>
#include <system_error>

#include "models/io/exists.hpp"
#include "models/io/given_path.hpp"
#include "models/io/input_file.hpp"
#include "models/tokenize/byte_model.hpp"
#include "models/tokenize/gguf_file.hpp"
#include "models/tokenize/tokenizer_json.hpp"

namespace headgate::tokenize {
namespace {

namespace fs = std::filesystem;

/// Returns the byte tokenizer of a model directory with a config.json and without a tokenizer.json. Throws
/// io::FileError if the model does not read bytes.
std::unique_ptr<Tokenizer> tokenizer_of_bytes(const std::string& directory) {
  switch (byte_text_of(directory)) {
    case ByteText::none: break;
    case ByteText::plain: return byte_tokenizer();
    case ByteText::after_bos: return byte_tokenizer_with_bos();
  }
  io::fail(
      directory,
      "no tokenizer.json, and by config.json the model does not read bytes (vocab_size at most 256, or {} with BOS; "
      "bos_token_id {} or, of model_type headgate, null)",
      kVocabWithByteBos, kByteBos);
}

std::unique_ptr<Tokenizer> read_file(const std::string& path) {
  if (!is_gguf_file(path)) return read_tokenizer_json(path);
  return make_gguf_tokenizer(path, read_gguf_vocabulary(io::GgufFile(path)));
}

}  // namespace

bool is_gguf_file(const std::string& path) {
  constexpr std::string_view kMagic = "GGUF";
  std::string front(kMagic.size(), '\0');
  const io::InputFile file(path);
  if (file.size() >= front.size()) file.read(front.data(), front.size());
  return front == kMagic;
}

std::unique_ptr<Tokenizer> open_tokenizer(const std::string& path) {
  const std::string there = io::given_path(path);
  std::error_code ignored;
  if (!fs::is_directory(there, ignored)) return read_file(there);
  for (const std::string& directory : {there, there + "/checkpoint"}) {
    const std::string file = directory + "/tokenizer.json";
    if (!io::exists(file)) continue;
    std::unique_ptr<Tokenizer> tokenizer = read_tokenizer_json(file);
    check_files_beside(directory, *tokenizer);
    return tokenizer;
  }
  for (const std::string& directory : {there, there + "/checkpoint"}) {
    if (io::exists(directory + "/config.json")) return tokenizer_of_bytes(directory);
  }
  io::fail(path, "neither tokenizer.json nor config.json");
}

}  // namespace headgate::tokenize
