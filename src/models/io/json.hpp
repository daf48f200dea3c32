// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

#include "models/io/file_error.hpp"

namespace headgate::io {

using Json = nlohmann::json;

/// Parses the text of an untrusted JSON file. Throws FileError for invalid JSON, duplicate keys in an object, and
/// brackets nested deeper than `max_depth`. Messages begin with `path`.
Json parse_json(const std::string& path, std::string_view text, int max_depth);

}  // namespace headgate::io
