// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

// Resolves the paths of models, tokenizers and runs that a user gives, with the same messages in all subcommands.

namespace headgate::io {

/// Returns the file or directory that `path` stands for:
/// - If `path` is a model in the Hub's cache, models--OWNER--NAME: the snapshot that refs/main names, or the only one.
/// - If nothing is at `path` and it is the name of a model on the Hub: the result of cached_model().
/// - If the replacement of a directory was interrupted: the old content, present_directory(path).
/// - Otherwise: `path`.
///
/// Throws FileError if the path cannot be reached or read, is an empty file, or is neither a file nor a directory. For
/// the name of a model on the Hub, the message names the cache that was searched and the command to download the model.
std::string given_path(const std::string& path);

/// Returns given_path(path), or `path` itself if given_path() throws.
std::string given_path_or_same(const std::string& path);

}  // namespace headgate::io
