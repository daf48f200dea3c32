// SPDX-License-Identifier: Apache-2.0
#include "models/io/run_state.hpp"

#include <algorithm>
#include <cstddef>

#include "models/io/exists.hpp"
#include "models/io/input_file.hpp"

namespace headgate::io {
namespace {

/// Returns whether the Trainer of transformers wrote the file. Searches only the beginning for distinctive keys,
/// because the file can be large. Does not parse it, because it can contain NaN, which is not JSON.
bool is_of_transformers(const std::string& path) {
  constexpr std::size_t kBeginning = std::size_t{1} << 16;
  const InputFile file(path);
  std::string text(std::min(file.size(), kBeginning), '\0');
  file.read(text.data(), text.size());
  return text.find("\"global_step\"") != std::string::npos && text.find("\"format\"") == std::string::npos;
}

}  // namespace

std::string read_run_state(const std::string& directory) {
  constexpr std::size_t kMaxBytes = std::size_t{1} << 24;
  const std::string path = directory + "/" + kRunState;
  if (!exists(path) || is_of_transformers(path)) return "";
  std::string text = read_text(path, kMaxBytes);
  if (text.empty()) fail(path, "is empty");
  return text;
}

}  // namespace headgate::io
