// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

namespace headgate::cli {

/// A file that a verb writes, and the option that names it; empty where the option is absent.
struct OutputFile {
  std::string option, path;
};

/// Refuses, before the work begins, outputs that are one file, that would replace one of `inputs`, or that cannot be
/// written. Throws UsageError and io::WriteError.
void check_outputs(const std::vector<OutputFile>& outputs, const std::vector<std::string>& inputs);

}  // namespace headgate::cli
