// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <string>
#include <vector>

#include "headgate/tensor.hpp"
#include "tool/cli/command_line.hpp"

namespace headgate::cli {

/// Declares an option whose value is the name of one of `choices`. Parsing stores the chosen DType in `to`.
/// `To` is DType or std::optional<DType>. An optional stays empty if the user does not give the option.
template <class To>
Option declare_dtype(VerbOptions& verb, const std::string& name, To& to, const std::vector<DType>& choices,
                     const std::string& help) {
  const auto take = [&to, choices](const std::string& word) {
    to = *std::find_if(choices.begin(), choices.end(), [&word](DType dtype) { return word == dtype_name(dtype); });
  };
  std::vector<std::string> names;
  names.reserve(choices.size());
  for (const DType dtype : choices) names.emplace_back(dtype_name(dtype));
  return verb.word(name, take, "TYPE", help).one_of(names);
}

}  // namespace headgate::cli
