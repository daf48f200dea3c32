// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <optional>
#include <type_traits>

#include "headgate/attention.hpp"
#include "headgate/headgate.h"
#include "headgate/tensor.hpp"
#include "library/core/rows.hpp"

// Structs of C++ as those of the C API.

namespace headgate::testing {

template <typename Void>
auto to_c(const BasicTensorView<Void>& view) {
  std::conditional_t<std::is_const_v<Void>, headgate_const_tensor, headgate_tensor> tensor = HEADGATE_ABSENT;
  tensor.data = view.data;
  tensor.dtype = static_cast<headgate_dtype>(view.dtype);
  std::copy(view.shape.begin(), view.shape.end(), tensor.shape);
  std::copy(view.strides.begin(), view.strides.end(), tensor.strides);
  return tensor;
}

/// `c` with the views of `from` that a table's rows describe.
template <const auto& kRows, class C, class Struct>
C tensors_to_c(C c, const Struct& from) {
  for (const auto& row : kRows) c.*row.c_member = to_c(from.*row.member);
  return c;
}

/// `c` with the options of `from` that are no names.
template <const auto& kRows, class C, class Options>
C options_to_c(C c, const Options& from) {
  for_each_row(kRows, [&](const auto& row) {
    using Row = std::remove_cvref_t<decltype(row)>;
    if constexpr (!Row::kIsName) {
      using Member = std::remove_reference_t<decltype(c.*row.c_member)>;
      const std::optional<typename Row::Value> value = row.of(from);
      if (row.in_c.given != nullptr) c.*row.in_c.given = value ? 1 : 0;
      if (value) c.*row.c_member = static_cast<Member>(*value);
      if constexpr (std::is_same_v<typename Row::Value, GateFn>) {
        if (*value == GateFn::none) c.*row.c_member = HEADGATE_GATE_FN_NONE;
      }
    }
  });
  return c;
}

}  // namespace headgate::testing
