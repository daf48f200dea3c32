// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

namespace headgate::io {

/// A path, and the name of the option or argument that gives it. The path is empty if the option is absent.
struct NamedPath {
  std::string option, path;
};

/// Throws Error if an output is the same file as an input or as another output. The message names both options and
/// tells what to do. Compares existing files by device and inode, which detects hard and symbolic links. Compares other
/// files by their canonical paths. Inputs need not exist.
void check_overwrites(const std::vector<NamedPath>& outputs, const std::vector<NamedPath>& inputs);

}  // namespace headgate::io
