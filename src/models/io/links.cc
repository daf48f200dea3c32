// SPDX-License-Identifier: Apache-2.0
#include "models/io/links.hpp"

namespace headgate::io {

namespace fs = std::filesystem;

fs::path follow_links(const fs::path& path, std::error_code& error) {
  constexpr int kMostLinks = 40;  // Linux has the same limit
  error.clear();
  fs::path target = path;
  std::error_code absent;
  for (int links = 0; fs::is_symlink(fs::symlink_status(target, absent)); ++links) {
    if (links == kMostLinks) {
      error = std::make_error_code(std::errc::too_many_symbolic_link_levels);
      return path;
    }
    const fs::path next = fs::read_symlink(target, error);
    if (error) return path;
    target = target.parent_path() / next;  // operator/ returns `next` alone if `next` is absolute
  }
  if (target == path) return path;
  fs::path canonical = fs::weakly_canonical(target, error);
  return error ? path : canonical;
}

}  // namespace headgate::io
