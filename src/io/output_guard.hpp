// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

namespace headgate::io {

/// A path, and the option or argument that names it. Empty: the option is absent.
struct NamedPath {
  std::string option, path;
};

/// Refuses outputs that are one of `inputs` and outputs that are one file. Paths of a file that exists are compared by
/// device and inode, so that links do not hide it; others by their canonical form. An input that does not exist is a
/// file that an output must not create, as the tokenizer.json of a model without one. Throws Error, which names both
/// options and what to do.
void check_overwrites(const std::vector<NamedPath>& outputs, const std::vector<NamedPath>& inputs);

}  // namespace headgate::io
