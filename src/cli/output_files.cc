// SPDX-License-Identifier: Apache-2.0
#include "cli/output_files.hpp"

#include <fmt/format.h>

#include <filesystem>
#include <system_error>

#include "cli/verbs.hpp"
#include "io/staged_file.hpp"

namespace headgate::cli {
namespace {

/// Whether two paths lead to one file, be it there or not.
bool same_place(const std::string& a, const std::string& b) {
  std::error_code ignored;
  const auto place = [&](const std::string& path) { return std::filesystem::weakly_canonical(path, ignored); };
  return std::filesystem::equivalent(a, b, ignored) || place(a) == place(b);
}

}  // namespace

void check_outputs(const std::vector<OutputFile>& outputs, const std::vector<std::string>& inputs) {
  for (std::size_t i = 0; i < outputs.size(); ++i) {
    const auto& [option, path] = outputs[i];
    if (path.empty()) continue;
    for (std::size_t j = i + 1; j < outputs.size(); ++j) {
      const auto& [other, other_path] = outputs[j];
      if (other_path.empty() || !same_place(path, other_path)) continue;
      throw UsageError(fmt::format("{} {} and {} {} are one file", option, path, other, other_path));
    }
    for (const std::string& input : inputs) {
      if (same_place(path, input)) throw UsageError(fmt::format("{} {} would replace what is read", option, path));
    }
    io::check_writable(path);
  }
}

}  // namespace headgate::cli
