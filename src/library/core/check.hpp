// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <utility>

#include "headgate/error.hpp"
#include "headgate/tensor.hpp"
#include "library/core/format.hpp"

namespace headgate {

/// Throws Error with a formatted one-line message unless `ok`.
template <typename... Args>
void require(bool ok, fmt::format_string<Args...> format, Args&&... args) {
  if (!ok) throw Error(formatted(format, std::forward<Args>(args)...));
}

/// Formats a shape, for example "(2,8,128,64)".
inline std::string shape_text(const Shape& s) { return formatted("({},{},{},{})", s[0], s[1], s[2], s[3]); }

}  // namespace headgate
