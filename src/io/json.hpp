// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

#include "io/file_error.hpp"

namespace headgate::io {

using Json = nlohmann::json;

/// JSON from a file that is not trusted, and whose path begins every message: one value, no key twice in an object,
/// brackets nested at most `max_depth` deep. Throws FileError.
Json parse_json(const std::string& path, std::string_view text, int max_depth);

}  // namespace headgate::io
