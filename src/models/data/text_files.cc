// SPDX-License-Identifier: Apache-2.0
#include "models/data/text_files.hpp"

#include <fmt/format.h>
#include <fnmatch.h>

#include <algorithm>
#include <climits>
#include <cstddef>
#include <filesystem>
#include <string_view>
#include <system_error>

#include "models/data/run_files.hpp"
#include "models/io/file_error.hpp"
#include "models/io/input_file.hpp"

namespace headgate::train {

namespace fs = std::filesystem;

namespace {

/// Returns a canonical absolute path, identical for all spellings of a directory. The directory need not exist.
fs::path canonical(const std::string& path) {
  std::error_code error;
  fs::path out = fs::weakly_canonical(fs::absolute(path, error), error);
  return out.has_filename() ? out : out.parent_path();
}

bool hidden(const fs::path& path) { return path.filename().string().starts_with('.'); }

bool matches(const std::vector<std::string>& patterns, const std::string& path, const std::string& name) {
  return std::any_of(patterns.begin(), patterns.end(), [&](const std::string& pattern) {
    return ::fnmatch(pattern.c_str(), path.c_str(), 0) == 0 || ::fnmatch(pattern.c_str(), name.c_str(), 0) == 0;
  });
}

/// Returns a phrase that counts the paths and names the first three: "2 files that … (a, b)". The words after the
/// number are `one` for a single path, otherwise `many`.
std::string phrase(const std::vector<std::string>& paths, std::string_view one, std::string_view many) {
  constexpr std::size_t kNamed = 3;
  constexpr std::size_t kMaxName = 100;
  std::string names;
  for (std::size_t i = 0; i < std::min(paths.size(), kNamed); ++i) {
    names += (i == 0 ? "" : ", ") + io::printable(paths[i], kMaxName);
  }
  if (paths.size() > kNamed) names += fmt::format(" and {} more", paths.size() - kNamed);
  return fmt::format("{} {} ({})", paths.size(), paths.size() == 1 ? one : many, names);
}

}  // namespace

std::vector<std::string> LeftOut::phrases(bool all) const {
  std::vector<std::string> out;
  if (!not_text.empty())
    out.push_back(phrase(not_text, "file that is not UTF-8 text", "files that are not UTF-8 text"));
  if (!unreachable.empty()) {
    out.push_back(phrase(unreachable, "path that cannot be opened", "paths that cannot be opened"));
  }
  if (!runs.empty()) out.push_back(phrase(runs, "path that a run writes", "paths that runs write"));
  if (all && !unmatched.empty()) {
    out.push_back(phrase(unmatched, "file that no pattern includes", "files that no pattern includes"));
  }
  if (bytes > 0) out.push_back(fmt::format("{} bytes of the text that the tokenizer has no token for", bytes));
  return out;
}

std::vector<std::string> files_below(const std::string& directory, const FileChoice& choice, LeftOut& left_out) {
  const fs::path root = canonical(directory);
  const fs::path run = choice.run.empty() ? fs::path() : canonical(choice.run);
  const bool root_is_run = root == run || is_run_or_checkpoint(directory);
  std::vector<std::string> out;
  std::error_code error;
  std::string read = directory;  // the directory being read, for the error message
  for (fs::recursive_directory_iterator entry(directory, error), end; !error && entry != end; entry.increment(error)) {
    const fs::path path = entry->path();
    std::error_code unknown;  // holds an error if the entry's type cannot be read, for example of a dangling link
    const bool is_directory = entry->is_directory(unknown);
    read = (is_directory ? path : path.parent_path()).string();
    const std::string below = path.lexically_relative(directory).string();
    if (hidden(path)) {
      entry.disable_recursion_pending();
    } else if (unknown || path.string().size() >= PATH_MAX) {
      entry.disable_recursion_pending();
      left_out.unreachable.push_back(path.string());
    } else if (is_directory) {
      if (root / below != run && !is_run_or_checkpoint(path.string())) continue;
      entry.disable_recursion_pending();
      left_out.runs.push_back(path.string());
    } else if (entry->is_regular_file(unknown)) {
      const bool log = root_is_run && path == fs::path(metrics_path(directory));
      const bool taken = choice.include.empty() || matches(choice.include, below, path.filename().string());
      (log ? left_out.runs : taken ? out : left_out.unmatched).push_back(path.string());
    }
  }
  if (error) io::fail(read, "cannot read: {}", error.message());
  std::sort(out.begin(), out.end());
  for (auto* list : {&left_out.runs, &left_out.unmatched, &left_out.unreachable}) std::sort(list->begin(), list->end());
  return out;
}

}  // namespace headgate::train
