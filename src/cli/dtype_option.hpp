// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <fmt/format.h>

#include <initializer_list>
#include <string>
#include <vector>

#include "cli/verbs.hpp"
#include "headgate/tensor.hpp"

namespace headgate::cli {

/// The dtype that `word` names, one of `choices`. Throws UsageError, which names `option`.
inline DType dtype_of_word(const std::string& option, const std::string& word, std::initializer_list<DType> choices) {
  std::vector<std::string> names;
  for (const DType dtype : choices) {
    if (word == dtype_name(dtype)) return dtype;
    names.emplace_back(dtype_name(dtype));
  }
  throw UsageError(fmt::format("{}: '{}' is none of {}", option, word, fmt::join(names, ", ")));
}

}  // namespace headgate::cli
