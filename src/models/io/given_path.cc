// SPDX-License-Identifier: Apache-2.0
#include "models/io/given_path.hpp"

#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <climits>
#include <cstring>
#include <filesystem>
#include <optional>
#include <system_error>

#include "models/io/hub_cache.hpp"
#include "models/io/input_file.hpp"
#include "models/io/missing_file.hpp"
#include "models/io/staged_directory.hpp"

namespace headgate::io {
namespace {

namespace fs = std::filesystem;

/// Parses `path` as the name OWNER/NAME of a model on the Hub. Returns nullopt if `path` has another form. Also returns
/// nullopt if OWNER exists as a file or directory, because the user then means a path.
std::optional<HubName> hub_name_of(const std::string& path) {
  const std::size_t slash = path.find('/');
  std::error_code ignored;
  if (slash == std::string::npos || fs::exists(path.substr(0, slash), ignored)) return std::nullopt;
  return parse_hub_name(path);
}

/// Returns the first directory in `path` that the process has no permission to enter.
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
    fail<MissingFile>(path, "is a link to {}, which does not exist",
                      printable(fs::read_symlink(path, error).string(), PATH_MAX));
  }
  if (const std::optional<HubName> name = hub_name_of(path)) {
    const std::string revision = name->revision == "main" ? "" : " --revision " + name->revision;
    fail<MissingFile>(
        path,
        "does not exist, and is not in the Hugging Face Hub's cache {} (HF_HUB_CACHE, HF_HOME): `hf download {}{}` "
        "puts it there",
        hub_cache(), name->model, revision);
  }
  fs::path way;
  for (const fs::path& part : fs::path(path).parent_path()) {
    way /= part;
    if (!fs::exists(way, error)) fail<MissingFile>(path, "does not exist: there is no directory {}", way.string());
  }
  fail<MissingFile>(path, "does not exist");
}

[[noreturn]] void refuse_unreachable(const std::string& path, int reason) {
  switch (reason) {
    case ENOENT: refuse_absent(path);
    case ELOOP: fail(path, "is a loop of symbolic links");
    case EACCES: fail(path, "no permission to enter the directory {}", forbidden_directory(path));
    default: fail(path, "cannot be reached: {}", std::strerror(reason));
  }
}

/// Looks in the Hub's cache for the model that `path` names, and returns where it is stored. `reason` is the errno of a
/// failed stat() of `path`. Returns nullopt in these cases:
/// - The cache does not have the model.
/// - `path` is not the name of a model on the Hub.
/// - `reason` is not ENOENT, so that something may exist at `path`.
/// - `path` is a symbolic link that leads to nothing.
std::optional<std::string> in_cache(const std::string& path, int reason) {
  std::error_code error;
  if (reason != ENOENT || fs::exists(fs::symlink_status(path, error))) return std::nullopt;
  const std::optional<HubName> name = parse_hub_name(path);
  return name ? cached_model(*name) : std::nullopt;
}

}  // namespace

std::string given_path(const std::string& path) {
  if (path.empty()) throw FileError("the path is empty");
  if (path.find('\0') != std::string::npos) fail(path, "the path contains a NUL byte");
  struct stat facts {};
  if (::stat(path.c_str(), &facts) != 0) {
    const int reason = errno;
    if (std::string old = present_directory(path); old != path) return old;
    if (std::optional<std::string> cached = in_cache(path, reason)) return *cached;
    refuse_unreachable(path, reason);
  }
  if (S_ISDIR(facts.st_mode)) {
    if (::access(path.c_str(), R_OK | X_OK) != 0) fail(path, "no permission to read this directory");
    std::error_code error;
    return fs::is_directory(path + "/snapshots", error) ? snapshot_of(path, "main") : path;
  }
  if (!S_ISREG(facts.st_mode)) fail(path, "is neither a file nor a directory");
  if (::access(path.c_str(), R_OK) != 0) fail(path, "no permission to read this file");
  if (facts.st_size == 0) fail(path, "is an empty file");
  return path;
}

std::string given_path_or_same(const std::string& path) {
  try {
    return given_path(path);
  } catch (const FileError&) {
    return path;
  }
}

}  // namespace headgate::io
