// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

namespace headgate::cli {

/// Throws UsageError if one of the arguments MODEL is a text, which belongs to --text.
void refuse_texts(const std::vector<std::string>& models);

}  // namespace headgate::cli
