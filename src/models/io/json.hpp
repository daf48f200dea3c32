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

/// Format JSON: json_text() with 2 spaces of indentation, json_line() on a single line, as JSON Lines requires. Both
/// end with a newline, and replace invalid UTF-8 by U+FFFD.
std::string json_text(const nlohmann::ordered_json& json);
std::string json_line(const nlohmann::ordered_json& json);

}  // namespace headgate::io
