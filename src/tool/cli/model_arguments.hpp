// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

namespace headgate::cli {

/// Throws UsageError if a MODEL argument is a text file. The message suggests --text for it.
void refuse_texts(const std::vector<std::string>& models);

}  // namespace headgate::cli
