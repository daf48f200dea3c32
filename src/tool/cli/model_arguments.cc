// SPDX-License-Identifier: Apache-2.0
#include "tool/cli/model_arguments.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <climits>
#include <cstddef>
#include <filesystem>
#include <system_error>

#include "models/families/model_file.hpp"
#include "models/io/input_file.hpp"
#include "tool/cli/verbs.hpp"
#include "tool/console/shell_word.hpp"

namespace headgate::cli {
namespace {

/// Returns whether `path` looks like a text file: its first 4096 bytes contain no NUL.
/// Files named .json or .safetensors and GGUF files never count as text.
bool is_text(const std::string& path) {
  constexpr std::size_t kBeginning = 4096;  // bytes
  std::error_code ignored;
  if (!std::filesystem::is_regular_file(path, ignored) || path.ends_with(".json") || path.ends_with(".safetensors") ||
      models::is_gguf(path))
    return false;
  const io::InputFile file(path);
  std::string beginning(std::min(kBeginning, file.size()), '\0');
  file.read(beginning.data(), beginning.size());
  return !beginning.empty() && beginning.find('\0') == std::string::npos;
}

}  // namespace

void refuse_texts(const std::vector<std::string>& models) {
  for (const std::string& path : models) {
    if (!is_text(path)) continue;
    throw UsageError(
        fmt::format("{} was taken for a MODEL, but is a text: give it as --text {}", path, console::shell_word(path)));
  }
}

void check_text_options(const std::vector<std::string>& text, const std::string& token_ids) {
  if (text.empty() && token_ids.empty()) throw UsageError("one of --text and --token-ids is required");
  if (!text.empty() && !token_ids.empty()) {
    throw UsageError("--text and --token-ids are two inputs; give one of them");
  }
}

void check_include(const char* option, const std::vector<std::string>& paths, const std::vector<std::string>& include) {
  const auto is_file = [](const std::string& path) {
    std::error_code ignored;
    return std::filesystem::is_regular_file(path, ignored);
  };
  if (include.empty() || paths.empty() || !std::all_of(paths.begin(), paths.end(), is_file)) return;
  throw UsageError(fmt::format("--include selects files below a directory, and {} {} is a file", option,
                               io::printable(paths.front(), PATH_MAX)));
}

}  // namespace headgate::cli
