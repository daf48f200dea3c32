// SPDX-License-Identifier: Apache-2.0
#include "models/io/hub_cache.hpp"

#include <algorithm>
#include <cstddef>
#include <cstdlib>
#include <filesystem>
#include <system_error>
#include <vector>

#include "models/io/directory_entries.hpp"
#include "models/io/exists.hpp"
#include "models/io/gguf.hpp"
#include "models/io/input_file.hpp"

namespace headgate::io {
namespace {

namespace fs = std::filesystem;

/// Returns the value of an environment variable, or nullopt if it is unset or empty. An empty value would make a path
/// begin at `/`.
std::optional<std::string> variable(const char* name) {
  const char* value = std::getenv(name);
  return value == nullptr || *value == '\0' ? std::nullopt : std::optional<std::string>(value);
}

bool is_name_character(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '-' || c == '_' || c == '.';
}

bool is_word(std::string_view word) {
  return !word.empty() && word.front() != '.' && std::all_of(word.begin(), word.end(), is_name_character);
}

/// Returns whether `text` is a valid revision: words separated by slashes. No word begins with a dot, so that the path
/// of a revision cannot contain "..".
bool is_revision(std::string_view text) {
  for (std::size_t end = text.find('/'); end != std::string_view::npos; end = text.find('/')) {
    if (!is_word(text.substr(0, end))) return false;
    text.remove_prefix(end + 1);
  }
  return is_word(text);
}

bool is_model_name(std::string_view text) {
  constexpr std::size_t kLongest = 96;
  const std::size_t slash = text.find('/');
  const bool has_owner = slash != std::string_view::npos;
  const std::string_view name = has_owner ? text.substr(slash + 1) : text;
  const auto is_edge = [](char c) { return c == '-' || c == '.'; };
  return text.size() <= kLongest && is_word(name) && (!has_owner || is_word(text.substr(0, slash))) &&
         !is_edge(text.front()) && !is_edge(text.back()) && text.find("--") == std::string_view::npos &&
         text.find("..") == std::string_view::npos && !text.ends_with(".git");
}

/// Replaces a "~" at the beginning of `path` by the home directory.
std::string expanded(const std::string& path) {
  const bool of_home = path == "~" || path.starts_with("~/");
  return of_home ? variable("HOME").value_or("~") + path.substr(1) : path;
}

/// Returns the paths of the directory entries for which wanted(entry) is true, sorted by name. Returns an empty list if
/// the directory does not exist.
template <class Wanted>
std::vector<std::string> entries_in(const std::string& path, const Wanted& wanted) {
  std::vector<std::string> out;
  std::error_code error;
  for (const auto& entry : directory_entries(path, error)) {
    if (wanted(entry)) out.push_back(entry.path().string());
  }
  if (error && error != std::errc::no_such_file_or_directory) fail(path, "cannot read: {}", error.message());
  std::sort(out.begin(), out.end());
  return out;
}

bool is_directory(const std::string& path) {
  std::error_code error;
  return fs::is_directory(path, error);
}

/// Reads the name of a snapshot from `ref`, the path of a file in refs/. Throws FileError if the text is not such a
/// name.
std::string name_in(const std::string& ref) {
  constexpr std::size_t kMostOfName = 4096;
  std::string name = read_text(ref, kMostOfName);
  while (!name.empty() && (name.back() == '\n' || name.back() == '\r')) name.pop_back();
  if (!is_word(name)) fail(ref, "'{}' is not the name of a snapshot", printable(name));
  return name;
}

}  // namespace

std::optional<HubName> parse_hub_name(std::string_view text) {
  const std::size_t at = text.find('@');
  const std::string_view model = text.substr(0, at);
  const std::string_view revision = at == std::string_view::npos ? "main" : text.substr(at + 1);
  if (!is_model_name(model) || !is_revision(revision)) return std::nullopt;
  return HubName{std::string(model), std::string(revision)};
}

std::string hub_cache() {
  for (const char* name : {"HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE"}) {
    if (const auto cache = variable(name)) return expanded(*cache);
  }
  if (const auto home = variable("HF_HOME")) return expanded(*home) + "/hub";
  return expanded(variable("XDG_CACHE_HOME").value_or("~/.cache")) + "/huggingface/hub";
}

std::string snapshot_of(const std::string& model, const std::string& revision) {
  const std::string snapshots = model + "/snapshots";
  const std::string ref = model + "/refs/" + revision;
  std::error_code error;
  if (fs::exists(fs::symlink_status(ref, error))) {
    const std::string name = name_in(ref);
    std::string named = snapshots + "/" + name;
    if (!is_directory(named)) {
      fail(model, "refs/{} names the snapshot {}, which is not there: download the model again", revision, name);
    }
    return named;
  }
  if (std::string named = snapshots + "/" + revision; is_directory(named)) return named;
  const std::vector<std::string> there =
      entries_in(snapshots, [&](const fs::directory_entry& entry) { return entry.is_directory(error); });
  if (there.empty()) fail(model, "is a model of the Hub's cache without a snapshot: download it again");
  if (revision != "main") fail(model, "has no refs/{0} and no snapshot {0}: download this revision", revision);
  if (there.size() > 1) {
    fail(model, "has {} snapshots and no refs/main: give one of them, such as {}", there.size(), there.front());
  }
  return there.front();
}

std::optional<std::string> cached_model(const HubName& name) {
  std::string folder = "models--" + name.model;
  if (const std::size_t slash = folder.find('/'); slash != std::string::npos) folder.replace(slash, 1, "--");
  const std::string model = hub_cache() + "/" + folder;
  if (!is_directory(model)) return std::nullopt;
  std::string snapshot = snapshot_of(model, name.revision);
  const std::vector<std::string> lost = entries_in(snapshot, [](const fs::directory_entry& entry) {
    std::error_code unknown;
    return entry.is_symlink(unknown) && !fs::exists(entry.path(), unknown);
  });
  if (!lost.empty()) fail(lost.front(), "is a link to a file that is not there: download the model again");
  if (exists(snapshot + "/config.json") || exists(snapshot + "/tokenizer.json")) return snapshot;
  const std::vector<std::string> files =
      entries_in(snapshot, [](const fs::directory_entry& entry) { return entry.path().extension() == ".gguf"; });
  if (files.size() > 1 && files != gguf_parts(files.front())) {
    fail(snapshot, "holds {} GGUF files: give the path of one, such as {}", files.size(), files.front());
  }
  return files.empty() ? snapshot : files.front();
}

}  // namespace headgate::io
