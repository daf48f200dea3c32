// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

// Resolves the paths of models, tokenizers and runs that a user gives, with the same messages in all subcommands.

namespace headgate::io {

/// Returns the file or directory that `path` stands for:
///  - the snapshot that refs/main names, or the only one, if `path` is a model of the Hub's cache, models--OWNER--NAME;
///  - the result of cached_model(), if nothing is at `path` and it is the name of a model on the Hub;
///  - present_directory(path), the old content, if the replacement of a directory was interrupted;
///  - else `path`.
/// Throws FileError if the path cannot be reached or read, is an empty file, or is neither a file nor a directory. For
/// the name of a model on the Hub, the message names the cache that was searched and the command to download it.
std::string given_path(const std::string& path);

/// Returns given_path(path), or `path` itself if given_path() throws.
std::string given_path_or_same(const std::string& path);

}  // namespace headgate::io
