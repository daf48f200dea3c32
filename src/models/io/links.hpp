// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <filesystem>
#include <system_error>

namespace headgate::io {

/// Follows symbolic links to the path that they name, which need not exist. The path is canonical if `path` is a link.
/// Sets `error` if the links are a loop or a directory cannot be read.
std::filesystem::path follow_links(const std::filesystem::path& path, std::error_code& error);

}  // namespace headgate::io
