// SPDX-License-Identifier: Apache-2.0
#include "models/io/given_path.hpp"

#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <climits>
#include <cstring>
#include <filesystem>
#include <optional>
#include <string_view>
#include <system_error>
#include <vector>

#include "models/io/input_file.hpp"
#include "models/io/staged_directory.hpp"

namespace headgate::io {
namespace {

namespace fs = std::filesystem;

/// Returns whether `path` may be the name of a model on the Hub: OWNER/NAME.
bool is_hub_name(const std::string& path) {
  const auto slash = path.find('/');
  if (slash == std::string::npos || path.find('/', slash + 1) != std::string::npos) return false;
  const auto is_word = [](std::string_view word) {
    const auto in_names = [](char c) {
      return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '-' || c == '_' ||
             c == '.';
    };
    return !word.empty() && word.front() != '.' && std::all_of(word.begin(), word.end(), in_names);
  };
  std::error_code ignored;
  return is_word(std::string_view{path}.substr(0, slash)) && is_word(std::string_view{path}.substr(slash + 1)) &&
         !fs::exists(path.substr(0, slash), ignored);
}

/// Returns the first directory on the way to `path` that the process has no permission to enter.
std::string forbidden_directory(const std::string& path) {
  fs::path way;
  for (const fs::path& part : fs::path(path)) {
    if (!way.empty() && ::access(way.c_str(), X_OK) != 0) break;
    way /= part;
  }
  return way.string();
}

[[noreturn]] void refuse_absent(const std::string& path) {
  std::error_code error;
  if (fs::is_symlink(fs::symlink_status(path, error))) {
    fail(path, "is a link to {}, which does not exist", printable(fs::read_symlink(path, error).string(), PATH_MAX));
  }
  if (is_hub_name(path)) {
    fail(path,
         "does not exist; a model of the Hugging Face Hub is downloaded first, `hf download {} --local-dir DIR`, "
         "and given as DIR",
         path);
  }
  fs::path way;
  for (const fs::path& part : fs::path(path).parent_path()) {
    way /= part;
    if (!fs::exists(way, error)) fail(path, "does not exist: there is no directory {}", way.string());
  }
  fail(path, "does not exist");
}

[[noreturn]] void refuse_unreachable(const std::string& path, int reason) {
  switch (reason) {
    case ENOENT: refuse_absent(path);
    case ELOOP: fail(path, "is a loop of symbolic links");
    case EACCES: fail(path, "no permission to enter the directory {}", forbidden_directory(path));
    default: fail(path, "cannot be reached: {}", std::strerror(reason));
  }
}

std::vector<std::string> directories_in(const std::string& path) {
  std::vector<std::string> out;
  std::error_code error;
  for (const auto& entry : fs::directory_iterator(path, error)) {
    if (entry.is_directory(error)) out.push_back(entry.path().string());
  }
  std::sort(out.begin(), out.end());
  return out;
}

/// Returns the directory of a snapshot if `path` is a model of the Hub's cache, else `path`.
std::string snapshot_in(const std::string& path) {
  constexpr std::size_t kMostOfName = 4096;
  std::error_code error;
  const std::string snapshots = path + "/snapshots", main = path + "/refs/main";
  if (!fs::is_directory(snapshots, error)) return path;
  if (fs::exists(main, error)) {
    std::string name = read_text(main, kMostOfName);
    while (!name.empty() && (name.back() == '\n' || name.back() == '\r')) name.pop_back();
    const bool plain = !name.empty() && name.front() != '.' && name.find('/') == std::string::npos &&
                       name.find('\0') == std::string::npos;
    if (!plain) fail(main, "'{}' is not the name of a snapshot", printable(name));
    std::string named = snapshots + "/" + name;
    if (!fs::is_directory(named, error)) {
      fail(path, "refs/main names the snapshot {}, which is not there: download the model again", printable(name));
    }
    return named;
  }
  const std::vector<std::string> there = directories_in(snapshots);
  if (there.empty()) fail(path, "is a model of the Hub's cache without a snapshot: download it again");
  if (there.size() > 1) {
    fail(path, "has {} snapshots and no refs/main: give one of them, such as {}", there.size(), there.front());
  }
  return there.front();
}

}  // namespace

std::string given_path(const std::string& path) {
  if (path.empty()) throw FileError("the path is empty");
  if (path.find('\0') != std::string::npos) fail(path, "the path contains a NUL byte");
  struct stat facts {};
  if (::stat(path.c_str(), &facts) != 0) {
    const int reason = errno;
    if (std::string old = present_directory(path); old != path) return old;
    refuse_unreachable(path, reason);
  }
  if (S_ISDIR(facts.st_mode)) {
    if (::access(path.c_str(), R_OK | X_OK) != 0) fail(path, "no permission to read this directory");
    return snapshot_in(path);
  }
  if (!S_ISREG(facts.st_mode)) fail(path, "is neither a file nor a directory");
  if (::access(path.c_str(), R_OK) != 0) fail(path, "no permission to read this file");
  if (facts.st_size == 0) fail(path, "is an empty file");
  return path;
}

}  // namespace headgate::io
