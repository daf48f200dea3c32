// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

// The paths of models, tokenizers and runs that a user gives: one resolver, so that each says the same of what is not
// there.

namespace headgate::io {

/// The file or directory that `path` stands for: `path` itself; of a model in the Hub's cache, models--OWNER--NAME, the
/// snapshot that refs/main names, or the only one; of a directory whose replacement was interrupted, its old content
/// (present_directory). Throws FileError, which says what is wrong, for what cannot be reached or read, for an empty
/// file, and for what is neither a file nor a directory; for a name on the Hub it says how to download that.
std::string given_path(const std::string& path);

}  // namespace headgate::io
