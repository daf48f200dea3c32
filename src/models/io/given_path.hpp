// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

// Resolves the paths of models, tokenizers and runs that a user gives. All subcommands thus have the same messages.

namespace headgate::io {

/// Returns the file or directory that `path` refers to:
/// - If `path` is the directory models--OWNER--NAME of the Hub's cache: the snapshot that refs/main names, or the only
///   snapshot.
/// - If nothing exists at `path`, but it has the form of a name on the Hub and the cache has this model:
///   cached_model().
/// - If the replacement of the directory `path` was interrupted: the old directory, present_directory(path).
/// - Otherwise `path` itself.
///
/// Throws FileError if the path cannot be reached or read, is an empty file, or is neither a file nor a directory. If
/// `path` has the form of a name on the Hub, the message names the searched cache and the command that downloads the
/// model.
std::string given_path(const std::string& path);

/// Returns given_path(path), or `path` itself if given_path() throws.
std::string given_path_or_same(const std::string& path);

}  // namespace headgate::io
