// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <fmt/format.h>

#include <string>
#include <string_view>
#include <vector>

#include "headgate/tensor.hpp"
#include "library/core/check.hpp"
#include "library/core/nearest_word.hpp"
#include "tool/cli/command_line.hpp"

namespace headgate::cli {

/// Declares an option whose value is the name of one of `choices`. Parsing stores the chosen DType in `to`.
template <class To>  // DType, or std::optional<DType>, which stays empty if the option is not given
Option declare_dtype(VerbOptions& verb, const std::string& name, To& to, const std::vector<DType>& choices,
                     const std::string& help) {
  const auto take = [name, &to, choices](const std::string& word) {
    std::vector<std::string_view> names;
    for (const DType dtype : choices) {
      names.emplace_back(dtype_name(dtype));
      if (word != names.back()) continue;
      to = dtype;
      return;
    }
    throw Error(fmt::format("{}: {}", name, word_complaint(word, names)));
  };
  std::vector<std::string> names;
  names.reserve(choices.size());
  for (const DType dtype : choices) names.emplace_back(dtype_name(dtype));
  return verb.word(name, take, "TYPE", help).suggests(names);
}

}  // namespace headgate::cli
