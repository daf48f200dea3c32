// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "models/io/scratch.hpp"
#include "models/tokenize/tokenizer.hpp"

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

/// Expects that every text has the ids that the golden tokenizer `name` gives it.
inline void expect_golden_ids(const tokenize::Tokenizer& tokenizer, const std::string& name) {
  const nlohmann::json cases = golden_cases();
  for (std::size_t i = 0; i < cases["texts"].size(); ++i) {
    const auto text = cases["texts"][i].get<std::string>();
    EXPECT_EQ(tokenizer.encode(text).ids, cases[name][i].get<std::vector<std::int32_t>>()) << text;
  }
}

}  // namespace headgate::testing
