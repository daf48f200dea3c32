// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

namespace headgate::io {

/// A path, and the option or argument that names it. Empty: the option is absent.
struct NamedPath {
  std::string option, path;
};

/// Refuses an output that is one of `inputs`, and two outputs that are one file. Compares existing files by device and
/// inode, which finds hard and symbolic links; compares other paths in canonical form. An output must not create an
/// input that does not exist, such as the tokenizer.json of a model without one. Throws Error, which names both options
/// and what to do.
void check_overwrites(const std::vector<NamedPath>& outputs, const std::vector<NamedPath>& inputs);

}  // namespace headgate::io
