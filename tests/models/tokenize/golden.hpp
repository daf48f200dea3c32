// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <nlohmann/json.hpp>
#include <string>

#include "models/io/scratch.hpp"

// Reads what scripts/check_tokenizers.py --write-golden wrote: small tokenizers of the `tokenizers` package, and the
// ids of some texts by each.

namespace headgate::testing {

inline std::string golden_path(const std::string& name) {
  return std::string(HEADGATE_GOLDEN) + "/" + name + "/tokenizer.json";
}

inline nlohmann::json golden_file(const std::string& name) {
  return nlohmann::json::parse(read_bytes(golden_path(name)));
}

/// Returns "texts", and for each tokenizer the list of their ids.
inline nlohmann::json golden_cases() {
  return nlohmann::json::parse(read_bytes(std::string(HEADGATE_GOLDEN) + "/cases.json"));
}

}  // namespace headgate::testing
