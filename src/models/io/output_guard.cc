// SPDX-License-Identifier: Apache-2.0
#include "models/io/output_guard.hpp"

#include <fmt/format.h>
#include <sys/stat.h>

#include <cerrno>
#include <filesystem>
#include <map>
#include <system_error>

#include "headgate/error.hpp"
#include "models/io/file_error.hpp"
#include "models/io/links.hpp"

namespace headgate::io {
namespace {

/// Returns a string that identifies a file:
/// - If the file exists: its device and inode, which are the same for all hard and symbolic links to it.
/// - If the file does not exist: its canonical path.
/// - If the canonical path cannot be determined, for example without permission to enter a directory: the absolute
///   path.
std::string file_identity(const std::string& path) {
  struct stat facts {};
  if (::stat(path.c_str(), &facts) == 0) return fmt::format("{}:{}", facts.st_dev, facts.st_ino);
  if (errno == ELOOP) fail(path, "is a loop of symbolic links");
  namespace fs = std::filesystem;
  std::error_code error;
  const fs::path absolute = fs::absolute(path, error),
                 canonical = fs::weakly_canonical(follow_links(absolute, error), error);
  return (error ? absolute.lexically_normal() : canonical).string();
}

}  // namespace

void check_overwrites(const std::vector<NamedPath>& outputs, const std::vector<NamedPath>& inputs) {
  std::map<std::string, const NamedPath*> read, written;
  for (const NamedPath& input : inputs) {
    if (!input.path.empty()) read.emplace(file_identity(input.path), &input);
  }
  for (const NamedPath& output : outputs) {
    if (output.path.empty()) continue;
    const std::string file = file_identity(output.path);
    if (const auto input = read.find(file); input != read.end()) {
      throw Error(fmt::format("{} {} would overwrite {}, a file of {}: give another path", output.option, output.path,
                              input->second->path, input->second->option));
    }
    const auto [other, is_new] = written.emplace(file, &output);
    if (is_new) continue;
    throw Error(fmt::format("{} {} and {} {} are one file: give two paths", other->second->option, other->second->path,
                            output.option, output.path));
  }
}

}  // namespace headgate::io
