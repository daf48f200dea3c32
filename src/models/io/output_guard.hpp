// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

namespace headgate::io {

/// A path, and the command-line option or argument that gives it. The path is empty if the option is absent.
struct NamedPath {
  std::string option, path;
};

/// Throws Error if an output is the same file as an input or as another output. The message names both options and what
/// to do. Existing files are compared by device and inode, which detects hard and symbolic links. Other paths are
/// compared in canonical form. Also throws if an output would create an input that does not exist yet, for example the
/// tokenizer.json of a model that has none.
void check_overwrites(const std::vector<NamedPath>& outputs, const std::vector<NamedPath>& inputs);

}  // namespace headgate::io
