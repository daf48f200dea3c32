// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <filesystem>
#include <system_error>

namespace headgate::io {

/// Follows symbolic links to their final target, which may not exist. Returns the target as a canonical path. If `path`
/// is not a link, returns `path`. Sets `error` if the links form a loop or a directory cannot be read.
std::filesystem::path follow_links(const std::filesystem::path& path, std::error_code& error);

}  // namespace headgate::io
