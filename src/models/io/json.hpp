// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

#include "models/io/file_error.hpp"

namespace headgate::io {

using Json = nlohmann::json;

/// Parses the text of an untrusted JSON file: one value, no duplicate keys in an object, brackets nested at most
/// `max_depth` deep. Throws FileError, whose message begins with `path`.
Json parse_json(const std::string& path, std::string_view text, int max_depth);

}  // namespace headgate::io
